"""Hugging Face's speculative sampling, a chain verifier: certify it for real.

    univer certify stattests.adapters.hugging_face:SpeculativeSampling --budget smoke

It is the function that transformers' assisted generation calls for every draft (Leviathan et al.
2023, algorithm 1). It draws from torch's global generator, so the harness seeds that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation import utils


class SpeculativeSampling:
    """`transformers.generation.utils._speculative_sampling` on one chain at a time."""

    drafting = "without_replacement"
    batched = False
    randomness = "own"
    chains_only = True

    def verify(
        self, tree: Any, target_probs: Any, draft_probs: Any, *, uniforms: None
    ) -> tuple[list[int], int]:
        """Accepted nodes and the next token of one chain."""
        del uniforms
        drafted = tree.tokens[1:]
        depth = int((drafted >= 0).sum())
        if depth == 0:
            law = torch.from_numpy(target_probs[0])
            return [], int(torch.multinomial(law, 1))
        tokens, matches = utils._speculative_sampling(
            torch.from_numpy(drafted[:depth])[None],
            _logits(draft_probs[:depth]),
            depth,
            _logits(target_probs[: depth + 1]),
        )
        return list(range(1, int(matches) + 1)), int(tokens[0, -1])


def _logits(laws: Any) -> Tensor:
    """Logits [1, n, V] whose softmax is these laws; -inf for a token of probability 0."""
    return torch.from_numpy(laws).log()[None]
