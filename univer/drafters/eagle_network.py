"""EAGLE-1's network: one decoder layer that guesses the target's next feature.

A feature is what the target's LM head reads: its last hidden state after the final norm. The pair
at place j of a text is (embedding of token j, feature of token j - 1); the network's output there
is a guess at the feature of token j, and the target's LM head makes of it a law of token j + 1.

    embedding, feature -> fc -> decoder layer without input norm -> [norm] -> feature

Letters: B texts, n rows, S slots of the cache and rows, d width.
Source: Li et al. 2024, EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)


class EagleLayer(nn.Module):
    """A Llama decoder layer without the norm in front of its attention."""

    def __init__(self, config: Any, qkv_bias: bool) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):  # Qwen2's have a bias, and its o_proj has none
            old = getattr(self.self_attn, name)
            setattr(
                self.self_attn, name, nn.Linear(old.in_features, old.out_features, bias=qkv_bias)
            )
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, **attention: Any) -> Tensor:
        """Rows [B, n, d] to rows [B, n, d]."""
        x = x + self.self_attn(hidden_states=x, **attention)[0]
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class EagleNetwork(nn.Module):
    """The trained part of an EAGLE-1 head; embedding and LM head are the target's.

    Args:
        config: a LlamaConfig; its width, heads, MLP, rotary embedding and norm epsilon are read.
        fc_bias: whether `fc` has a bias; published heads have it or not.
        qkv_bias: whether the query, key and value projections have one (Qwen2).
        final_norm: whether an RMSNorm follows the layer, as in the target itself.
    """

    def __init__(
        self,
        config: Any,
        *,
        fc_bias: bool = True,
        qkv_bias: bool = False,
        final_norm: bool = False,
    ) -> None:
        super().__init__()
        config = copy.deepcopy(config)
        config._attn_implementation = "sdpa"
        config.attention_bias = config.mlp_bias = False
        self.config = config
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=fc_bias)
        self.layers = nn.ModuleList([EagleLayer(config, qkv_bias)])
        self.norm = LlamaRMSNorm(width, eps=config.rms_norm_eps) if final_norm else None
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        *,
        mask: Tensor,
        positions: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        """The guessed features [B, n, d].

        Args:
            embeddings: of the tokens, [B, n, d].
            features: of the tokens before them, [B, n, d].
            mask: additive, [B or 1, 1, n, S].
            positions: int64 [B or 1, n]; the pair of token j is at j - 1.
            cache: keys and values of earlier pairs; the new ones are added.
        """
        x = self.fc(torch.cat([embeddings, features], -1))
        rotation = self.rotary(x, positions)
        out: Tensor = self.layers[0](
            x, attention_mask=mask, position_embeddings=rotation, cache=cache
        )
        return out if self.norm is None else self.norm(out)
