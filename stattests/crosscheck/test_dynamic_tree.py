"""Dynamic trees: torch grows and prunes the oracle's trees, and they are lossless, exactly.

Draft laws are whole sixteenths: products of a few are exact in float64, so that ties, of which
there are many, are the oracle's ties. On laws of any numbers the oracle works in float64, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
from reference import StopLaw, Tree, enumeration
from reference.dynamic_tree import dynamic_tree as oracles_tree
from reference.dynamic_tree import pruned as oracles_pruned
from stattests.crosscheck.both import Batch, batch_of
from stattests.crosscheck.test_torch_equals_reference import (
    check_decisions,
    check_stop_laws,
    uniforms_for,
)
from stattests.strategies import Toy, Weights, topologies, toys, weights
from stattests.theorems.checks import check_outputs
from stattests.theorems.planted import Fault, plant
from stattests.theorems.test_planted_faults import POOL
from univer import DraftTree, InputError, Topology, dynamic_tree
from univer.dynamic_tree import Dynamic, Grown, grow, prune

NAME = "target_only"
RULE = reference.VERIFIERS[NAME]
PARTS = 16
CPU = torch.device("cpu")

SHAPES = st.builds(Dynamic, st.integers(1, 4), st.integers(1, 4), st.integers(1, 12))
# All nodes are expanded down to depth 2; deeper all that matter are, where size <= width.
UNRESTRICTED = st.one_of(
    st.builds(Dynamic, st.integers(1, 4), st.integers(1, 2), st.integers(1, 12)),
    st.builds(Dynamic, st.just(3), st.just(4), st.integers(1, 3)),
)


@st.composite
def sixteenths(draw: st.DrawFn, vocab: int) -> Weights:
    """Whole numbers that sum to PARTS."""
    cuts = st.lists(st.integers(0, PARTS), min_size=vocab - 1, max_size=vocab - 1)
    return tuple(b - a for a, b in pairwise([0, *sorted(draw(cuts)), PARTS]))


@st.composite
def tied_toys(draw: st.DrawFn, vocab: int | None = None) -> Toy:
    """Toys whose draft laws are whole sixteenths."""
    vocab = draw(st.integers(2, 4)) if vocab is None else vocab
    pairs = st.tuples(weights(vocab), sixteenths(vocab))
    return Toy(vocab, (-1,), tuple(draw(st.lists(pairs, min_size=1, max_size=6))))


def floats(toy: Toy) -> Callable[[tuple[int, ...]], Any]:
    """The toy's draft laws in float64."""
    return lambda prefix: toy.draft(prefix).astype(np.float64)


def grown(
    toy: Toy, shape: Dynamic, device: torch.device = CPU, module: ModuleType = dynamic_tree
) -> Grown:
    """Torch's tree."""

    def next_law(tree: DraftTree, nodes: tuple[int, ...]) -> tuple[Tensor, None]:
        whole = Tree(tree.topology, tuple(tree.tokens[0].tolist()))
        rows = [floats(toy)(enumeration.node_path(whole, node)) for node in nodes]
        return torch.tensor(np.array(rows), device=device)[None], None

    tree: Grown = module.grow(shape, torch.tensor([0], device=device), next_law)
    return tree


def check_grown(
    toy: Toy,
    shape: Dynamic,
    draft: Any,
    device: torch.device = CPU,
    module: ModuleType = dynamic_tree,
) -> None:
    """Torch's tree, its topology and its laws are the oracle's."""
    ours, exact = (
        grown(toy, shape, device, module),
        oracles_tree(draft, shape.width, shape.depth, shape.size),
    )
    topology = ours.tree.topology
    assert topology.parents == exact.topology.parents
    assert ours.tree.tokens.tolist() == [list(exact.tokens)]
    _, rows = enumeration.tree_laws(exact, toy.target, floats(toy))
    assert (ours.draft_probs[0].cpu().numpy() == rows).all()
    for node in topology.internal:
        law = floats(toy)(enumeration.node_path(exact, node))
        probs = [law[exact.tokens[u]] for u in topology.children(node)]
        assert probs == sorted(law, reverse=True)[: len(probs)]


@given(toy=tied_toys(), shape=SHAPES)
def test_grown_tree_is_the_oracles_in_fractions(
    device: torch.device, toy: Toy, shape: Dynamic
) -> None:
    check_grown(toy, shape, toy.draft, device)


