"""PIT values of what a verifier made of a drafted tree (STATS 6), for the check of losslessness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

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
    accepted = [v for v in output.accepted_nodes[0].tolist() if v >= 0]
    nodes = [0, *accepted][: len(tokens)]  # the token after a node follows that node's law
    laws = drawn.target_probs[0, nodes].cpu()
    drafts = torch.zeros_like(laws)
    internal = {v: row for row, v in enumerate(drawn.tree.topology.internal)}
    for at, node in enumerate(nodes):
        if node in internal:
            drafts[at] = drawn.draft_probs[0, internal[node]].cpu()
    fresh = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    return pit_values(laws.numpy(), drafts.numpy(), np.asarray(tokens), fresh.numpy())
