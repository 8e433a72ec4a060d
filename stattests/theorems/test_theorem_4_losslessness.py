"""Theorem 4: a locally lossless allocation, composed over the tree, makes a lossless verifier.

Shown for every verifier of the grid and for randomly invented allocations in both compositions, in
both forms of SPEC 6: every prefix that the output passes is followed by the target's law, and the
joint law of the first D + 1 tokens is the target's.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from reference import enumeration
from reference.drafting import children_law
from reference.laws import Law
from stattests.strategies import Weights, for_toys, fractions, law_pairs, scales, toys
from stattests.theorems.checks import check_output_law, check_outputs
from stattests.theorems.invented import Invented, composed, inventions
from univer import VERIFIERS

DRAFT_LAWS = ["top_residual", "without_replacement"]


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_output_law_is_target_exactly(name: str) -> None:
    for_toys(name, lambda toy: check_output_law(reference.VERIFIERS[name], toy))


@pytest.mark.parametrize("composition", ["conditional", "local"])
@pytest.mark.parametrize("drafting", DRAFT_LAWS)
@given(data=st.data())
def test_invented_allocation_is_lossless(
    drafting: str, composition: str, data: st.DataObject
) -> None:
    toy, rule = data.draw(toys(max_drafted=40, drafting=drafting)), data.draw(inventions(drafting))
    outputs = enumeration.output_law(
        composed([rule], composition), drafting, toy.topology, toy.target, toy.draft
    )
    check_outputs(outputs, toy)


@given(
    pair=law_pairs(4),
    scale=scales,
    arity=st.integers(1, 3),
    rule=st.sampled_from(DRAFT_LAWS).flatmap(inventions),
)
def test_invented_allocation_is_locally_lossless(
    pair: tuple[Weights, Weights], scale: Fraction, arity: int, rule: Invented
) -> None:
    target, draft = map(fractions, pair)
    mean: Law = fractions((1,) * 5) * 0
    for children, chance in children_law(rule.drafting, draft, arity):
        masses = rule(scale, target, draft, children)
        assert (masses >= 0).all()
        assert masses.sum() == 1
        mean = mean + chance * masses
    assert (mean[:-1] == scale * target).all()
