"""The draft laws of SPEC 3, one node at a time: draw the children, or list all of them.

| law | first m - 1 children | last child |
|---|---|---|
| `top_residual` | the m - 1 most probable (ties: the lower id), fixed | drawn from the rest |
| `without_replacement` | drawn one after another, each without the earlier ones | likewise |

An absent child is -1; absent children come last.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from reference.laws import Law, Number, as_laws, inverse_cdf, normalise, one, without

DRAFTING = ("top_residual", "without_replacement")


def _fixed(drafting: str, law: Law, arity: int) -> list[int]:
    """The children that are known before anything is drawn."""
    if drafting not in DRAFTING:
        raise ValueError(f"drafting: {drafting!r} is unknown; choose one of {', '.join(DRAFTING)}.")
    if drafting == "without_replacement":
        return []
    return sorted(range(len(law)), key=lambda token: (-law[token], token))[: arity - 1]


def draft_children(drafting: str, law: ArrayLike, arity: int, uniforms: ArrayLike) -> list[int]:
    """Children [m] drawn with uniforms [m]; slot j uses uniforms[j] where it is drawn at all.

    Example:
        >>> draft_children("top_residual", np.array([0.5, 0.1, 0.4]), 2, [0.9, 0.9])
        [0, 2]
    """
    law, eta = as_laws(law), np.asarray(uniforms)
    children = _fixed(drafting, law, arity)
    while len(children) < arity:
        token = -1
        if len(children) < len(law):
            slot = arity - 1 if drafting == "top_residual" else len(children)
            token = inverse_cdf(without(law, *children), eta[slot])
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
        rest = normalise(without(law, *children))
        if len(children) == arity or not rest.sum() > 0:
            yield children + [-1] * (arity - len(children)), prob
            return
        for token in np.flatnonzero(rest > 0):
            yield from extend([*children, int(token)], prob * rest[token])

    yield from extend(_fixed(drafting, law, arity), one(law))
