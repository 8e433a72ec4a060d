"""Theorem 3: the optimal transport rule is locally lossless at every scale.

For each node, each scale s in [0, 1] and every token t, averaged over the children drawn,
E[p_v(t)] = s p(t). It holds for the draft law it was made for, for children that are all fixed, and
when the first m - 1 children are drawn without replacement (SPEC 4).
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import univer
from stattests.strategies import Weights, fractions, law_pairs, scales
from stattests.theorems.checks import check_layer_is_locally_lossless, layer_masses

pairs = st.integers(2, 5).flatmap(law_pairs)


@pytest.mark.parametrize("drafting", ["top_residual", "without_replacement"])
@given(pair=pairs, scale=scales, arity=st.integers(1, 4))
def test_mean_mass_of_every_token_is_its_scaled_target(
    drafting: str, pair: tuple[Weights, Weights], scale: Fraction, arity: int
) -> None:
    target, draft = map(fractions, pair)
    check_layer_is_locally_lossless(univer, scale, target, draft, drafting, arity)


@given(pair=pairs, scale=scales, arity=st.integers(1, 4))
def test_fixed_children_alone_get_their_scaled_target(
    pair: tuple[Weights, Weights], scale: Fraction, arity: int
) -> None:
    target, draft = map(fractions, pair)
    children = [*range(min(arity, len(target))), -1]
    masses, rejected = layer_masses(univer, scale, target, draft, children)
    assert (masses == scale * target).all()
    assert rejected == 1 - scale