@given(toy=toys(), shape=SHAPES)
def test_grown_tree_is_the_oracles_in_floats(toy: Toy, shape: Dynamic) -> None:
    check_grown(toy, shape, floats(toy))


def top_batch(toys_of_batch: list[Toy], topology: Topology) -> Batch:
    """The `top` tree of each toy on one topology, with its laws."""
    found = []
    for toy in toys_of_batch:
        ((tree, _),) = enumeration.drafted_trees("top", topology, toy.draft)
        found.append(batch_of([tree], topology, toy.target, toy.draft))
    trees, target, draft = zip(*[(b.trees[0], b.target[0], b.draft[0]) for b in found], strict=True)
    return Batch(topology, trees, target, draft)


def check_pruned(
    given_toys: list[Toy], topology: Topology, size: int, device: torch.device
) -> None:
    """Torch prunes as the oracle does, a batch as its trees one by one."""
    batch = top_batch(given_toys, topology)
    tree, (_, draft) = batch.on(device), batch.rows(device=device)
    tokens = prune(tree, draft, size).tokens
    assert torch.equal(tree.tokens.cpu(), batch.draft_tree.tokens)  # the input is left alone
    for b, toy in enumerate(given_toys):
        exact = oracles_pruned(batch.trees[b], toy.draft, size)
        assert tokens[b].tolist() == list(exact.tokens)
        single = prune(DraftTree(topology, tree.tokens[b : b + 1]), draft[b : b + 1], size)
        assert torch.equal(single.tokens[0], tokens[b])
        for node in topology.internal:
            held = [exact.tokens[u] >= 0 for u in topology.children(node)]
            assert held == sorted(held, reverse=True)  # absent ones come last
            assert exact.tokens[node] >= 0 or not any(held)


@given(data=st.data(), topology=topologies(max_nodes=9), size=st.integers(1, 9))
def test_pruned_trees_are_the_oracles_one_by_one_and_together(
    device: torch.device, data: st.DataObject, topology: Topology, size: int
) -> None:
    vocab = data.draw(st.integers(2, 4))
    batch = data.draw(st.lists(tied_toys(vocab), min_size=1, max_size=4))
    check_pruned(batch, topology, size, device)


def present(tree: Tree) -> list[tuple[int, ...]]:
    """The paths of a tree's nodes in level order."""
    nodes = range(tree.topology.num_nodes)
    return [enumeration.node_path(tree, v) for v in nodes if v == 0 or tree.tokens[v] >= 0]


@given(toy=tied_toys(), shape=UNRESTRICTED)
def test_growing_unrestricted_is_pruning_the_whole_top_tree(toy: Toy, shape: Dynamic) -> None:
    topology = Topology.parse(f"{shape.width}x{shape.depth}")
    batch = top_batch([toy], topology)
    tokens = prune(batch.draft_tree, batch.rows()[1], shape.size).tokens[0]
    ours = grown(toy, shape).tree
    small = Tree(ours.topology, tuple(ours.tokens[0].tolist()))
    assert present(small) == present(Tree(topology, tuple(tokens.tolist())))


def outputs(toy: Toy, tree: Tree, stop_law: Any = RULE.stop_law) -> enumeration.Outputs:
    """The law of the output on the one tree that there is."""
    return enumeration.outputs_on(stop_law, [(tree, Fraction(1))], toy.target, toy.draft)


def on_its_tree(toy: Toy, shape: Dynamic) -> tuple[Toy, Tree]:
    """The toy on the topology of its own dynamic tree, and that tree."""
    tree = oracles_tree(toy.draft, shape.width, shape.depth, shape.size)
    return replace(toy, parents=tree.topology.parents), tree


@given(
    toy=toys(), shape=st.builds(Dynamic, st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))
)
def test_output_law_on_a_dynamic_tree_is_target_exactly(toy: Toy, shape: Dynamic) -> None:
    toy, tree = on_its_tree(toy, shape)
    check_outputs(outputs(toy, tree), toy)


