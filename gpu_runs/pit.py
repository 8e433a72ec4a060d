"""PIT values and surprise of what a verifier made of a drafted tree (STATS 6): is it lossless?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests.etest import pit_values
from univer.decoding import Drawn
from univer.verifiers import VerifyOutput


def pit_of_cycle(
    drawn: Drawn, output: VerifyOutput, tokens: Sequence[int], generator: torch.Generator
) -> NDArray[np.float64]:
    """The PIT value of each of these tokens, the cycle's first ones; inf for an impossible token.

    Args:
        drawn: the tree and the laws that the verifier judged.
        output: its decision.
        tokens: those of its tokens that count: not the ones beyond EOS or the budget.
        generator: where the uniforms come from.
    """
    laws, drafts = _laws(drawn, output, len(tokens))
    fresh = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    return pit_values(laws.numpy(), drafts.numpy(), np.asarray(tokens), fresh.numpy())


@dataclass(frozen=True)
class Surprise:
    """What the target's laws say about a cycle's tokens, in nats; one number a token.

    log_prob: of the token; -inf for an impossible one.
    entropy: of its law, the mean of -log_prob.
    variance: of log_prob under that law.
    """

    log_prob: tuple[float, ...]
    entropy: tuple[float, ...]
    variance: tuple[float, ...]


def surprise_of_cycle(drawn: Drawn, output: VerifyOutput, tokens: Sequence[int]) -> Surprise:
    """The surprise of each of these tokens, the cycle's first ones; arguments as above.

    Along a lossless text -log_prob - entropy is a martingale difference of this variance.
    """
    laws = _laws(drawn, output, len(tokens))[0].double()
    laws = laws / laws.sum(-1, keepdim=True)
    logs = laws.log()
    own = logs.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]
    weighted = torch.where(laws > 0, laws * logs, 0.0)
    mean = weighted.sum(-1)
    square = torch.where(laws > 0, weighted * logs, 0.0).sum(-1)
    variance = (square - mean**2).clamp(min=0)
    return Surprise(*(tuple(row.tolist()) for row in (own, -mean, variance)))


def _laws(drawn: Drawn, output: VerifyOutput, tokens: int) -> tuple[Tensor, Tensor]:
    """Target and draft laws [tokens, V] of a cycle's first tokens; zeros for no draft law."""
    accepted = [v for v in output.accepted_nodes[0].tolist() if v >= 0]
    nodes = [0, *accepted][:tokens]  # the token after a node follows that node's law
    laws = drawn.target_probs[0, nodes].cpu()
    drafts = torch.zeros_like(laws)
    internal = {v: row for row, v in enumerate(drawn.tree.topology.internal)}
    for at, node in enumerate(nodes):
        if node in internal:
            drafts[at] = drawn.draft_probs[0, internal[node]].cpu()
    return laws, drafts
