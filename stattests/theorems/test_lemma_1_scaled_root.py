"""Lemma 1: a UniVer tree whose root is kept with probability s earns at least its share.

With any root scale s in [0, 1], E[N_Mod] >= s E[N_Greedy]: the induction step of Theorem 6.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given

from reference import greedy, univer
from stattests.strategies import Toy, scales, toys
from stattests.theorems.checks import check_scaled_univer_accepts_at_least_its_share


@given(toy=toys(drafting="top_residual"), scale=scales)
def test_scaled_tree_accepts_at_least_its_share(toy: Toy, scale: Fraction) -> None:
    check_scaled_univer_accepts_at_least_its_share(univer, greedy, toy, scale)
