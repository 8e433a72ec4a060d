"""EAGLE-1 heads on disk: the layout of the published ones, and our own.

| file | published | ours |
|---|---|---|
| config.json | a Llama config; `bias` is whether fc has one | the same, with `final_norm` |
| draft vocabulary | `draft_vocab_size` in config.json, `d2t` (`t2d`) in the weights | the same |
| weights | pytorch_model.bin or model.safetensors | model.safetensors in float16 |

Keys: fc.{weight,bias}, layers.0.self_attn.{q,k,v,o}_proj.weight (with biases for q, k, v in heads
for Qwen2), layers.0.mlp.{gate,up,down}_proj.weight, layers.0.post_attention_layernorm.weight, and
norm.weight if the config says final_norm. Published heads carry a copy of the target's embedding,
embed_tokens.weight: its shape is checked, and the target's own is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from univer.drafters.draft_vocabulary import D2T, SIZE, offsets, pop_ids
from univer.drafters.eagle_network import EagleNetwork
from univer.errors import InputError

EMBEDDING = "embed_tokens.weight"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
QKV_BIASES = tuple(f"layers.0.self_attn.{name}_proj.bias" for name in "qkv")
SHAPES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
)
CONFIG_KEYS = (*SHAPES, "vocab_size", "rope_parameters")

READ_KEYS = (*CONFIG_KEYS, "rope_theta", "rope_scaling")


def read_head(folder: Path) -> tuple[EagleNetwork, tuple[int, ...] | None]:
    """The network in a folder, float32 on the CPU, and its draft vocabulary (None: the whole one).

    Raises:
        InputError: a missing or unreadable file, missing or unknown keys, or a wrong shape.
    """
    raw = _read_config(folder)
    weights = _read_weights(folder)
    try:
        llama: Any = LlamaConfig
        config = llama(**{key: raw[key] for key in READ_KEYS if raw.get(key) is not None})
        network = EagleNetwork(
            config,
            fc_bias="fc.bias" in weights,
            qkv_bias=any(name in weights for name in QKV_BIASES),
            final_norm=bool(raw.get("final_norm", False)),
        )
    except Exception as error:  # transformers and torch raise anything for a config that is wrong
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"head: {folder}/config.json describes no Llama layer: {why}.") from error
    if (layers := raw.get("num_hidden_layers", 1)) != 1:
        raise InputError(f"head: {folder} has {layers} layers; an EAGLE-1 head has one.")
    embedding = weights.pop(EMBEDDING, None)
    wanted = (config.vocab_size, config.hidden_size)
    if embedding is not None and tuple(embedding.shape) != wanted:
        raise InputError(
            f"head: {EMBEDDING} in {folder} has shape {list(embedding.shape)}, but its config"
            f" says {list(wanted)}."
        )
    ids = pop_ids(weights, raw.get(SIZE), config.vocab_size)
    network.load_state_dict(_checked(folder, weights, network.state_dict()))
    return network, ids


def check_fits(network: EagleNetwork, target: Any) -> None:
    """Refuse a head whose width or vocabulary is not the target's.

    Raises:
        InputError: names both.
    """
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    if embedding is None or head is None:
        raise InputError(f"target: {type(target).__name__} has no embedding or no LM head.")
    width, config = embedding.weight.shape[1], network.config
    if config.hidden_size != width:
        raise InputError(
            f"head: its width is {config.hidden_size}, but the target's is {width}; use the head"
            " that was trained for this target."
        )
    if config.vocab_size != head.weight.shape[0]:
        raise InputError(
            f"head: its vocabulary has {config.vocab_size} tokens, but the target's has"
            f" {head.weight.shape[0]}; use the head that was trained for this target."
        )


def write_head(network: EagleNetwork, ids: Sequence[int] | None, folder: Path) -> None:
    """Write config.json and model.safetensors, float16, into a folder that is made if need be.

    Args:
        network: the head.
        ids: its draft vocabulary; None for the whole one.
        folder: where to.

    Raises:
        InputError: the folder cannot be written.
    """
    config = network.config.to_dict()
    fields = {key: config[key] for key in CONFIG_KEYS if config.get(key) is not None}
    fields |= {"model_type": "llama", "num_hidden_layers": 1, "torch_dtype": "float16"}
    fields |= {"bias": network.fc.bias is not None, "final_norm": network.norm is not None}
    weights = {k: v.detach().half().cpu().contiguous() for k, v in network.state_dict().items()}
    if ids is not None:
        fields[SIZE], weights[D2T] = len(ids), offsets(ids)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
        save_file(weights, folder / WEIGHTS[0], metadata={"format": "pt"})
    except OSError as error:
        raise InputError(f"folder: cannot write {folder}: {error.strerror or error}.") from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"head: cannot read {path}: {error}.") from error
    if not isinstance(raw, dict):
        raise InputError(f"head: {path} holds {type(raw).__name__}; expected a JSON object.")
    return raw


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise InputError(f"head: {folder} holds neither {WEIGHTS[0]} nor {WEIGHTS[1]}.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # the readers raise anything for a broken file
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"head: cannot read {path}: {why}.") from error


def _checked(
    folder: Path, weights: dict[str, Tensor], wanted: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The weights, once keys and shapes are those of the network."""
    # Tables of rotary embeddings, which older versions of transformers saved.
    given = {k: v for k, v in weights.items() if not k.endswith("inv_freq")}
    if missing := sorted(wanted.keys() - given.keys()):
        raise InputError(f"head: {folder} lacks {', '.join(missing)}; an EAGLE-1 head has them.")
    if unknown := sorted(given.keys() - wanted.keys()):
        raise InputError(
            f"head: {folder} has {', '.join(unknown)}, which is no part of an EAGLE-1 head of this"
            " config."
        )
    for name, tensor in wanted.items():
        if given[name].shape != tensor.shape:
            raise InputError(
                f"head: {name} in {folder} has shape {list(given[name].shape)}; its config makes it"
                f" {list(tensor.shape)}."
            )
    return given
