"""Hugging Face's logits processors as a law's shape, the same for draft and target.

A processor that looks at one row of scores alone is a filter: it can be applied to every node of a
tree at once. One that looks at the text (a repetition penalty, a minimal length) would have to be
told of each node's path, and is refused.

Letters: n rows, V vocabulary; "..." any batch axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process

from univer.errors import InputError
from univer.filters import Filters

# Exact types: a subclass may look at the text after all.
FILTERS: tuple[type, ...] = (
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.TopHLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
)


@dataclass(frozen=True)
class ProcessorFilters:
    """The law that `generate` would draw from: its processors in their order, then softmax.

    Args:
        processors: filters, as `as_filters` lets through; ties are theirs to break.
        greedy: whether the best token is taken instead of a draw.
    """

    processors: tuple[Any, ...]
    greedy: bool

    def __call__(self, logits: Tensor) -> Tensor:
        """The law of these logits [..., V]: float64 for float64 logits, else float32."""
        rows = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
        rows = rows.reshape(-1, logits.shape[-1])
        no_text = torch.empty(len(rows), 0, dtype=torch.int64, device=rows.device)
        for processor in self.processors:
            rows = processor(no_text, rows)
        return Filters(temperature=0.0 if self.greedy else 1.0)(rows).view(logits.shape)


def as_filters(processors: Iterable[Any], *, greedy: bool) -> ProcessorFilters:
    """These processors as one shape.

    Args:
        processors: those of FILTERS, and others whose attribute `row_wise` is True: a promise that
            they look at each row of scores alone and not at the text.
        greedy: as in `ProcessorFilters`.

    Raises:
        InputError: names a processor that is not a filter.
    """
    given = tuple(processors)
    for processor in given:
        if type(processor) not in FILTERS and getattr(processor, "row_wise", False) is not True:
            raise InputError(
                f"logits_processor: {type(processor).__name__} is not known to look at each row of"
                " scores alone; speculative decoding takes filters (temperature, top-k, top-p,"
                " min-p and the like) and processors that set row_wise = True."
            )
    return ProcessorFilters(given, greedy)
