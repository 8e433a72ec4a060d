"""Uniforms scripted at every edge: 0, 2^-24, each threshold, the largest float below 1."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stattests.crosscheck.both import FLOAT64_TOLERANCE, LARGEST, Batch, drawn_batch
from stattests.strategies import Toy, toys
from univer import VERIFIERS, DraftTree, Topology, VerifyOutput, stop_law, verify
from univer.verifiers import _check_probs, _judge

NAMES = sorted(VERIFIERS)
EDGES = [0.0, 2**-24, LARGEST]


def emitted_probs(batch: Batch, out: VerifyOutput) -> list[float]:
    """The target probability of every token that was emitted, where it was emitted."""
    probs = []
    for b in range(len(batch.trees)):
        node = 0
        for child in out.accepted_nodes[b][: int(out.num_accepted[b])].tolist():
            probs.append(float(batch.target[b][node][batch.trees[b].tokens[child]]))
            node = child
        probs.append(float(batch.target[b][node][int(out.next_token[b])]))
    return probs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
@given(toy=toys(), data=st.data())
def test_zero_probability_token_is_never_emitted(
    name: str, dtype: torch.dtype, toy: Toy, data: st.DataObject
) -> None:
    batch = drawn_batch(toy, VERIFIERS[name].drafting, size=8)
    slots = toy.topology.num_nodes + 1
    for edge in EDGES:
        uniforms = torch.full((8, slots), edge, dtype=torch.float64)
        out = verify(name, batch.draft_tree, *batch.rows(dtype), uniforms=uniforms)
        assert min(emitted_probs(batch, out)) > 0
    script = data.draw(st.lists(st.sampled_from(EDGES), min_size=slots, max_size=slots))
    uniforms = torch.tensor([script] * 8, dtype=torch.float64)
    out = verify(name, batch.draft_tree, *batch.rows(dtype), uniforms=uniforms)
    assert min(emitted_probs(batch, out)) > 0


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_a_node_is_passed_exactly_when_its_uniform_is_below_the_threshold(
    name: str, toy: Toy
) -> None:
    """At the threshold itself a node is refused; at the float just below it is taken."""
    batch = drawn_batch(toy, VERIFIERS[name].drafting, size=4)
    tree, rows = batch.draft_tree, batch.rows()
    verifier, target, draft = _check_probs(name, tree, *rows)
    judged = _judge(verifier, tree, target, draft)
    thresholds = judged.acceptance
    conditional = verifier.composition == "conditional"
    for node in range(1, toy.topology.num_nodes):
        path = {node, *toy.topology.path(node)}
        alone = torch.full((4, toy.topology.num_nodes + 1), LARGEST, dtype=torch.float64)
        if not conditional:
            alone[:, list(path)] = 0.0
        # Only places that the decision reaches: nothing earlier is certain, the path is possible.
        earlier = set(range(toy.topology.num_nodes)) - path - {0}
        reached = torch.ones(4, dtype=torch.bool)
        if earlier:
            reached &= (thresholds[:, sorted(earlier)] < 1).all(-1)
        if not conditional and len(path) > 1:
            reached &= (thresholds[:, sorted(path - {node})] > 0).all(-1)
        inside = reached & (thresholds[:, node] > 0) & (thresholds[:, node] < 1)
        at, below = alone.clone(), alone.clone()
        at[inside, node] = thresholds[inside, node]
        below[inside, node] = torch.nextafter(
            thresholds[inside, node], torch.zeros((), dtype=torch.float64)
        )
        refused = verify(name, tree, *rows, uniforms=at).accepted_nodes
        taken = verify(name, tree, *rows, uniforms=below).accepted_nodes
        assert not (refused[inside] == node).any()
        assert (taken[inside] == node).any(-1).all()


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_each_node_in_turn_is_where_the_cycle_stops(name: str, toy: Toy) -> None:
    """Walk every branch: a node can be made the stop exactly when it has stop probability."""
    batch = drawn_batch(toy, VERIFIERS[name].drafting, size=4)
    tree, rows = batch.draft_tree, batch.rows()
    stop_probs = stop_law(name, tree, *rows).stop_probs
    for node in range(toy.topology.num_nodes):
        uniforms = torch.full((4, toy.topology.num_nodes + 1), LARGEST, dtype=torch.float64)
        uniforms[:, [node, *toy.topology.path(node)]] = 0.0
        out = verify(name, tree, *rows, uniforms=uniforms)
        for b in range(4):
            path = out.accepted_nodes[b][: int(out.num_accepted[b])].tolist()
            stopped = path[-1] if path else 0
            if stop_probs[b, node] > FLOAT64_TOLERANCE:
                assert stopped == node
            else:
                assert stopped != node or stop_probs[b, node] > 0


@pytest.mark.parametrize("name", NAMES)
def test_next_token_falls_on_the_side_of_its_edge(name: str) -> None:
    """The inverse CDF at an interior edge takes the next token, just below it the earlier one."""
    tree = DraftTree(Topology.parse("none"), torch.zeros(1, 1, dtype=torch.int64))
    target = torch.tensor([[[0.0, 0.25, 0.25, 0.0, 0.5, 0.0]]], dtype=torch.float64)
    draft = torch.zeros(1, 0, 6, dtype=torch.float64)
    for uniform, token in [
        (0.0, 1), (math.nextafter(0.25, 0), 1), (0.25, 2), (0.5, 4), (LARGEST, 4),
    ]:  # fmt: skip
        uniforms = torch.tensor([[0.5, uniform]], dtype=torch.float64)
        assert verify(name, tree, target, draft, uniforms=uniforms).next_token.tolist() == [token]
