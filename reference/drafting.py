"""The draft laws of SPEC 3, one node at a time: draw the children, or list all of them.

| law | children of a node |
|---|---|
| `top_residual` | the m - 1 most probable (ties: the lower id), one drawn from the rest |
| `without_replacement` | drawn one after another, each without the earlier ones |
| `with_replacement` | drawn independently of each other |
| `top` | the m most probable |
| `spechub_pairs` | one drawn, then the most probable; if that is it, one drawn from the rest |

An absent child is -1; absent children come last.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from reference.laws import Law, Number, as_laws, inverse_cdf, normalise, one, without

DRAFTING = ("top_residual", "without_replacement", "with_replacement", "top", "spechub_pairs")
WHOLE = ("spechub_pairs",)  # draw all of a node's children together: some of them have another law


def _next(drafting: str, law: Law, arity: int, children: list[int]) -> tuple[Law, int]:
    """The law [V] of the next child after these, and the slot whose number draws it."""
    if drafting not in DRAFTING:
        raise ValueError(f"drafting: {drafting!r} is unknown; choose one of {', '.join(DRAFTING)}.")
    slot, ranked = len(children), sorted(range(len(law)), key=lambda t: (-law[t], t))
    fixed = {"top_residual": ranked[: arity - 1], "top": ranked[:arity]}.get(drafting, [])
    if drafting == "spechub_pairs" and slot == 1 and children[0] != ranked[0]:
        fixed = [children[0], ranked[0]]
    if slot < len(fixed):
        sure = law * 0
        sure[fixed[slot]] = one(law)
        return sure, slot
    earlier = [] if drafting == "with_replacement" else children
    return normalise(without(law, *earlier)), slot


def draft_children(drafting: str, law: ArrayLike, arity: int, uniforms: ArrayLike) -> list[int]:
    """Children [m] drawn with uniforms [m]; slot j uses uniforms[j] where it is drawn at all.

    Example:
        >>> draft_children("top_residual", np.array([0.5, 0.1, 0.4]), 2, [0.9, 0.9])
        [0, 2]
    """
    law, eta = as_laws(law), np.asarray(uniforms)
    children: list[int] = []
    while len(children) < arity:
        rest, slot = _next(drafting, law, arity, children)
        token = inverse_cdf(rest, eta[slot])
        if token < 0:
            break
        children.append(token)
    return children + [-1] * (arity - len(children))


def children_law(drafting: str, law: ArrayLike, arity: int) -> Iterator[tuple[list[int], Number]]:
    """Every outcome of draft_children that has probability, with its probability.

    Example:
        >>> from fractions import Fraction
        >>> law = np.array([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)])
        >>> for children, prob in children_law("top_residual", law, 2):
        ...     print(children, prob)
        [0, 1] 2/3
        [0, 2] 1/3
    """
    law = as_laws(law)

    def extend(children: list[int], prob: Number) -> Iterator[tuple[list[int], Number]]:
        rest = law * 0 if len(children) == arity else _next(drafting, law, arity, children)[0]
        if not rest.sum() > 0:
            yield children + [-1] * (arity - len(children)), prob
            return
        for token in np.flatnonzero(rest > 0):
            yield from extend([*children, int(token)], prob * rest[token])

    yield from extend([], one(law))
