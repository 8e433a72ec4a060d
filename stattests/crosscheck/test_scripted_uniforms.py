"""Uniforms scripted at every edge: 0, 2^-24, each threshold, the largest float below 1."""

from __future__ import annotations

import math

import pytest
import torch

from stattests.crosscheck.both import (
    FLOAT64_TOLERANCE,
    LARGEST,
    Batch,
    acceptance_of,
    drawn_batch,
)
from stattests.strategies import Toy, for_toys
from stattests.streams import numpy_generator
from univer import PAPER, VERIFIERS, DraftTree, Topology, VerifyOutput, stop_law, verify

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


def decided(
    name: str,
    batch: Batch,
    uniforms: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype = torch.float64,
) -> VerifyOutput:
    """The decisions of `verify` on a device."""
    rows = batch.rows(dtype, device)
    return verify(name, batch.on(device), *rows, uniforms=uniforms.to(device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_zero_probability_token_is_never_emitted(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    def compare(toy: Toy) -> None:
        batch = drawn_batch(toy, VERIFIERS[name].drafting, size=8)
        slots = toy.topology.num_nodes + 1
        scripts = numpy_generator(f"script/{toy}").choice(EDGES, (2, slots)).tolist()
        for values in (*([edge] * slots for edge in EDGES), *scripts):
            uniforms = torch.tensor([values] * 8, dtype=torch.float64)
            assert min(emitted_probs(batch, decided(name, batch, uniforms, device, dtype))) > 0

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_passed_exactly_when_its_uniform_is_below_the_threshold(
    name: str, device: torch.device
) -> None:
    """At the threshold itself a node is refused; at the float just below it is taken."""
    looked_at = 0

    def compare(toy: Toy) -> None:
        nonlocal looked_at
        batch = drawn_batch(toy, VERIFIERS[name].drafting, size=4)
        thresholds = acceptance_of(name, batch.on(device), *batch.rows(device=device)).cpu()
        nodes = set(range(1, toy.topology.num_nodes))
        for node in nodes:
            path = {node, *toy.topology.path(node)}
            script = torch.full((4, toy.topology.num_nodes + 1), LARGEST, dtype=torch.float64)
            # Only places that the decision reaches: nothing off the path is certain, and for a
            # local verifier the path itself is possible.
            reached = (thresholds[:, sorted(nodes - path)] < 1).all(-1)
            if VERIFIERS[name].composition == "local":
                script[:, list(path)] = 0.0
                reached &= (thresholds[:, sorted(path - {node})] > 0).all(-1)
            inside = reached & (thresholds[:, node] > 0) & (thresholds[:, node] < 1)
            at, below = script.clone(), script.clone()
            at[inside, node] = thresholds[inside, node]
            below[inside, node] = torch.nextafter(
                thresholds[inside, node], torch.zeros((), dtype=torch.float64)
            )
            refused = decided(name, batch, at, device).accepted_nodes.cpu()
            taken = decided(name, batch, below, device).accepted_nodes.cpu()
            assert not (refused[inside] == node).any()
            assert (taken[inside] == node).any(-1).all()
            looked_at += int(inside.sum())

    for_toys(name, compare, 100 if name in PAPER else 180)
    assert looked_at >= 10


@pytest.mark.parametrize("name", NAMES)
def test_each_node_in_turn_is_where_the_cycle_stops(name: str, device: torch.device) -> None:
    """Walk every branch: a node can be made the stop exactly when it has stop probability."""

    def compare(toy: Toy) -> None:
        batch = drawn_batch(toy, VERIFIERS[name].drafting, size=4)
        stop_probs = stop_law(name, batch.on(device), *batch.rows(device=device)).stop_probs.cpu()
        for node in range(toy.topology.num_nodes):
            uniforms = torch.full((4, toy.topology.num_nodes + 1), LARGEST, dtype=torch.float64)
            uniforms[:, [node, *toy.topology.path(node)]] = 0.0
            out = decided(name, batch, uniforms, device)
            for b in range(4):
                path = out.accepted_nodes[b][: int(out.num_accepted[b])].tolist()
                stopped = path[-1] if path else 0
                if stop_probs[b, node] > FLOAT64_TOLERANCE:
                    assert stopped == node
                else:
                    assert stopped != node or stop_probs[b, node] > 0

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_next_token_falls_on_the_side_of_its_edge(name: str, device: torch.device) -> None:
    """The inverse CDF at an interior edge takes the next token, just below it the earlier one."""
    tree = DraftTree(Topology.parse("none"), torch.zeros(1, 1, dtype=torch.int64, device=device))
    target = torch.tensor([[[0.0, 0.25, 0.25, 0.0, 0.5, 0.0]]], dtype=torch.float64, device=device)
    draft = torch.zeros(1, 0, 6, dtype=torch.float64, device=device)
    for uniform, token in [
        (0.0, 1), (math.nextafter(0.25, 0), 1), (0.25, 2), (0.5, 4), (LARGEST, 4),
    ]:  # fmt: skip
        uniforms = torch.tensor([[0.5, uniform]], dtype=torch.float64, device=device)
        assert verify(name, tree, target, draft, uniforms=uniforms).next_token.tolist() == [token]
