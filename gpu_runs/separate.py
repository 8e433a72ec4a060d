"""Separate decoding, a few prompts a verifier: tokens per second, and PIT values of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_runs.pit import pit_of_cycle
from univer import PAPER, Filters, Topology
from univer.decoding import Cycle, decode

PLAIN = "plain"  # one token a forward: the same loop over the tree that is only its root
NO_TREE = Topology.parse("none")
PLAIN_VERIFIER = "univer"  # any would do: there is nothing to decide


@dataclass
class Decoded:
    """What one way of decoding has shown so far; `values` are the PIT values of its tokens."""

    tokens: int = 0
    cycles: int = 0
    milliseconds: float = 0.0
    values: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Speed, with prefill and the compaction of the caches."""
        return 1e3 * self.tokens / self.milliseconds


def decode_as(
    name: str, target: Any, drafter: Any, prompt: Sequence[int], *, topology: Topology, **rest: Any
) -> Iterator[Cycle]:
    """The cycles of one text, decoded by the verifier of this name, or plainly.

    The rest as in `univer.decoding.decode`.
    """
    verifier, shape = (PLAIN_VERIFIER, NO_TREE) if name == PLAIN else (name, topology)
    return decode(target, drafter, prompt, verifier=verifier, topology=shape, **rest)


def decode_in_turn(
    target: Any,
    drafter: Any,
    prompts: Sequence[Sequence[int]],
    *,
    topology: Topology,
    filters: Filters,
    tokens_a_prompt: int,
    generator: torch.Generator,
) -> Iterator[dict[str, Decoded]]:
    """Decode each prompt plainly and with every verifier; yield the state after each of them.

    The number of tokens a prompt is fixed before (or the text ends at EOS): a number of cycles, or
    a time, would depend on the tokens and spoil the PIT.
    """
    state = {name: Decoded() for name in (PLAIN, *PAPER)}
    for prompt in prompts:
        # In turn, so that a machine that slows down slows all of them.
        for name, row in state.items():
            for cycle in decode_as(
                name,
                target,
                drafter,
                prompt,
                topology=topology,
                filters=filters,
                max_new_tokens=tokens_a_prompt,
                generator=generator,
            ):
                record = cycle.record
                row.tokens += len(record.tokens)
                row.cycles += 1
                row.milliseconds += record.total_ms
                fresh = pit_of_cycle(cycle.drawn, cycle.output, record.tokens, generator)
                row.values += fresh.tolist()
            yield state
