"""Theorem 6: on the same draft trees, UniVer accepts at least as many tokens as Greedy.

E[N_UniVer] >= E[N_Greedy], averaged over trees drawn with `top_residual`. It says nothing of RRSw
and Traversal, whose trees are drawn differently (SPEC 7).
"""

from __future__ import annotations

from hypothesis import given

from reference import greedy, univer
from stattests.strategies import Toy, toys
from stattests.theorems.checks import check_univer_accepts_at_least_greedy


@given(toy=toys(drafting="top_residual"))
def test_expected_accepted_is_at_least_greedys(toy: Toy) -> None:
    check_univer_accepts_at_least_greedy(univer, greedy, toy)
