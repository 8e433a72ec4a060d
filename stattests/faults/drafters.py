"""Draft laws that are not those of DRAFTING, each as the list of its outcomes.

`(law [V], arity) -> [(children, probability)]`; -1 is an absent child.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from univer import DRAFTING

Law = NDArray[np.float64]
Listed = list[tuple[list[int], float]]


best = DRAFTING["top"].outcomes
with_replacement = DRAFTING["with_replacement"].outcomes


def _ranked(law: Law) -> list[int]:
    return sorted(range(len(law)), key=lambda token: (-law[token], token))


def without_replacement(weights: Law, arity: int) -> Listed:
    """Drawn one by one, each without the earlier ones."""
    return DRAFTING["without_replacement"].outcomes(weights / weights.sum(), arity)


def same_again(law: Law, arity: int) -> Listed:
    """Drawn once, and every sibling is that token."""
    return [(children * arity, chance) for children, chance in with_replacement(law, 1)]


def hub_first(law: Law, arity: int) -> Listed:
    """The most probable token, then the others drawn without it."""
    (hub,), rest = _ranked(law)[:1], law.copy()
    rest[hub] = 0
    if rest.sum() <= 0 or arity == 1:
        return [([hub] + [-1] * (arity - 1), 1.0)]
    return [([hub, *others], chance) for others, chance in without_replacement(rest, arity - 1)]


def warm(law: Law, arity: int) -> Listed:
    """Drawn at temperature 0.7."""
    return without_replacement(law ** (1 / 0.7), arity)


def top_two(law: Law, arity: int) -> Listed:
    """Drawn from the two most probable tokens."""
    kept = np.zeros_like(law)
    kept[_ranked(law)[:2]] = 1
    return without_replacement(law * kept, arity)


def nucleus(law: Law, arity: int) -> Listed:
    """Drawn from the smallest set of tokens that holds 0.7 of the mass."""
    ranked = _ranked(law)
    kept = np.zeros_like(law)
    kept[ranked[: int((law[ranked].cumsum() < 0.7).sum()) + 1]] = 1
    return without_replacement(law * kept, arity)


def merged(law: Law, arity: int) -> Listed:
    """Drawn independently, twins dropped."""
    chances: dict[tuple[int, ...], float] = defaultdict(float)
    for children, chance in with_replacement(law, arity):
        distinct = list(dict.fromkeys(children))
        chances[(*distinct, *[-1] * (arity - len(distinct)))] += chance
    return [(list(children), chance) for children, chance in chances.items()]


def only_if_sure(law: Law, arity: int) -> Listed:
    """No children at all where the draft law is unsure."""
    return without_replacement(law, arity) if law.max() >= 0.5 else [([-1] * arity, 1.0)]


def top_residual(law: Law, arity: int) -> Listed:
    """The outcomes of `numpy_top_residual`."""
    return DRAFTING["top_residual"].outcomes(law, arity)


def numpy_top_residual(draft_probs: Tensor, arity: int, uniforms: Tensor) -> Tensor:
    """`top_residual` as somebody else would write it."""
    rest = draft_probs.numpy().copy()
    top = np.argsort(-rest, axis=1, kind="stable")[:, : arity - 1]
    np.put_along_axis(rest, top, 0, axis=1)
    cumulative = rest.cumsum(1)
    exceeds = cumulative > uniforms[:, -1:].numpy() * cumulative[:, -1:]
    last = np.where(exceeds.any(1), exceeds.argmax(1), -1)
    return torch.from_numpy(np.column_stack([top, last]))
