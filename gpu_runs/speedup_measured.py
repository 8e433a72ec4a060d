"""Tokens a second as they are: our own loop, and Hugging Face's with or without an assistant.

The first cycle of a text reads the prompt; it is left out everywhere, its tokens and its time.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from gpu_runs.models import quiet
from univer import Filters, Topology
from univer.decoding import decode


@dataclass(frozen=True)
class Measured:
    """What some texts took: tokens, cycles (forwards of the target) and milliseconds."""

    tokens: int = 0
    cycles: int = 0
    milliseconds: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.tokens + other.tokens,
            self.cycles + other.cycles,
            self.milliseconds + other.milliseconds,
        )

    @property
    def length(self) -> float:
        """Tokens a cycle, the next token counted; nan before the first cycle."""
        return self.tokens / self.cycles if self.cycles else torch.nan

    @property
    def tokens_per_second(self) -> float:
        """Speed; nan before the first cycle."""
        return 1e3 * self.tokens / self.milliseconds if self.cycles else torch.nan


def ours(
    target: Any,
    drafter: Any,
    prompt: Sequence[int],
    topology: Topology,
    *,
    verifier: str,
    filters: Filters,
    tokens: int,
    generator: torch.Generator,
) -> Measured:
    """One text by `univer.decoding.decode`."""
    cycles = decode(
        target,
        drafter,
        prompt,
        verifier=verifier,
        topology=topology,
        filters=filters,
        max_new_tokens=tokens,
        generator=generator,
    )
    records = [cycle.record for cycle in cycles][1:]
    emitted = sum(len(record.tokens) for record in records)
    return Measured(emitted, len(records), sum(record.total_ms for record in records))


class Laps(StoppingCriteria):
    """Stops nothing; notes the text's length and the time after every cycle."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        """Whether each text ends: no."""
        del scores, kwargs
        if input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)
        self.marks.append((input_ids.shape[1], time.perf_counter()))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def hugging_face(
    target: Any,
    prompt: Sequence[int],
    *,
    assistant: Any = None,
    drafts: int = 0,
    filters: Filters,
    tokens: int,
    seed: int,
) -> Measured:
    """One text by the target's own `generate`.

    Args:
        target: a causal LM.
        prompt: token ids.
        assistant: None for plain decoding; else a causal LM that drafts a chain for it.
        drafts: how many tokens it drafts every time.
        filters: temperature, top-k and top-p of them are used.
        tokens: the budget.
        seed: of torch's global generator, which is left as it was.
    """
    if assistant is not None:
        assistant = copy.copy(assistant)  # its own configuration, the same weights
        own = assistant.generation_config = copy.deepcopy(assistant.generation_config)
        own.num_assistant_tokens, own.num_assistant_tokens_schedule = drafts, "constant"
        own.assistant_confidence_threshold = 0.0
    sampled: dict[str, Any] = {"do_sample": filters.temperature > 0}
    if filters.temperature > 0:
        sampled |= {"temperature": float(filters.temperature), "top_p": float(filters.top_p)}
        sampled["top_k"] = filters.top_k
    ids, laps = torch.tensor([list(prompt)], device=target.device), Laps()
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(seed)
        target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=assistant,
            max_new_tokens=tokens,
            stopping_criteria=StoppingCriteriaList([laps]),
            **sampled,
        )
    (first, start), (last, end) = laps.marks[0], laps.marks[-1]
    return Measured(last - first, len(laps.marks) - 1, 1e3 * (end - start))
