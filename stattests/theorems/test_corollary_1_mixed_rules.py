"""Corollary 1: losslessness asks nothing of the rules but local losslessness.

The rule may differ from node to node, the composition may be local or conditional, and the text may
go on with another verifier after each cycle: the output still follows the target's law.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from reference import enumeration
from stattests.strategies import Toy, topologies, toys
from stattests.theorems.checks import check_outputs
from stattests.theorems.invented import Allocate, composed, ignoring, inventions, transport
from univer import PAPER


@pytest.mark.parametrize("composition", ["conditional", "local"])
@given(data=st.data())
def test_rules_mixed_over_the_nodes_are_lossless(composition: str, data: st.DataObject) -> None:
    toy = data.draw(toys(max_drafted=40, drafting="top_residual"))
    rules: list[Allocate] = [transport, data.draw(inventions("top_residual")), ignoring]
    outputs = enumeration.output_law(
        composed(rules, composition), "top_residual", toy.topology, toy.target, toy.draft
    )
    check_outputs(outputs, toy)


@pytest.mark.parametrize("second", sorted(PAPER))
@pytest.mark.parametrize("first", ["rrsw", "univer"])
@given(toy=toys(shapes=topologies(max_nodes=4, max_arity=2), max_drafted=20))
def test_text_of_two_cycles_follows_the_target(first: str, second: str, toy: Toy) -> None:
    def cycle(name: str, prefix: tuple[int, ...]) -> enumeration.Outputs:
        module = reference.VERIFIERS[name]
        return enumeration.output_law(
            module.stop_law,
            module.DRAFTING,
            toy.topology,
            lambda after: toy.target(prefix + after),
            lambda after: toy.draft(prefix + after),
        )

    text: enumeration.Outputs = defaultdict(int)
    for tokens, prob in cycle(first, ()).items():
        for more, chance in cycle(second, tokens).items():
            text[tokens + more] += prob * chance
    assert enumeration.conditional_violations(dict(text), toy.target) == []
