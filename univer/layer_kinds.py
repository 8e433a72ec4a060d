"""What the layers of a causal LM can be shown: trees, chains or nothing, and what each may see.

A tree is one forward in which siblings share a position but not a slot of the cache. A layer takes
it if its mask can be given from outside; a window is then a rule about positions, and the rules are
those that transformers makes of the model's own configuration. A layer that counts slots (ALiBi,
gpt_neo's local attention) or keeps a state takes chains: there slots are positions, and
the model is fed as `generate` feeds it.

Letters: R rows of a forward, S slots of the cache.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    get_layer_types_and_kwargs,
)
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING,
    create_masks_for_generate,
)

from univer.errors import InputError

# (batch, head, positions of rows, positions of slots) -> which slots each row may see.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Other implementations ignore a 4-D mask, which would let siblings see each other.
ATTENTION = ("sdpa", "eager")
KEEPS_ALL = (DynamicLayer, DynamicSlidingWindowLayer)  # slots to be kept or dropped one by one
# A window in a configuration means nothing to a model whose code never makes a mask of it.
MAKERS = {
    "sliding_attention": "create_sliding_window_causal_mask",
    "chunked_attention": "create_chunked_causal_mask",
}
NO_ATTENTION = ("moe", "mlp", "dummy")  # layers that see one token, or another layer's cache
RULES = "univer_rules"


def _rule_itself(*_: Any, mask_function: Rule, **__: Any) -> Rule:
    return mask_function


# Under a name of our own: transformers then hands out its rules in place of masks.
ALL_MASK_ATTENTION_FUNCTIONS.register(RULES, _rule_itself)


@dataclass(frozen=True)
class Layers:
    """What is known of a model's layers before any forward.

    kinds: their types as the configuration names them.
    rules: what each kind may see, if there are trees.
    no_trees: why it takes chains only; None if it takes trees.
    stateful: some layers keep a state from which no token can be dropped.
    takes_positions: its forward takes position ids.
    """

    kinds: tuple[str, ...]
    rules: Mapping[str, Rule]
    no_trees: str | None
    stateful: bool
    takes_positions: bool

    def masks(self, sees: Tensor, rows: Tensor, slots: Tensor, dtype: torch.dtype) -> Any:
        """Additive masks [1, 1, R, S], 0 or the minimum: one for all layers, or one a kind.

        Args:
            sees: bool [R, S], the text and its own ancestors for every row.
            rows: positions of the rows, int64 [R].
            slots: positions of the slots, int64 [S].
            dtype: of the masks.
        """
        one = torch.zeros(1, dtype=torch.int64)
        made = {
            kind: additive(sees & rule(one, one, rows[:, None], slots[None]), dtype)
            for kind, rule in self.rules.items()
        }
        return made if len(made) > 1 else next(iter(made.values()))


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask [1, 1, R, S] that is 0 where a row sees, else the minimum of the dtype."""
    mask = torch.zeros(1, 1, *sees.shape, dtype=dtype)
    return mask.masked_fill_(~sees, torch.finfo(dtype).min)


def read_layers(model: Any, config: Any, argument: str) -> Layers:
    """Read a model's layers; see `Layers`.

    Args:
        model: a causal LM.
        config: of its text part.
        argument: what error messages call it.

    Raises:
        InputError: it takes no cache, or an attention that cannot be masked.
    """
    attention, takes = config._attn_implementation, _arguments(model)
    if attention not in ATTENTION:
        raise InputError(
            f"{argument}: attention {attention!r} takes no tree mask; load the model with"
            f" attn_implementation set to one of {', '.join(ATTENTION)}."
        )
    try:
        types = _types(model, config)
        states = _states(config)
    except (AttributeError, KeyError, TypeError, ValueError):
        types = []
    if not types or not takes("cache") or _keeps_its_own(model):
        raise InputError(
            f"{argument}: a model of type {config.model_type!r} keeps its text in no cache of"
            " transformers that could be brought back after a rejection; neither trees nor chains"
            " can be decoded with it."
        )
    kinds = _kinds(types)
    rules = {} if states else _rules(config, kinds)
    blind = [kind for kind in kinds if kind not in rules]
    reasons = {
        f"layers of type {', '.join(states)} keep a state beside keys and values, which"
        " has no room for siblings": bool(states),
        f"what layers of type {', '.join(blind)} see goes by slots of the cache, and siblings"
        " share a position, not a slot": bool(blind),
        "its ALiBi goes by slots of the cache, and siblings share a position, not a slot": bool(
            getattr(config, "alibi", False)
        ),
        "its forward takes no position ids, and siblings share a position": not takes(
            "position_ids"
        ),
    }
    no_trees = next((reason for reason, holds in reasons.items() if holds), None)
    return Layers(kinds, rules, no_trees, bool(states), takes("position_ids"))


