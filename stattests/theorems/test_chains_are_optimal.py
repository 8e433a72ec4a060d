"""Chains: UniVer = Traversal = Block Verification = the whole-tree optimum.

With one child a node both draft laws are the same, and so are both conditional verifiers, stop law
by stop law; their expected length is Block Verification's by its own formulas and the largest that
any lossless verifier reaches (linear programme over whole trees).
"""

from __future__ import annotations

from hypothesis import given

from reference import traversal, univer
from stattests.strategies import Toy, chains, toys
from stattests.theorems.checks import check_chain


@given(toy=toys(shapes=chains()))
def test_univer_is_traversal_and_the_optimum(toy: Toy) -> None:
    check_chain(univer, traversal, toy)
