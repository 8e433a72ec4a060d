"""From logits to a law: temperature, top-k, top-p, min-p; one chain for draft and target alike.

The order is temperature, top-k, top-p, min-p, each on the law that the one before left. Ties are
broken by the lower token id, so that a filter keeps exactly as many tokens as it says.

Letters: V vocabulary; "..." any batch axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol

import torch
from torch import Tensor

from univer.errors import InputError, described
from univer.rows import normalise


class Shaping(Protocol):
    """How logits become the law that is sampled and verified: `Filters`, or anything alike."""

    @property
    def greedy(self) -> bool:
        """Whether the law is the one-hot limit, so that drafts are ranked by logits."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The law of these logits [..., V], row by row, in float32 or float64."""


@dataclass(frozen=True)
class Filters:
    """How logits become the law that is sampled and verified.

    Args:
        temperature: >= 0; 0 is the limit, all mass on the largest logit (ties: the lowest id).
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the fewest most probable tokens that have this mass together; 1 keeps all.
        min_p: keep tokens with at least this share of the largest probability; 0 keeps all.

    Raises:
        InputError: a value out of its range.

    Example:
        >>> Filters(top_k=2)(torch.tensor([0.0, 1.0, 1.0, 1.0]))
        tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "min_p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InputError(f"{name}: expected a number, got {value!r}.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature: expected a number >= 0, got {self.temperature!r}.")
        if not (isinstance(self.top_k, Integral) and self.top_k >= 0):
            raise InputError(f"top_k: expected an integer >= 0 (0: off), got {self.top_k!r}.")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p: expected a number in (0, 1] (1: off), got {self.top_p!r}.")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p: expected a number in [0, 1] (0: off), got {self.min_p!r}.")

    @property
    def greedy(self) -> bool:
        """Whether the law is the one-hot limit, so that drafts are ranked by logits."""
        return self.temperature == 0

    @property
    def only_temperature(self) -> bool:
        """Whether no token is filtered out."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0

    def divisor(self, dtype: torch.dtype) -> float:
        """The temperature, within the positive numbers of a dtype."""
        return min(max(self.temperature, torch.finfo(dtype).tiny), torch.finfo(dtype).max)

    def __call__(self, logits: Tensor) -> Tensor:
        """The law of these logits [..., V]: float64 for float64 logits, else float32."""
        if not isinstance(logits, Tensor) or logits.ndim == 0 or logits.shape[-1] == 0:
            raise InputError(f"logits: expected a tensor [..., V], got {described(logits)}.")
        logits = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
        if self.greedy:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        if self.temperature != 1:
            # Subtracting first keeps the coldest laws finite: the largest logit becomes 0.
            logits = logits - logits.amax(-1, keepdim=True)
            logits.div_(self.divisor(logits.dtype))
        probs = logits.softmax(-1)
        if 0 < self.top_k < logits.shape[-1] or self.top_p < 1:
            probs = self._keep_top(probs)
        if self.min_p > 0:
            floor = self.min_p * probs.amax(-1, keepdim=True)
            probs = normalise(torch.where(probs >= floor, probs, 0.0))
        return probs

    def _keep_top(self, probs: Tensor) -> Tensor:
        ordered, ids = probs.sort(dim=-1, descending=True, stable=True)  # ties: lower id
        if self.top_k:
            ordered = normalise(
                torch.where(
                    torch.arange(probs.shape[-1], device=probs.device) < self.top_k, ordered, 0.0
                )
            )
        if self.top_p < 1:
            before = ordered.cumsum(-1, dtype=torch.float64) - ordered
            ordered = normalise(torch.where(before < self.top_p, ordered, 0.0))
        return torch.zeros_like(probs).scatter_(-1, ids, ordered)
