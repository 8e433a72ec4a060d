"""Shapes of draft trees: specs, orders, layers, masks, and what is refused."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given

from stattests.strategies import topologies
from univer import InputError, Topology
from univer.topology import EAGLE_PARENTS

SHAPES = {
    "2x5": (63, 5, 31, 32),
    "3x3": (40, 3, 13, 27),
    "chain:5": (6, 5, 5, 1),
    "eagle": (26, 5, 11, 15),
    "none": (1, 0, 0, 1),
}


@pytest.mark.parametrize("spec", sorted(SHAPES))
def test_presets_have_their_published_sizes(spec: str) -> None:
    topology = Topology.parse(spec)
    shape = (
        topology.num_nodes,
        topology.depth,
        len(topology.internal),
        len(topology.leaves),
    )
    assert shape == SHAPES[spec]
    assert str(topology) == spec


def test_eagle_is_the_tree_of_its_default_choices() -> None:
    paths = [
        *([0], [1], [2], [3], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0]),
        *([0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 2, 0], [0, 2, 1], [1, 0, 0]),
        *([0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]),
    ]
    assert Topology.parse(paths).parents == EAGLE_PARENTS
    assert Topology.parse("eagle") == Topology.parse(paths)


@pytest.mark.parametrize(
    ("spec", "same"),
    [("3x1", [-1, 0, 0, 0]), ("chain:2", [-1, 0, 1]), ("[[0],[1],[1,0]]", [-1, 0, 0, 2])],
)
def test_specs_and_parents_agree(spec: str, same: list[int]) -> None:
    assert Topology.parse(spec) == Topology.from_parents(same)
    assert hash(Topology.parse(spec)) == hash(Topology.from_parents(same))
    assert Topology.parse(Topology.parse(spec)) == Topology.parse(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "2x",
        "x5",
        "0x3",
        "2x0",
        "chain:0",
        "medusa",
        "-1x2",
        "99x99",
        "chain:" + "9" * 5000,
        "[" * 100_000,
        "[[0],[",
        "[1]",
        '["ab"]',
        3,
        None,
        [[0], [2]],
        [[0], [0]],
        [[0, 0]],
        [[-1]],
        [[0.5]],
        ["ab"],
        [0, 1],
        2.5,
    ],
    ids=lambda spec: repr(spec)[:20],
)
def test_bad_spec_gets_one_sentence(spec: object) -> None:
    with pytest.raises(InputError, match=r"^topology: .*\.$"):
        Topology.parse(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parents", "says"),
    [
        ([], "parents\\[0\\] must be -1"),
        ([0], "parents\\[0\\] must be -1"),
        ([-1, 1], "node 1 has parent 1"),
        ([-1, 0, -1], "node 2 has parent -1"),
        ([-1, 2, 0], "node 1 has parent 2"),
        ([-1, 0, 1, 0], "level order"),
        ([-1, "a"], "whole numbers"),
        ([-1, 0.0], "whole numbers"),
    ],
)
def test_bad_parents_are_named(parents: list[int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Topology.from_parents(parents)


def test_any_sequence_of_whole_numbers_makes_the_same_topology() -> None:
    for parents in ([-1, 0, 0], (-1, 0, 0), np.array([-1, 0, 0]), torch.tensor([-1, 0, 0])):
        topology = Topology.from_parents(parents)
        assert topology == Topology((-1, 0, 0))
        assert hash(topology) == hash(Topology([-1, 0, 0]))  # type: ignore[arg-type]
        assert pickle.loads(pickle.dumps(topology)) == topology


@given(topology=topologies(max_nodes=12, max_arity=4))
def test_orders_and_layers_describe_the_parents(topology: Topology) -> None:
    nodes = range(topology.num_nodes)
    assert sorted(topology.post_order) == list(nodes)
    at = {node: i for i, node in enumerate(topology.post_order)}
    for node in nodes:
        children = topology.children(node)
        assert all(topology.parents[child] == node for child in children)
        assert list(children) == sorted(children)
        assert all(at[child] < at[node] for child in children)
        for left, right in itertools.pairwise(children):
            subtree = [v for v in nodes if right in (v, *topology.path(v))]
            assert all(at[left] < at[v] for v in subtree)
        path = topology.path(node)
        assert len(path) == topology.depths[node]
        assert all(topology.parents[b] == a for a, b in zip((0, *path), path, strict=False))
    assert sorted([*topology.internal, *topology.leaves]) == list(nodes)
    assert [node for level in topology.levels for node in level] == list(nodes)
    seen = [node for layer in topology.layers for node in layer.nodes]
    assert sorted(seen) == list(topology.internal)
    for layer in topology.layers:
        for node, children in zip(layer.nodes, layer.children, strict=True):
            assert children == topology.children(node)
            assert len(children) == layer.arity


@given(topology=topologies(max_nodes=12))
def test_attention_mask_shows_a_node_its_own_path(topology: Topology) -> None:
    mask = topology.attention_mask()
    for node in range(topology.num_nodes):
        seen = {0, *topology.path(node)}
        assert set(torch.nonzero(mask[node])[:, 0].tolist()) == seen