@given(toy=toys(drafting="top"), size=st.integers(1, 6))
def test_output_law_on_a_pruned_tree_is_target_exactly(toy: Toy, size: int) -> None:
    ((whole, _),) = enumeration.drafted_trees("top", toy.topology, toy.draft)
    check_outputs(outputs(toy, oracles_pruned(whole, toy.draft, size)), toy)


@given(toy=toys(), shape=SHAPES)
def test_torch_on_a_dynamic_tree_equals_reference(toy: Toy, shape: Dynamic) -> None:
    ours = grown(toy, shape).tree
    tree = Tree(ours.topology, tuple(ours.tokens[0].tolist()))
    batch = batch_of([tree] * 8, ours.topology, toy.target, toy.draft)
    check_stop_laws(NAME, batch, torch.float64, CPU)
    check_decisions(NAME, batch, uniforms_for(repr(toy), batch), torch.float64, CPU)


# Faults: laws that are lost, seen in exact fractions.
TOYS = [Toy(4, (-1,), POOL[shift:] + POOL[:shift]) for shift in range(len(POOL))]
SHAPE = Dynamic(2, 2, 3)


def where_the_mass_is_lost(toy: Toy, kept: Tree, whole: Tree) -> enumeration.Outputs:
    """Re-ranked after the walk: who stands on a pruned child steps back, and never emits it."""

    def stop_law(tree: Tree, target: Any, draft: Any) -> StopLaw:
        law, paths = RULE.stop_law(tree, target, draft), present(kept)
        stop = law.stop_probs.copy()
        for v in reversed(range(1, tree.topology.num_nodes)):
            if enumeration.node_path(tree, v) not in paths:
                stop[tree.topology.parents[v]] += stop[v]
                stop[v] = 0
        return replace(law, stop_probs=stop)

    return outputs(toy, whole, stop_law)


def where_the_tree_knows_the_draw(toy: Toy, kept: Tree, whole: Tree) -> enumeration.Outputs:
    """The larger tree instead, and new numbers, where the target's token was not in the small."""
    first, second = outputs(toy, kept), outputs(toy, whole)
    missed = sum(prob for tokens, prob in first.items() if len(tokens) == 1)
    return {
        tokens: first.get(tokens, 0) * (len(tokens) > 1) + missed * second.get(tokens, 0)
        for tokens in first.keys() | second.keys()
    }


def check_law(law: Callable[[Toy, Tree, Tree], enumeration.Outputs]) -> None:
    """The output's law on the toys, from the kept tree and the one that it is cut out of."""
    for toy in TOYS:
        _, kept = on_its_tree(toy, SHAPE)
        larger, whole = on_its_tree(toy, replace(SHAPE, size=99))
        check_outputs(law(larger, kept, whole), larger)


@pytest.mark.parametrize("fault", [where_the_mass_is_lost, where_the_tree_knows_the_draw])
def test_fault_in_the_law_is_caught(fault: Callable[..., enumeration.Outputs]) -> None:
    check_law(lambda toy, kept, _: outputs(toy, kept))
    check_law(lambda toy, _, whole: outputs(toy, whole))
    with pytest.raises(AssertionError):
        check_law(fault)


# Faults: one line of the module replaced, seen as another tree than the oracle's.
FAULTS = [
    Fault("child-without-its-parent", dynamic_tree, "parents[..., None] * probs",
          "parents[..., None] * 0 + probs"),
    Fault("ties-to-the-later", dynamic_tree,
          "values.sort(dim=-1, descending=True, stable=True).indices",
          "values.shape[1] - 1 - values.flip(-1).sort(dim=-1, descending=True, stable=True)[1]"),
    Fault("level-not-cut-to-the-width", dynamic_tree,
          "promising & _best(values[:, first:], shape.width)", "promising"),
    Fault("given-up-too-early", dynamic_tree,
          "_best(values[:, 1:], shape.size)[:, first - 1 :]",
          "_best(values[:, 1:], shape.width)[:, first - 1 :]"),
    Fault("laws-of-the-first-rows", dynamic_tree, "rows = tuple(expanded.index(nodes[v])",
          "rows = tuple(topology.draft_rows[v]"),
]  # fmt: skip


TIES = Toy(3, (-1,), tuple((pair, pair) for pair in ((8, 4, 4), (4, 8, 4), (16, 0, 0))))


