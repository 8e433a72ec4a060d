"""Drafting with the target itself, its middle layers skipped: real laws without any training."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from univer.errors import InputError


def layer_skip(target: Any, keep: int) -> Any:
    """A causal LM made of the target's first and last `keep` layers, sharing all its weights.

    Args:
        target: a Hugging Face causal LM of at least 2 keep layers; it is not changed.
        keep: layers kept at each end, >= 1.

    Raises:
        InputError: `keep` does not fit, the model has no list of layers, or its configuration does
            not let their types be chosen.
    """
    config = target.config
    total = config.num_hidden_layers
    if not isinstance(keep, int) or isinstance(keep, bool) or not 1 <= keep <= total // 2:
        raise InputError(
            f"keep: expected an integer from 1 to {total // 2} (half of the target's {total}"
            f" layers), got {keep!r}."
        )
    name, layers = _layers(target.base_model, total)
    chosen = [*range(keep), *range(total - keep, total)]
    model = _twin(target)
    model.config = copy.copy(config)
    model.config.num_hidden_layers = len(chosen)
    if getattr(config, "layer_types", None):
        try:
            model.config.layer_types = [config.layer_types[i] for i in chosen]
        except AttributeError as error:
            raise InputError(
                f"target: {type(config).__name__} works out the types of its layers by itself;"
                " layer skip has to choose them."
            ) from error
    body = _twin(target.base_model)
    body.config = model.config
    body._modules[name] = nn.ModuleList(
        _renumbered(layers[index], slot) for slot, index in enumerate(chosen)
    )
    model._modules[target.base_model_prefix] = body
    return model


def _layers(body: Any, total: int) -> tuple[str, nn.ModuleList]:
    for name, module in body.named_children():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return name, module
    raise InputError(
        f"target: {type(body).__name__} has no list of its {total} layers; layer skip needs one."
    )


def _twin(module: Any) -> Any:
    """A copy of one module that shares parameters and submodules, but not the tables of them."""
    twin = copy.copy(module)
    for table in ("_modules", "_parameters", "_buffers"):
        twin.__dict__[table] = dict(module.__dict__[table])
    return twin


def _renumbered(layer: Any, slot: int) -> Any:
    """A twin of a layer, through all its submodules, that uses this slot of the KV cache."""
    twin = _twin(layer)
    if hasattr(layer, "layer_idx"):
        twin.layer_idx = slot
    for name, child in layer._modules.items():
        if child is not None:
            twin._modules[name] = _renumbered(child, slot)
    return twin
