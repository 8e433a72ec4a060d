"""Separate decoding, a few prompts a verifier: tokens per second, and PIT values of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stattests.etest import pit_values
from univer import VERIFIERS, Filters, Topology
from univer.decoding import Cycle, decode

PLAIN = "plain"  # one token a forward: the same loop over the tree that is only its root


@dataclass
class Decoded:
    """What one way of decoding has shown so far; `values` are the PIT values of its tokens."""

    tokens: int = 0
    cycles: int = 0
    milliseconds: float = 0.0
    values: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Speed, prefill included."""
        return 1e3 * self.tokens / self.milliseconds


def decode_in_turn(
    target: Any,
    drafter: Any,
    prompts: Sequence[Sequence[int]],
    *,
    topology: Topology,
    filters: Filters,
    tokens_a_prompt: int,
    seed: int,
) -> Iterator[dict[str, Decoded]]:
    """Decode each prompt plainly and with every verifier; yield the state after each of them.

    The number of tokens a prompt is fixed before (or the text ends at EOS): a number of cycles, or
    a time, would depend on the tokens and spoil the PIT.
    """
    state = {name: Decoded() for name in (PLAIN, *VERIFIERS)}
    generator = torch.Generator().manual_seed(seed)
    for prompt in prompts:
        # In turn, so that a machine that slows down slows all of them.
        for name, row in state.items():
            cycles = decode(
                target,
                drafter,
                prompt,
                verifier="univer" if name == PLAIN else name,
                topology="none" if name == PLAIN else topology,
                filters=filters,
                max_new_tokens=tokens_a_prompt,
                generator=generator,
            )
            for cycle in cycles:
                record = cycle.record
                row.tokens += len(record.tokens)
                row.cycles += 1
                row.milliseconds += record.draft_ms + record.target_ms + record.verify_ms
                row.values += pit_of_cycle(cycle, generator).tolist()
            yield state


def pit_of_cycle(cycle: Cycle, generator: torch.Generator) -> NDArray[np.float64]:
    """The PIT value of each token that the cycle added to the text."""
    drawn, tokens = cycle.drawn, cycle.record.tokens
    accepted = [v for v in cycle.output.accepted_nodes[0].tolist() if v >= 0]
    nodes = [0, *accepted][: len(tokens)]  # the token after a node follows that node's law
    laws = drawn.target_probs[0, nodes].cpu()
    drafts = torch.zeros_like(laws)
    internal = {v: row for row, v in enumerate(drawn.tree.topology.internal)}
    for at, node in enumerate(nodes):
        if node in internal:
            drafts[at] = drawn.draft_probs[0, internal[node]].cpu()
    fresh = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    return pit_values(laws.numpy(), drafts.numpy(), np.asarray(tokens), fresh.numpy())
