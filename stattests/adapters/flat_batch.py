"""Engines' flattened rejection samplers as chain verifiers.

Many engines verify a batch of drafts of different lengths as flat arrays: all draft tokens one
after another, a list of how many each request has, and rows of probabilities in the same order.
`FlatBatch` hands the harness's chains to such a function and reads its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from univer import DraftTree, VerifyOutput
from univer.indices import indices

# (draft_tokens [total], num_drafts [B], draft_probs [total, V], target_probs [total + B, V])
#   -> emitted tokens [B, longest + 1], -1 padded
Sampler = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class FlatBatch:
    """A sampler that draws its own randomness from torch's global generator.

    Args:
        sampler: takes the draft tokens of all requests in one row, their numbers, the draft law of
            every draft token, and the target's law at every draft token and after the last one of
            each request; returns the emitted tokens, one row a request, -1 padded.
    """

    drafting = "without_replacement"
    randomness = "own"
    chains_only = True

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: None
    ) -> VerifyOutput:
        """The sampler's decisions on B chains, cut to different lengths on the way in."""
        del uniforms
        topology, tokens = tree.topology, tree.tokens
        batch, depth = len(tokens), topology.depth
        present = tokens[:, 1:] >= 0
        lengths = present.sum(1)
        rows = torch.arange(depth + 1) <= lengths[:, None]
        emitted = self.sampler(
            tokens[:, 1:][present], lengths, draft_probs[present], target_probs[rows]
        )
        emitted = torch.nn.functional.pad(emitted, (0, depth + 1 - emitted.shape[1]), value=-1)
        num_accepted = (emitted >= 0).sum(1) - 1
        table = indices(topology, tokens.device)
        next_token = emitted[torch.arange(batch), num_accepted]
        return VerifyOutput(table.paths[num_accepted], num_accepted, next_token, emitted)


def plain_sampler(
    draft_tokens: Tensor, num_drafts: Tensor, draft_probs: Tensor, target_probs: Tensor
) -> Tensor:
    """The rule of Leviathan et al. on flat arrays, request by request: what to compare with."""
    emitted = torch.full((len(num_drafts), int(num_drafts.max()) + 1), -1)
    at = 0
    for request, count in enumerate(num_drafts.tolist()):
        q = draft_probs[at : at + count]
        p = target_probs[at + request : at + request + count + 1]
        for i in range(count + 1):
            weights: Any = p[i]
            if i < count:
                token = draft_tokens[at + i]
                if torch.rand((), dtype=torch.float64) * q[i, token] < p[i, token]:
                    emitted[request, i] = token
                    continue
                weights = (p[i] - q[i]).clamp(min=0)
            emitted[request, i] = torch.multinomial(weights, 1)[0]
            break
        at += count
    return emitted


class PlainFlatBatch(FlatBatch):
    """`plain_sampler` behind the protocol, to be copied for an engine's own function."""

    def __init__(self) -> None:
        super().__init__(plain_sampler)
