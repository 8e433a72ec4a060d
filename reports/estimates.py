"""Means with errors that respect that cycles of one prompt are not independent.

Every number here is a ratio of sums, such as accepted tokens over cycles, and prompts are the
clusters: only they count as independent. To first order a ratio's error is a sum of one influence a
prompt,

    influence_c = (y_c - r n_c) / n        y_c, n_c: the prompt's sums; r = y / n: the ratio
    error^2 = C / (C - 1) sum_c influence_c^2        C: number of prompts

(the clustered sandwich of a mean; a cluster bootstrap over prompts tends to the same). Influences
add up, so that the error of a difference or a quotient is paired by prompt without more ado: of two
verifiers in the same contexts, in two texts of the same prompt, or of two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, nan, sqrt

from scipy.stats import t as student

LEVEL = 0.95  # of the intervals
ROUNDING = 1e-9  # a difference of equal sums that are added up in another order


@dataclass(frozen=True)
class Estimate:
    """A number with the influence of each prompt on it.

    value: the number.
    influence: prompt -> its share of the deviation.
    n: cycles (or tokens) behind it.
    """

    value: float
    influence: Mapping[str, float]
    n: int

    @property
    def prompts(self) -> int:
        """Number of clusters."""
        return len(self.influence)

    @cached_property
    def error(self) -> float:
        """Standard error; nan with fewer than two prompts."""
        if self.prompts < 2:
            return nan
        squares = sum(part**2 for part in self.influence.values())
        return sqrt(self.prompts / (self.prompts - 1) * squares)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both ends, from Student's t with prompts - 1 degrees of freedom; infinite without any."""
        half = self.half(level)
        return self.value - half, self.value + half

    def span(self, form: str = "+.3f") -> str:
        """The interval in words.

        Example:
            >>> ratio({"a": (2.0, 2.0)}).span()
            'unknown: one prompt'
        """
        low, high = self.interval()
        return f"{low:{form}} to {high:{form}}" if isfinite(low) else "unknown: one prompt"

    def half(self, level: float = LEVEL) -> float:
        """Half the interval's length."""
        if not isfinite(self.error):
            return inf
        return float(student.isf((1 - level) / 2, self.prompts - 1)) * self.error


def ratio(sums: Mapping[str, tuple[float, float]], shift: float = 0.0) -> Estimate:
    """The ratio of two sums over prompts, plus a constant.

    Args:
        sums: prompt -> its two sums.
        shift: what is added to the ratio: 1 for the next token.

    Example:
        >>> lengths = ratio({"a": (2.0, 2.0), "b": (6.0, 2.0)})
        >>> lengths.value, lengths.error, lengths.n
        (2.0, 1.0, 4)
    """
    above = sum(y for y, _ in sums.values())
    below = sum(n for _, n in sums.values())
    if below <= 0:
        return Estimate(nan, {}, 0)
    mean = above / below
    influence = {prompt: (y - mean * n) / below for prompt, (y, n) in sums.items()}
    return Estimate(mean + shift, influence, round(below))


def difference(ours: Estimate, theirs: Estimate) -> Estimate:
    """Ours less theirs, paired by prompt.

    Example:
        >>> a = ratio({"x": (1.0, 1.0), "y": (3.0, 1.0)})
        >>> b = ratio({"x": (0.0, 1.0), "y": (2.0, 1.0)})
        >>> gain = difference(a, b)
        >>> gain.value, gain.error
        (1.0, 0.0)
    """
    return _linear(ours.value - theirs.value, ours, theirs, 1.0, -1.0)


def quotient(ours: Estimate, theirs: Estimate) -> Estimate:
    """Ours over theirs, paired by prompt.

    Example:
        >>> quotient(ratio({"x": (4.0, 1.0)}), ratio({"x": (2.0, 1.0)})).value
        2.0
    """
    if not theirs.value:
        return Estimate(nan, {}, 0)
    value = ours.value / theirs.value
    return _linear(value, ours, theirs, 1 / theirs.value, -value / theirs.value)


def _linear(value: float, a: Estimate, b: Estimate, by_a: float, by_b: float) -> Estimate:
    influence = {
        prompt: by_a * a.influence.get(prompt, 0.0) + by_b * b.influence.get(prompt, 0.0)
        for prompt in {**a.influence, **b.influence}
    }
    return Estimate(value, influence, min(a.n, b.n))
