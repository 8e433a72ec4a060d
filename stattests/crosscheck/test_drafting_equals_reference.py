"""The law that a drafter returns is the law it drew from: torch's draws are the oracle's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import drafting as oracle
from stattests.crosscheck.both import FLOAT64_TOLERANCE, LARGEST
from stattests.strategies import Weights, fractions, topologies, toys, weights
from stattests.streams import numpy_generator, torch_generator
from univer import DRAFTING, draft_children, draft_tree

NAMES = sorted(DRAFTING)
MOST = {name: row.max_arity or 5 for name, row in DRAFTING.items()}
# Slots that are drawn: the last one, none, or all.
DRAWN = {"top_residual": slice(-1, None), "top": slice(0)}


@pytest.mark.parametrize("name", NAMES)
@given(law=st.integers(2, 6).flatmap(weights), data=st.data())
def test_children_equal_the_oracles(name: str, law: Weights, data: st.DataObject) -> None:
    arity = data.draw(st.integers(1, MOST[name]))
    uniforms = numpy_generator(f"{law}/{arity}").random((8, arity))
    uniforms[:3] = np.array([[0.0], [LARGEST], [2**-24]])
    probs = fractions(law).astype(np.float64)
    ours = draft_children(name, torch.tensor(np.tile(probs, (8, 1))), arity, torch.tensor(uniforms))
    for row, eta in zip(ours.tolist(), uniforms, strict=True):
        assert row == oracle.draft_children(name, probs, arity, eta)
        drawn = [token for token in row if token >= 0]
        assert DRAFTING[name].twins or len(set(drawn)) == len(drawn)
        assert row == drawn + [-1] * (arity - len(drawn))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), law=st.integers(2, 5).flatmap(weights))
def test_children_come_in_the_proportions_of_their_law(
    name: str, data: st.DataObject, law: Weights
) -> None:
    """The midpoints of a fine grid of uniforms land on the outcomes as often as they should."""
    arity = data.draw(st.integers(1, 4 if name in DRAWN else 2))
    outcomes = list(oracle.children_law(name, fractions(law), arity))
    assert sum(chance for _, chance in outcomes) == 1
    where = DRAWN.get(name, slice(None))
    slots = len(range(arity)[where])
    steps = 4096 if slots == 1 else 128
    mesh = np.stack(np.meshgrid(*[(np.arange(steps) + 0.5) / steps] * slots), -1) if slots else 0
    uniforms = np.zeros((steps**slots, arity))
    uniforms[:, where] = np.reshape(mesh, (-1, max(slots, 1)))[:, :slots]
    probs = np.tile(fractions(law).astype(np.float64), (len(uniforms), 1))
    listed = DRAFTING[name].outcomes(probs[0], arity)
    ours = {tuple(children): chance for children, chance in listed}
    assert len(ours) == len(listed) == len(outcomes)
    for children, chance in outcomes:
        assert abs(ours[tuple(children)] - float(chance)) <= FLOAT64_TOLERANCE
    drawn = draft_children(name, torch.tensor(probs), arity, torch.tensor(uniforms)).tolist()
    for children, chance in outcomes:
        share = sum(row == children for row in drawn) / len(drawn)
        # An outcome is an interval in each slot; its midpoints miss its length by 1 / steps.
        assert abs(share - float(chance)) <= slots / steps


@pytest.mark.parametrize("name", NAMES)
def test_at_temperature_0_the_children_are_the_top_logits(name: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, -torch.inf]])
    one_hot = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])
    uniforms = torch.full((1, MOST[name]), 0.7, dtype=torch.float64)[:, :4]
    arity = uniforms.shape[1]
    children = draft_children(name, one_hot, arity, uniforms, scores=logits).tolist()
    best = [1, 1, 1, 1] if DRAFTING[name].twins else [1, 3, 2, 0]
    assert children == [best[:arity]]
    children = draft_children(name, one_hot, arity, uniforms).tolist()
    without = {"top_residual": [1, 0, 2, -1], "top": [1, 0, 2, 3], "with_replacement": best}
    assert children == [without.get(name, [1, -1, -1, -1])[:arity]]


@pytest.mark.parametrize("name", NAMES)
def test_slots_beyond_the_vocabulary_are_absent(name: str) -> None:
    law = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    uniforms = torch.full((1, MOST[name]), 0.9, dtype=torch.float64)[:, :4]
    filled = [1, 1, 1, 1] if DRAFTING[name].twins else [1, 0, -1, -1]
    for scores in (None, law):
        children = draft_children(name, law, uniforms.shape[1], uniforms, scores=scores)
        assert children.tolist() == [filled[: uniforms.shape[1]]]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_drafted_trees_are_the_oracles(name: str, data: st.DataObject) -> None:
    """Level by level, with absent subtrees, each node from the law after its own path."""
    toy = data.draw(toys(topologies(max_arity=min(MOST[name], 3))))
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
