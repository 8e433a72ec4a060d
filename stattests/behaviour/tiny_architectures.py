"""Tiny models of many architectures, made from `AutoConfig`: no download, milliseconds a forward.

    python -m stattests.behaviour.tiny_architectures docs/MODELS.md

writes what each of them takes. A row of TAKES is a model type and the small sizes that it needs
beside the common ones; windows are of 6 or 7 tokens, so that short texts go beyond them.

The models are float32: a mixture of experts has no other arithmetic on a CPU. Weights are drawn
anew with a spread of GAIN / sqrt(width), since many of transformers' own small ones repeat one
token for ever.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from univer.cached_model import CachedModel
from univer.errors import InputError

GAIN = 1.6
COMMON: Mapping[str, Any] = {
    "vocab_size": 40,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "intermediate_size", "ffn_dim"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "n_head"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "head_dim": 8,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 96),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), None),
    "sliding_window": 7,
    "attention_chunk_size": 6,
    "tie_word_embeddings": False,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
MLA = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "num_key_value_heads": 4,
}
MAMBA2 = {
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_chunk_size"), 8),
    "mamba_n_groups": 1,
}
DELTA = {
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
}
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
TREES, CHAINS, STEPS, NOTHING = "trees and chains", "chains", "chains, token by token", "nothing"

# What it takes -> model type -> its own sizes.
TAKES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    TREES: {
        "afmoe": SLIDING | {"num_dense_layers": 1},
        "apertus": {},
        "arcee": {},
        "bitnet": {},
        "biogpt": {},
        "codegen": {"rotary_dim": 4},
        "cohere": {},
        "cohere2": SLIDING,
        "cwm": SLIDING | TOKENS,
        "deepseek_v2": MLA,
        "deepseek_v3": MLA,
        "diffllama": {},
        "doge": {},
        "ernie4_5": {},
        "ernie4_5_moe": {},
        "exaone4": SLIDING,
        "falcon": {},
        "flex_olmo": {},
        "gemma": {},
        "gemma2": SLIDING,
        "gemma3_text": SLIDING,
        "gemma3n_text": SLIDING
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40}
        | {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0]},
        "gemma4_text": SLIDING
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40}
        | {"global_head_dim": 16, "num_experts": None, "moe_intermediate_size": None},
        "glm": {},
        "glm4": {},
        "glm4_moe": {},
        "glm4_moe_lite": MLA,
        "gpt2": {},
        "gpt_bigcode": {},
        "gpt_neox": {},
        "gpt_oss": SLIDING,
        "gptj": {"rotary_dim": 4},
        "granite": {},
        "granitemoe": {},
        "helium": {},
        "hunyuan_v1_dense": {},
        "hunyuan_v1_moe": {},
        "internlm3": {},
        "jetmoe": {},
        "llama": {},
        "llama4_text": {"layer_types": ["chunked_attention", "full_attention"]},
        "longcat_flash": MLA,
        "mimo_v2_flash": SLIDING,
        "minicpm3": MLA,
        "minimax_m2": {},
        "ministral": {},
        "mistral": {},
        "mixtral": {},
        "modernbert-decoder": SLIDING | TOKENS,
        "nemotron": {},
        "olmo": {},
        "olmo2": {},
        "olmo3": SLIDING,
        "olmoe": {},
        "opt": {},
        "persimmon": {},
        "phi": {},
        "phi3": {},
        "phimoe": {},
        "qwen2": {},
        "qwen2_moe": {"use_sliding_window": False},
        "qwen3": {},
        "qwen3_moe": {},
        "seed_oss": {},
        "smollm3": {},
        "stablelm": {},
        "starcoder2": {},
        "vaultgemma": SLIDING,
        "xglm": {},
        "youtu": MLA,
    },
    CHAINS: {
        "bamba": MAMBA2 | {"attn_layer_indices": [1]},
        "bloom": {},
        "deepseek_v32": MLA | {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 96},
        "deepseek_v4": {
            "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
            "compress_rates": {"heavily_compressed_attention": 8, "compressed_sparse_attention": 4},
            "index_topk": 96,
        },
        "falcon (ALiBi)": {"alibi": True},
        "falcon_h1": MAMBA2 | {"mamba_d_ssm": 64},
        "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6},
        "granitemoehybrid": MAMBA2 | LINEAR,
        "lfm2": {"layer_types": ["conv", "full_attention"]},
        "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
        "mamba2": {
            **dict.fromkeys(("num_heads", "head_dim", "state_size", "chunk_size"), 8),
            "n_groups": 1,
        },
        "mpt": {},
        "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention"]}
        | {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "chunk_size": 8}
        | {"n_groups": 1},
        "olmo_hybrid": LINEAR | DELTA,
        "qwen3_5_text": LINEAR | DELTA,
        "qwen3_next": LINEAR | DELTA,
        "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "num_mem_blocks": 1}
        | dict.fromkeys(("n_mamba_heads", "mamba_d_state", "chunk_size", "mamba_headdim"), 8)
        | {"mamba_ngroups": 1},
        "zaya": {"num_experts_per_tok": 1},
    },
    STEPS: {
        "falcon_mamba": {"state_size": 8},
        "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
        "mamba": {"state_size": 8},
        "zamba": {"layer_types": ["linear_attention", "hybrid"], "mamba_d_state": 8},
    },
    NOTHING: {"minimax": {}, "openai-gpt": {}, "recurrent_gemma": {}, "rwkv": {}, "xlstm": {}},
}
ARCHITECTURES = {name: takes for takes, rows in TAKES.items() for name in rows}


# Where the first seed's text is one token or two over and over.
SEEDS = dict.fromkeys(("codegen", "hunyuan_v1_moe", "minicpm3", "minimax_m2"), 1)


@cache
def tiny(name: str, seed: int | None = None) -> Any:
    """A model of this row with random weights, in evaluation mode."""
    kind, own = name.split()[0], TAKES[ARCHITECTURES[name]][name]
    default = AutoConfig.for_model(kind)
    fits = {key: value for key, value in COMMON.items() if _settable(default, key)}
    config = AutoConfig.for_model(kind, **{**fits, **own})
    with torch.random.fork_rng():
        torch.manual_seed(SEEDS.get(name, 0) if seed is None else seed)
        model = AutoModelForCausalLM.from_config(config)
        for key, weight in model.named_parameters():
            # Norms and decay rates are no matrices to be drawn.
            if weight.ndim > 1 and not key.endswith("A_log") and "norm" not in key:
                torch.nn.init.normal_(weight, std=GAIN / weight.shape[-1] ** 0.5)
    return model.float().eval()


def alike(model: Any, noise: float, seed: int = 1) -> Any:
    """A copy with some noise on its weights: a drafter that is right now and then."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.ndim > 1:
                random = torch.randn(weight.shape, generator=generator)
                weight += noise * weight.std() * random
    return other


