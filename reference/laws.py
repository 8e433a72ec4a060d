"""Arithmetic on laws that is exact for fractions and plain for floats.

A law is a NumPy array [V] of float64 or of `fractions.Fraction` (dtype object).
"""

from __future__ import annotations

from fractions import Fraction
from numbers import Rational, Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Law: TypeAlias = NDArray[Any]  # [V], float64 or object
Number: TypeAlias = Any  # float or Fraction


def as_laws(values: ArrayLike) -> Law:
    """Floats become float64; fractions and whole numbers become fractions.

    Two whole numbers divide to a float, so an int among fractions would end the exactness; and a
    fraction made of NumPy integers would overflow where Python's do not.

    Example:
        >>> as_laws(np.array([Fraction(1, 3), 1], dtype=object))
        array([Fraction(1, 3), Fraction(1, 1)], dtype=object)
    """
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    flat = np.empty(array.size, dtype=object)
    flat[:] = [exact(value) for value in array.flat]
    return flat.reshape(array.shape)


def exact(value: Any) -> Fraction:
    """A number as a fraction of Python integers; floats by their exact binary value."""
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(float(value)) if isinstance(value, Real) else Fraction(int(value))


def one(law: Law) -> Number:
    """The number 1 of the law's own kind."""
    return Fraction(1) if law.dtype == object else 1.0


def positive_part(values: Law) -> Law:
    """[z]+ = max(z, 0), entry by entry."""
    return np.where(values > 0, values, values * 0)


def normalise(weights: Law) -> Law:
    """Weights over their sum; without mass they stay 0."""
    mass = weights.sum()
    return weights / mass if mass > 0 else weights


def without(law: Law, *tokens: int) -> Law:
    """The law with the entries of these tokens set to 0, not renormalised."""
    kept = law.copy()
    for token in tokens:
        kept[token] = law[token] * 0
    return kept


def ratio(numerator: Number, denominator: Number) -> Number:
    """Quotient of non-negative numbers capped at 1, with x/0 = 1 for x > 0 and 0/0 = 0 (SPEC 3)."""
    if numerator <= 0:
        return numerator * 0
    return (numerator * 0 + 1) if numerator >= denominator else numerator / denominator


def share_out(reached: Number, surplus: Law, s: Number) -> tuple[Law, Number]:
    """What is reached when all children failed, as residual and rejection mass.

    In proportion to the surplus, the part of s p that no draws are turned into, and to 1 - s.
    """
    failed = surplus.sum() + (1 - s)
    share = reached / failed if failed > 0 else reached * 0
    return surplus * share, (1 - s) * share


def inverse_cdf(weights: Law, uniform: Number) -> int:
    """The first id whose cumulative weight exceeds uniform x total; -1 if nothing has weight.

    Example:
        >>> inverse_cdf(np.array([0.0, 1.0, 0.0, 3.0]), 0.25)
        3
    """
    cumulative = np.cumsum(weights)
    threshold = (exact(uniform) if weights.dtype == object else uniform) * cumulative[-1]
    positive = [token for token, weight in enumerate(weights) if weight > 0]
    # The last positive id is the answer where uniform x total rounds up to the total.
    return next(
        (t for t in positive if cumulative[t] > threshold), positive[-1] if positive else -1
    )
