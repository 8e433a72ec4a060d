"""Theorem 5: the optimal transport rule accepts as much of one layer as any lossless rule can.

Its expected accepted mass is Eq. 10, the sum over the top m - 1 tokens of s p plus the sum over all
tokens of min(s p, q'), and that is the optimum of the linear programme over every locally lossless
allocation for the same draft law. The first equality is exact, the second within HiGHS's accuracy.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from reference import univer
from stattests.strategies import Weights, fractions, law_pairs, scales
from stattests.theorems.checks import check_layer_is_optimal


@given(pair=st.integers(2, 5).flatmap(law_pairs), scale=scales, arity=st.integers(1, 4))
def test_accepted_mass_is_the_optimum(
    pair: tuple[Weights, Weights], scale: Fraction, arity: int
) -> None:
    target, draft = map(fractions, pair)
    check_layer_is_optimal(univer, scale, target, draft, arity)
