"""The law that a drafter returns is the law it drew from: torch's draws are the oracle's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import drafting as oracle
from stattests.crosscheck.both import LARGEST
from stattests.strategies import Toy, Weights, fractions, toys, weights
from stattests.streams import numpy_generator, torch_generator
from univer import DRAFTING, draft_children, draft_tree

NAMES = sorted(DRAFTING)


@pytest.mark.parametrize("name", NAMES)
@given(law=st.integers(2, 6).flatmap(weights), arity=st.integers(1, 5))
def test_children_equal_the_oracles(name: str, law: Weights, arity: int) -> None:
    uniforms = numpy_generator(f"{law}/{arity}").random((8, arity))
    uniforms[:3] = np.array([[0.0], [LARGEST], [2**-24]])
    probs = fractions(law).astype(np.float64)
    ours = draft_children(name, torch.tensor(np.tile(probs, (8, 1))), arity, torch.tensor(uniforms))
    for row, eta in zip(ours.tolist(), uniforms, strict=True):
        assert row == oracle.draft_children(name, probs, arity, eta)
        drawn = [token for token in row if token >= 0]
        assert len(set(drawn)) == len(drawn)
        assert row == drawn + [-1] * (arity - len(drawn))


@pytest.mark.parametrize(("name", "arities"), [("top_residual", 4), ("without_replacement", 2)])
@given(data=st.data(), law=st.integers(2, 5).flatmap(weights))
def test_children_come_in_the_proportions_of_their_law(
    name: str, arities: int, data: st.DataObject, law: Weights
) -> None:
    """The midpoints of a fine grid of uniforms land on the outcomes as often as they should."""
    arity = data.draw(st.integers(1, arities))
    outcomes = list(oracle.children_law(name, fractions(law), arity))
    assert sum(chance for _, chance in outcomes) == 1
    slots = arity if name == "without_replacement" else 1  # of a fixed child nothing is drawn
    steps = 4096 if slots == 1 else 128
    mesh = np.stack(np.meshgrid(*[(np.arange(steps) + 0.5) / steps] * slots), -1)
    uniforms = np.zeros((steps**slots, arity))
    uniforms[:, arity - slots :] = mesh.reshape(-1, slots)
    probs = np.tile(fractions(law).astype(np.float64), (len(uniforms), 1))
    drawn = draft_children(name, torch.tensor(probs), arity, torch.tensor(uniforms)).tolist()
    for children, chance in outcomes:
        share = sum(row == children for row in drawn) / len(drawn)
        # An outcome is an interval in each slot; its midpoints miss its length by 1 / steps.
        assert abs(share - float(chance)) <= slots / steps


@pytest.mark.parametrize("name", NAMES)
def test_at_temperature_0_the_children_are_the_top_logits(name: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, -torch.inf]])
    one_hot = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])
    uniforms = torch.full((1, 4), 0.7, dtype=torch.float64)
    children = draft_children(name, one_hot, 4, uniforms, scores=logits)
    assert children.tolist() == [[1, 3, 2, 0]]
    without = draft_children(name, one_hot, 4, uniforms)
    assert without.tolist() == [[1, 0, 2, -1] if name == "top_residual" else [1, -1, -1, -1]]


@pytest.mark.parametrize("name", NAMES)
def test_slots_beyond_the_vocabulary_are_absent(name: str) -> None:
    law = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    uniforms = torch.full((1, 4), 0.9, dtype=torch.float64)
    for scores in (None, law):
        children = draft_children(name, law, 4, uniforms, scores=scores)
        assert children.tolist() == [[1, 0, -1, -1]]


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_drafted_trees_are_the_oracles(name: str, toy: Toy) -> None:
    """Level by level, with absent subtrees, each node from the law after its own path."""
    topology, batch = toy.topology, 6
    uniforms = torch.rand(
        batch, topology.num_nodes, dtype=torch.float64, generator=torch_generator(repr(toy))
    )

    def path(tokens: list[int], node: int) -> tuple[int, ...]:
        return tuple(tokens[v] for v in topology.path(node))

    def next_law(tree, nodes):  # type: ignore[no-untyped-def]
        laws = [
            [toy.draft(path(row, v) if row[v] >= 0 else ()).astype(np.float64) for v in nodes]
            for row in tree.tokens.tolist()
        ]
        return torch.tensor(np.array(laws)), None

    root = torch.zeros(batch, dtype=torch.int64)
    tree, draft_probs = draft_tree(name, topology, root, next_law, uniforms=uniforms)
    for b, tokens in enumerate(tree.tokens.tolist()):
        for i, node in enumerate(topology.internal):
            slots = topology.children(node)
            drawn = [tokens[u] for u in slots]
            if tokens[node] < 0:
                assert drawn == [-1] * len(slots)
                continue
            law = toy.draft(path(tokens, node)).astype(np.float64)
            assert draft_probs[b, i].tolist() == law.tolist()
            assert drawn == oracle.draft_children(
                name, law, len(slots), uniforms[b, list(slots)].numpy()
            )
