"""The toys on which every verifier is measured against the best possible: what the numbers are.

And one that they showed, in fractions: SpecHub accepts as many tokens as Greedy, exactly, where
siblings have subtrees of one shape and the composition is local.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import VERIFIERS, toy_optima
from reference import toys as reference_toys
from reference.enumeration import expected_accepted
from reference.optimum import tree_optimum
from stattests.strategies import Toy, toys
from stattests.theorems.checks import LP_TOLERANCE
from stattests.theorems.test_planted_faults import POOL
from univer import Topology

# A pair in each node, or one child: the subtrees of siblings have one shape.
ALIKE = [(-1, 0, 0), (-1, 0, 1, 1), (-1, 0, 0, 1, 2), (-1, 0, 0, 1, 1, 2, 2)]
UNLIKE = [(-1, 0, 0, 1), (-1, 0, 0, 2)]


def test_numbers_of_a_toy_are_those_of_the_enumeration() -> None:
    name, shape = "first:2", reference_toys.SHAPES["first:2"]
    target, draft = reference_toys.toy(name, 2)
    laws: dict[str, list[str]] = {}
    for key, verifier in toy_optima.measured().items():
        laws.setdefault(verifier.DRAFTING, []).append(key)
    for drafting, names in laws.items():
        own = {key: toy_optima.measured()[key] for key in names if "block" not in key}
        own.pop("token_verification", None)
        found = toy_optima.accepted(name, own, target, draft)
        best = tree_optimum(drafting, shape.topology, target, draft)
        for key, verifier in own.items():
            exact = expected_accepted(verifier.stop_law, drafting, shape.topology, target, draft)
            assert found[key] == pytest.approx(exact, abs=1e-12)
            assert exact <= best + LP_TOLERANCE


def test_laws_of_a_toy_do_not_depend_on_who_asks_first() -> None:
    (target, draft), (again, drafted) = reference_toys.toy("2x1", 0), reference_toys.toy("2x1", 0)
    assert (draft(()) == drafted(())).all()
    assert (drafted((1,)) == draft((1,))).all()
    assert (target((3,)) == again((3,))).all()
    assert (again(()) == target(())).all()


def length(name: str, toy: Toy) -> object:
    verifier = VERIFIERS[name]
    return expected_accepted(
        verifier.stop_law, verifier.DRAFTING, toy.topology, toy.target, toy.draft
    )


@settings(max_examples=40)
@given(data=st.data())
def test_spechub_is_as_long_as_greedy_where_siblings_are_alike(data: st.DataObject) -> None:
    shapes = st.sampled_from(ALIKE).map(Topology)
    toy = data.draw(toys(shapes, drafting="spechub_pairs"))
    assert length("spechub", toy) == length("greedy", toy)


@pytest.mark.parametrize("parents", UNLIKE, ids=["first", "last"])
def test_spechub_is_not_as_long_where_one_sibling_has_more_below_it(
    parents: tuple[int, ...],
) -> None:
    toy = Toy(4, parents, POOL)
    assert length("spechub", toy) != length("greedy", toy)


def test_spechub_is_not_univer_once_a_scale_is_passed_down() -> None:
    """Both keep as much of one layer, at every scale, but not of the same children in turn."""
    toy = Toy(4, (-1, 0, 0, 1, 2), POOL)
    assert length("spechub_conditional", toy) != length("univer", toy)
