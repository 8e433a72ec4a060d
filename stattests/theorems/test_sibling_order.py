"""SPEC 7: the order of siblings is free for UniVer if it is settled before grandchildren are drawn.

Every order of reference.sibling_order keeps the law exactly and gives the length that its recursion
says; an order that looks at what was drawn below does not keep the law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gpu_runs import sibling_order as on_models
from reference import enumeration, sibling_order
from reference.decision import Laws, StopLaw, TreeLike, stop_law_post_order
from reference.sibling_order import ORDERS, Lengths, Order, Place
from stattests.crosscheck.both import FLOAT64_TOLERANCE, drawn_batch
from stattests.strategies import Toy, toys
from stattests.theorems.checks import check_outputs
from stattests.theorems.test_planted_faults import POOL
from univer import Topology, stop_law

DRAFTING = sibling_order.DRAFTING
SMALL = toys(max_drafted=40, drafting=DRAFTING)
RULES = [name for name in ORDERS if name != "best"]  # which needs more than a tree shows


def stop_law_in(order: Order, tree: TreeLike, target: Any, draft: Any) -> StopLaw:
    """UniVer's stop law with siblings in another order."""
    laws = Laws.of(tree, target, draft)
    return stop_law_post_order(laws, sibling_order.visits(laws, order, 0, laws.one))


@pytest.mark.parametrize("name", RULES)
def test_every_settled_order_keeps_the_law(name: str) -> None:
    @settings(max_examples=30)
    @given(toy=SMALL)
    def keeps(toy: Toy) -> None:
        outputs = enumeration.output_law(
            lambda *tree: stop_law_in(ORDERS[name], *tree),
            DRAFTING,
            toy.topology,
            toy.target,
            toy.draft,
        )
        check_outputs(outputs, toy)

    keeps()


def test_an_order_that_looks_at_grandchildren_does_not() -> None:
    """Children whose own first child is an even token go first: the law is off."""
    toy = Toy(4, (-1, 0, 0, 1, 1, 2, 2), (((5, 3, 1, 1), (4, 3, 2, 1)),))

    def peeking(tree: TreeLike, target: Any, draft: Any) -> StopLaw:
        def order(place: Place) -> list[int]:
            if max(place.depths) == 0:
                return ORDERS["drawn"](place)
            below = [tree.tokens[tree.topology.children(u)[-1]] for u in tree.topology.children(0)]
            return sorted(range(len(place.masses)), key=lambda j: below[j] % 2)

        return stop_law_in(order, tree, target, draft)

    outputs = enumeration.output_law(peeking, DRAFTING, toy.topology, toy.target, toy.draft)
    with pytest.raises(AssertionError):
        check_outputs(outputs, toy)


@pytest.mark.parametrize("name", RULES)
def test_length_of_the_recursion_is_the_enumerated_one(name: str) -> None:
    @settings(max_examples=20)
    @given(toy=SMALL)
    def same(toy: Toy) -> None:
        arguments = (toy.topology, toy.target, toy.draft)
        exact = enumeration.expected_accepted(
            lambda *tree: stop_law_in(ORDERS[name], *tree), DRAFTING, *arguments
        )
        one = toy.target(())[0] * 0 + 1
        length = Lengths(*arguments, ORDERS[name]).of((), 0, one)
        assert length == exact
        assert length <= Lengths(*arguments, ORDERS["best"]).of((), 0, one)

    same()


@pytest.mark.parametrize("name", [name for name in on_models.ORDERS if name != "looked_ahead"])
def test_orders_on_model_trees_are_the_oracles(name: str) -> None:
    for parents in ((-1, 0, 0, 1, 1, 2, 2), (-1, 0, 0, 0, 1, 1, 3, 4), (-1, 0, 1, 1)):
        toy = Toy(4, parents, POOL)
        batch = drawn_batch(toy, DRAFTING, size=12)
        rows = batch.rows()
        ours = stop_law("univer", batch.draft_tree, *rows).expected_accepted.tolist()
        for b, tree in enumerate(batch.trees):
            judged = on_models.JudgedTree(
                toy.topology, tree.tokens, rows[0][b], rows[1][b]
            ).expected_accepted(on_models.ORDERS[name])
            exact = stop_law_in(ORDERS[name], tree, batch.target[b], batch.draft[b])
            assert abs(judged - float(exact.expected_accepted)) <= FLOAT64_TOLERANCE
            if name == "drawn":
                assert abs(judged - ours[b]) <= FLOAT64_TOLERANCE


def test_layer_mass_on_model_trees_is_equation_10() -> None:
    toy = Toy(4, (-1, 0, 0, 0, 1, 1), POOL)
    batch = drawn_batch(toy, DRAFTING, size=8)
    target, draft = batch.rows()
    for b, tree in enumerate(batch.trees):
        judged = on_models.JudgedTree(toy.topology, tree.tokens, target[b], draft[b])
        for node in (0, 1):
            for scale in (0.3, 1.0):
                row = toy.topology.internal.index(node)
                p, q = batch.target[b][node], batch.draft[b][row]
                arity = len(toy.topology.children(node))
                exact = sibling_order.accepted_mass(
                    scale, p.astype(np.float64), q.astype(np.float64), arity
                )
                if tree.tokens[node] >= 0:
                    assert abs(judged._layer_mass(node, scale) - exact) <= FLOAT64_TOLERANCE


def test_mirrored_tree_has_its_children_the_other_way_round() -> None:
    turned = on_models.mirrored(Topology.from_parents([-1, 0, 0, 1, 1, 3]))
    assert turned.parents == (-1, 0, 0, 2, 2, 4)
    assert torch.equal(torch.tensor(on_models.mirrored(turned).parents),
                       torch.tensor([-1, 0, 0, 1, 1, 3]))  # fmt: skip