def _settable(config: Any, key: str) -> bool:
    return key in config.to_dict() or key in config.attribute_map


def takes(name: str) -> tuple[str, str, str]:
    """Kinds of layers, what is taken, and the sentence about the rest, as the library has them."""
    model, said = tiny(name), []
    try:
        session = CachedModel(model)
    except InputError as error:
        return "", NOTHING, str(error)
    found = {}
    for chains in (True, False):
        try:
            session.allow(chains=chains)
            found[chains] = session.way
        except InputError as error:
            said.append(str(error))
    kinds = ", ".join(session.layers.kinds)
    if len(found) == 2:
        return kinds, TREES, ""
    named = {"plain": CHAINS, "stepwise": STEPS}
    return kinds, named.get(found.get(True, ""), NOTHING), " ".join(said)


def document() -> str:
    """docs/MODELS.md: what each of the architectures takes."""
    rows = []
    for name in sorted(ARCHITECTURES):
        kinds, taken, sentence = takes(name)
        rows.append(f"| {name} | {kinds} | {taken} | {sentence.removeprefix('target: ')} |")
    return f"""{TITLE}
Measured with transformers {transformers.__version__} on {len(rows)} tiny models of random weights.

| model type | layers | takes | what is said of the rest |
|---|---|---|---|
{chr(10).join(rows)}
"""


TITLE = """# What models can be decoded

Written by `python -m stattests.behaviour.tiny_architectures docs/MODELS.md`; a test compares it.

A target, or a small model that drafts, may have any layers of attention, with windows or without:
trees are right beyond every window. Layers that keep a state (Mamba, linear attention,
convolutions) and attention that goes by slots of the cache take chains, such as `chain:4`. What a
model takes is read off its configuration and its cache, not off its name; before the first tree or
chain a small one is compared with plain text, once a model (`check_model=False` leaves it out).

*Chains, token by token*: transformers cannot go on from the state by several tokens at once, so
that the text is right but no faster than plain decoding.
"""

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
