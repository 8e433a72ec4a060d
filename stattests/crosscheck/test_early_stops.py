"""Drafts that stop early: every verifier, every pattern of empty slots, every path, the oracle.

A drafter may leave out the last children of any node, or all of them, at places that do not depend
on what it leaves out; where a draft law draws children together, all or none. Nothing drafted,
nothing subtracted: the next token is the target's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch

import reference
from reference import enumeration
from reference.decision import Tree
from stattests.behaviour.test_one_tree import check_laws, logits
from stattests.crosscheck.both import Batch, batch_of, drawn_batch
from stattests.crosscheck.test_torch_equals_reference import (
    check_decisions,
    check_stop_laws,
    near_a_threshold,
    uniforms_for,
)
from stattests.early_stops import cut_trees, keeps_all_or_none
from stattests.faults.early import JUDGED
from stattests.planting import plant
from stattests.strategies import Toy, for_toys
from stattests.streams import torch_generator
from stattests.theorems.checks import check_outputs
from univer import VERIFIERS, DraftTree, Filters, InputError, Topology, stop_law, verify
from univer.from_logits import by_level, verify_logits
from univer.one_tree import by_tree
from univer.verifiers import resolve

NAMES = sorted(VERIFIERS)
HALF = [name for name in NAMES if keeps_all_or_none(VERIFIERS[name].drafting)]


def cut_batch(toy: Toy, name: str, size: int = 8) -> Batch:
    """Trees drawn from a toy, and cut anywhere."""
    drafting = VERIFIERS[name].drafting
    batch = drawn_batch(toy, drafting, size)
    generator = torch_generator(f"cut/{toy}/{name}")
    tokens = cut_trees(batch.topology, batch.draft_tree.tokens, drafting, 0.5, generator)
    trees = [Tree(batch.topology, tuple(row)) for row in tokens.tolist()]
    return batch_of(trees, batch.topology, toy.target, toy.draft)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_torch_equals_reference_on_trees_cut_anywhere(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    cut = seen = 0

    def compare(toy: Toy) -> None:
        nonlocal cut, seen
        batch = cut_batch(toy, name)
        check_decisions(name, batch, uniforms_for(repr(toy), batch), dtype, device)
        check_stop_laws(name, cut_batch(toy, name, size=4), dtype, device)
        cut += sum(-1 in tree.tokens for tree in batch.trees)
        seen += len(batch.trees)

    for_toys(name, compare, examples=60)
    assert cut >= seen / 3, f"{cut} of {seen} trees have an empty slot"


def stopping(trees: Any, salt: int, whole: bool) -> Iterator[tuple[Tree, Fraction]]:
    """Trees whose nodes keep as many children as their own path says, never what comes after."""
    for tree, chance in trees:
        tokens = list(tree.tokens)
        for node in tree.topology.internal:
            slots = tree.topology.children(node)
            kept = 0
            if tokens[node] >= 0:
                path = enumeration.node_path(Tree(tree.topology, tuple(tokens)), node)
                kept = crc32(bytes([salt, *path])) % (len(slots) + 1)
            kept = 0 if whole and kept < len(slots) else kept
            for slot in slots[kept:]:
                tokens[slot] = -1
        yield Tree(tree.topology, tuple(tokens)), chance


@pytest.mark.parametrize("name", NAMES)
def test_output_law_is_target_exactly_wherever_drafting_stops(name: str) -> None:
    verifier = reference.VERIFIERS[name]
    whole = keeps_all_or_none(verifier.DRAFTING)

    def check(toy: Toy) -> None:
        for salt in range(2):
            drafted = enumeration.drafted_trees(verifier.DRAFTING, toy.topology, toy.draft)
            trees = stopping(drafted, salt, whole)
            outputs = enumeration.outputs_on(verifier.stop_law, trees, toy.target, toy.draft)
            check_outputs(outputs, toy)

    for_toys(name, check, examples=60, max_drafted=60)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_without_children_is_a_leaf(name: str) -> None:
    """To the last bit; and no row that nothing was drawn from is read, not even if it is NaN."""
    arity = min(VERIFIERS[name].max_arity or 3, 3)
    spec, stem = f"{arity}x2", Topology.parse(f"{arity}x1")
    topology = Topology.parse(spec)
    generator = torch_generator(f"leaf/{name}")

    def rows(count: int) -> torch.Tensor:
        return torch.rand(64, count, 6, dtype=torch.float64, generator=generator).softmax(-1)

    target, draft = rows(topology.num_nodes), rows(len(topology.internal))
    uniforms = torch.rand(64, topology.num_nodes + 1, dtype=torch.float64, generator=generator)
    tokens = torch.full((64, topology.num_nodes), -1)
    tokens[:, 0] = 0
    drawn = reference.drafting.draft_children
    for b in range(64):
        law, eta = draft[b, 0].numpy(), uniforms[b, :arity].numpy()
        tokens[b, 1 : 1 + arity] = torch.tensor(drawn(VERIFIERS[name].drafting, law, arity, eta))
    draft[:, 1:] = math.nan
    few = stem.num_nodes
    small = DraftTree(stem, tokens[:, :few])
    alone = torch.cat([uniforms[:, :few], uniforms[:, -1:]], 1)
    expected = verify(name, small, target[:, :few], draft[:, :1], uniforms=alone)
    found = verify(name, DraftTree(topology, tokens), target, draft, uniforms=uniforms)
    assert torch.equal(found.tokens[:, :2], expected.tokens)
    laws = [
        stop_law(name, *parts)
        for parts in (
            (DraftTree(topology, tokens), target, draft),
            (small, target[:, :few], draft[:, :1]),
        )
    ]
    assert torch.equal(laws[0].stop_probs[:, :few], laws[1].stop_probs)
    assert torch.equal(laws[0].next_token_probs()[:, :few], laws[1].next_token_probs())
    # Level by level from logits, where no row of the vocabulary is worth being read alone.
    decided = by_level(
        resolve(name), DraftTree(topology, tokens), target.log(), draft.log(), Filters(), uniforms
    )
    near = near_a_threshold(name, small, target[:, :few], draft[:, :1], alone)
    assert ((decided[1] == expected.next_token) | near).all()


@pytest.mark.parametrize("spec", ["2x2", "eagle", "chain:3", "[[0],[1],[2],[1,0],[1,1],[1,0,0]]"])
@pytest.mark.parametrize("name", NAMES)
def test_tree_by_tree_decides_as_levels_do_on_trees_cut_anywhere(name: str, spec: str) -> None:
    drafting = VERIFIERS[name].drafting
    tree, target, draft, uniforms = logits(name, spec, "plain", batch=200)
    generator = torch_generator(f"{name}/{spec}")
    tree = DraftTree(tree.topology, cut_trees(tree.topology, tree.tokens, drafting, 0.5, generator))
    check_laws(name, (tree, target, draft, uniforms))
    rows = (resolve(name), tree, target, draft, Filters(), uniforms)
    for found, expected in zip(by_tree(*rows), by_level(*rows), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("function", ["verify", "stop_law", "verify_logits", "reference"])
def test_half_a_pair_is_refused_unless_it_has_all_mass(name: str, function: str) -> None:
    topology = Topology.parse("2x2")
    tokens = (0, 1, 0, 2, -1, -1, -1)
    tree = DraftTree(topology, torch.tensor([tokens]))
    target = torch.full((1, 7, 3), 1 / 3, dtype=torch.float64)
    draft = torch.tensor([[[0.6, 0.3, 0.1]] * 3], dtype=torch.float64)
    uniforms = torch.zeros(1, 8, dtype=torch.float64)
    oracle = reference.VERIFIERS[name]
    calls: dict[str, Callable[[], Any]] = {
        "verify": lambda: verify(name, tree, target, draft, uniforms=uniforms),
        "stop_law": lambda: stop_law(name, tree, target, draft),
        "verify_logits": lambda: verify_logits(
            name, tree, target.log(), draft.log(), uniforms=uniforms
        ),
        "reference": lambda: oracle.stop_law(
            Tree(topology, tokens), target[0].numpy(), draft[0].numpy()
        ),
    }
    call = calls[function]
    error = ValueError if function == "reference" else InputError
    with pytest.raises(error, match=r"node 1 .*children \[2.*draws all of a node's children"):
        call()
    draft[0, 1] = torch.tensor([0.0, 0.0, 1.0])
    call()


@pytest.mark.parametrize("name", sorted({"token_verification", "block_verification", *HALF}))
def test_planted_fault_asking_a_rule_without_children_is_caught(name: str) -> None:
    broken = plant(*JUDGED)["univer.verifiers"]
    arity = VERIFIERS[name].max_arity
    topology = Topology.parse(f"{arity}x1")
    tree = DraftTree(topology, torch.tensor([[0] + [-1] * (arity or 1)]))
    target = torch.tensor([[[0.2, 0.5, 0.3]] * topology.num_nodes], dtype=torch.float64)
    draft = torch.tensor([[[0.6, 0.3, 0.1]]], dtype=torch.float64)
    uniforms = torch.zeros(1, topology.num_nodes + 1, dtype=torch.float64)
    assert int(verify(name, tree, target, draft, uniforms=uniforms).next_token) == 0
    assert int(broken.verify(name, tree, target, draft, uniforms=uniforms).next_token) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_pattern_of_a_small_tree_equals_the_reference(name: str) -> None:
    """All ways to fill the slots of a node and of its first child, not some of them."""
    verifier = VERIFIERS[name]
    arity = min(verifier.max_arity or 3, 3)
    paths = [[j] for j in range(arity)] + [[0, j] for j in range(arity)]
    topology, whole = Topology.parse(paths), keeps_all_or_none(verifier.drafting)
    generator = np.random.default_rng(3)
    target = generator.dirichlet(np.ones(5), topology.num_nodes)
    draft = generator.dirichlet(np.ones(5), 2)
    drawn = [reference.drafting.draft_children(verifier.drafting, q, arity, [0.3] * arity)
             for q in draft]  # fmt: skip
    counts = (0, arity) if whole else range(arity + 1)
    for above, below in product(counts, counts):
        below = below if above else 0
        tokens = [0, *drawn[0][:above], *[-1] * (arity - above)]
        tokens += [*drawn[1][:below], *[-1] * (arity - below)]
        rows = torch.from_numpy(target)[None], torch.from_numpy(draft)[None]
        law = stop_law(name, DraftTree(topology, torch.tensor([tokens])), *rows)
        exact = reference.VERIFIERS[name].stop_law(Tree(topology, tuple(tokens)), target, draft)
        ours = law.stop_probs[..., None] * law.next_token_probs()
        joint = exact.stop_probs[:, None] * exact.next_token_probs()
        assert np.abs(ours[0].numpy() - joint).max() <= 1e-12