def check_cases(module: ModuleType) -> None:
    """The oracle's trees on the fixed toys."""
    for width, depth, size in product((2, 3), (3, 4), (5, 9)):
        for toy in (*TOYS, TIES):
            check_grown(toy, Dynamic(width, depth, size), floats(toy), module=module)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_in_growing_is_caught(fault: Fault) -> None:
    check_cases(dynamic_tree)
    broken = plant(fault)
    with pytest.raises((AssertionError, KeyError)):  # a parent that is missing is a KeyError
        check_cases(broken)


def test_pruned_away_parent_takes_its_subtree_along() -> None:
    """The child is certain below a parent that is not kept; it must not outlive it."""
    tree = DraftTree(Topology.parse("2x2"), torch.tensor([[0, 0, 1, 0, 1, 1, 0]]))
    draft = torch.tensor([[[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]]])
    assert prune(tree, draft, 2).tokens.tolist() == [[0, 0, -1, 0, -1, -1, -1]]
    broken = plant(FAULTS[0]).prune(tree, draft, 2).tokens.tolist()
    assert broken == [[0, 0, -1, -1, -1, 1, -1]]


def test_rounding_never_turns_the_order_of_a_path_or_of_siblings() -> None:
    """Rows that sum to 1 only within float32's rounding; siblings whose order was by logits."""
    above_1 = torch.tensor([[[1.00005, 0.0], [1.00005, 0.0]]])
    chain = DraftTree(Topology.parse("chain:2"), torch.tensor([[0, 0, 0]]))
    assert prune(chain, above_1, 1).tokens.tolist() == [[0, 0, -1]]
    turned = torch.tensor([[[0.5 - 2**-24, 0.5 + 2**-24]]])
    pair = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 0, 1]]))
    assert prune(pair, turned, 1).tokens.tolist() == [[0, 0, -1]]


ROOT = torch.tensor([0])
CHAIN = DraftTree(Topology.parse("chain:1"), torch.tensor([[0, 2]]))
LAW = torch.full((1, 1, 3), 1 / 3)
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "width": (lambda: Dynamic(0, 2, 3), r"width: expected an integer >= 1, got 0"),
    "size": (lambda: Dynamic(2, 2, True), r"size: expected an integer >= 1, got True"),
    "large": (lambda: Dynamic(64, 9, 60), r"topology: dynamic:64x9:60 drafts up to 32832 tokens"),
    "text": (lambda: Dynamic.parse("dynamic:4x5"), r"topology: cannot read 'dynamic:4x5'; exp"),
    "root": (
        lambda: grow(SHAPE, torch.tensor([0, 1]), lambda *_: (LAW, None)),
        r"root: expected an int64 tensor \[1\]",
    ),
    "law": (
        lambda: grow(SHAPE, ROOT, lambda *_: (LAW / 2, None)),
        r"draft_probs: the row of node 0 in tree 0 sums to 0.5",
    ),
    "logits": (
        lambda: grow(SHAPE, ROOT, lambda *_: (LAW, LAW * torch.nan)),
        r"scores: the row of node 0 in tree 0 holds NaN",
    ),
    "rows": (
        lambda: grow(SHAPE, ROOT, lambda *_: (LAW, None)),
        r"next_law: expected laws of shape \[1, 2, 3\] for nodes \[1, 2\], got \[1, 1, 3\]",
    ),
    "pruned-size": (lambda: prune(CHAIN, LAW, 0), r"size: expected an integer >= 1, got 0"),
    "pruned-law": (lambda: prune(CHAIN, 2 * LAW, 1), r"draft_probs: .*sums to 2"),
    "pruned-shape": (lambda: prune(CHAIN, LAW[0], 1), r"draft_probs: expected shape \[B, nodes"),
    "pruned-token": (lambda: prune(CHAIN, LAW[..., :2], 1), r"tree.tokens: node 1 .* token 2"),
    "pruned-tree": (lambda: prune(ROOT, LAW, 1), r"tree: expected a DraftTree, got Tensor"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case: str) -> None:
    call, says = BAD[case]
    with pytest.raises(InputError, match=says):
        call()


def test_a_tree_without_drafts_stays_as_it_is() -> None:
    tree = DraftTree(Topology.parse("none"), torch.tensor([[3]]))
    assert prune(tree, torch.zeros(1, 0, 0), 2) is tree