def ways(layers: Layers, *, chains: bool) -> tuple[str, ...]:
    """The ways of feeding a model trees, or chains, the best one first.

    "masked" gives it masks, "plain" the tokens alone, "stepwise" one token a forward.
    """
    masked = ("masked",) if layers.no_trees is None else ()
    return (*masked, "plain", "stepwise") if chains else masked


def empty_cache(config: Any, stateful: bool) -> DynamicCache:
    """A cache that drops nothing by itself: a window's tokens may be needed after a rejection."""
    if not stateful:
        return DynamicCache()
    cache = DynamicCache(config=config)
    cache.layers = [
        DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
        for layer in cache.layers
    ]
    return cache


def _arguments(model: Any) -> Callable[[str], bool]:
    """Whether the model's forward takes an argument; a wrapper that names none takes all."""
    forward = getattr(type(model), "forward", None)
    names = inspect.signature(forward).parameters if forward is not None else {}
    return lambda name: name in names or "input_ids" not in names


def _keeps_its_own(model: Any) -> bool:
    """Whether it keeps its text in a class of its own, or in its own modules (RecurrentGemma)."""
    body = getattr(model, "base_model", None)
    forward = getattr(type(body), "forward", None)
    cache = inspect.signature(forward).parameters.get("cache") if forward is not None else None
    asked = get_args(cache.annotation) if cache is not None else ()
    classes = [one for one in asked if isinstance(one, type) and one is not NoneType]
    ours = not classes or any(issubclass(DynamicCache, one) for one in classes)
    return not ours or hasattr(body, "_setup_cache")


def _types(model: Any, config: Any) -> list[str]:
    """The type of each layer: the configuration's own name, or what its windows make of it."""
    own = getattr(config, "attention_layers", None)  # gpt_neo's
    types: list[str] = own or get_layer_types_and_kwargs(config)[0]
    # A wrapper's own code makes no masks, a subclass's may be that of its base.
    parts = model.modules() if isinstance(model, torch.nn.Module) else (model,)
    classes = {one for part in {type(part) for part in parts} for one in part.__mro__}
    code = [vars(sys.modules[one.__module__]) for one in classes if one.__module__ in sys.modules]
    full = {kind for kind, maker in MAKERS.items() if not any(maker in names for names in code)}
    return ["full_attention" if kind in {"global", *full} else kind for kind in types]


def _kinds(types: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for kind in types if kind not in NO_ATTENTION))


def _states(config: Any) -> tuple[str, ...]:
    """The kinds of layers whose cache is more than keys and values."""
    types, _ = get_layer_types_and_kwargs(config)
    held = zip(types, DynamicCache(config=config).layers, strict=True)
    return _kinds([kind for kind, layer in held if type(layer) not in (*KEEPS_ALL, DummyLayer)])


def _rules(config: Any, kinds: Sequence[str]) -> dict[str, Rule]:
    """For each kind of attention what it may see, as the model's own masks have it."""
    asked = copy.copy(config)
    asked._attn_implementation_internal = RULES
    asked.layer_types = [kind for kind in kinds if kind in LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING]
    try:
        made = create_masks_for_generate(
            config=asked, inputs_embeds=torch.empty(1, 1, 1), attention_mask=None, cache=None
        )
    except (RuntimeError, ValueError):  # windows that differ from layer to layer, or are not named
        return {}
    return {kind: rule for kind, rule in made.items() if rule is not None}
