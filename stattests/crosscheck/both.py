"""One toy shown to both sides: trees drawn once, laws as fractions, float64 and float32.

Letters: B trees, N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference import enumeration
from reference.decision import Tree
from reference.drafting import draft_children
from stattests.strategies import Toy
from stattests.streams import numpy_generator
from univer import VERIFIERS, DraftTree, Topology

GOLDEN = Path(__file__).parent / "golden"
LARGEST = 1 - 2**-53  # the largest float64 below 1

# Rounding of sums and products over at most 5 tokens and 7 nodes, each within 2^-53 of exact.
FLOAT64_TOLERANCE = 1e-12
# Thresholds of float32 laws differ by their rounding, 2^-24, times what the rules amplify.
FLOAT32_MARGIN = 1e-6


@dataclass(frozen=True)
class Batch:
    """Trees of one topology with their laws, exact and as tensors."""

    topology: Topology
    trees: tuple[Tree, ...]
    target: tuple[Any, ...]  # one object array [N, V] a tree
    draft: tuple[Any, ...]  # one object array [I, V] a tree

    @property
    def draft_tree(self) -> DraftTree:
        """The same trees for torch."""
        return DraftTree(self.topology, torch.tensor([tree.tokens for tree in self.trees]))

    def rows(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """target_probs [B, N, V] and draft_probs [B, I, V]."""
        target, draft = (
            torch.tensor(np.array(laws).astype(np.float64), dtype=dtype)
            for laws in (self.target, self.draft)
        )
        return target, draft


def batch_of(trees: list[Tree], topology: Topology, target: Any, draft: Any) -> Batch:
    """A batch of these trees of a model given by its laws."""
    rows = [enumeration.tree_laws(tree, target, draft) for tree in trees]
    return Batch(topology, tuple(trees), tuple(p for p, _ in rows), tuple(q for _, q in rows))


def drawn_batch(toy: Toy, drafting: str, size: int = 16) -> Batch:
    """Trees drawn from a toy by the oracle, from a stream of their own."""
    generator = numpy_generator(f"{toy}/{drafting}")
    topology = toy.topology
    trees = []
    for _ in range(size):
        tokens = [0] + [-1] * (topology.num_nodes - 1)
        for node in topology.internal:
            if tokens[node] >= 0:
                prefix = enumeration.node_path(Tree(topology, tuple(tokens)), node)
                slots = topology.children(node)
                drawn = draft_children(
                    drafting, toy.draft(prefix), len(slots), generator.random(len(slots))
                )
                for slot, token in zip(slots, drawn, strict=True):
                    tokens[slot] = token
        trees.append(Tree(topology, tuple(tokens)))
    return batch_of(trees, topology, toy.target, toy.draft)


def all_trees(name: str, topology: Topology, target: Any, draft: Any) -> tuple[Batch, list[Any]]:
    """Every tree that a verifier's draft law can draw, with the probabilities."""
    drafted = list(enumeration.drafted_trees(VERIFIERS[name].drafting, topology, draft))
    trees = [tree for tree, _ in drafted]
    return batch_of(trees, topology, target, draft), [chance for _, chance in drafted]


@cache
def golden_cases() -> dict[str, Any]:
    """The 90 golden cases by name."""
    cases = json.loads((GOLDEN / "cases.json").read_text())
    return {case["name"]: case for case in cases}


def _law(table: dict[str, list[str]]) -> Any:
    """A golden table of laws as a function of the prefix."""
    laws = {
        tuple(int(token) for token in key.split(",") if token): np.array(
            [Fraction(value) for value in values], dtype=object
        )
        for key, values in table.items()
    }
    return laws.__getitem__


def golden_model(case: dict[str, Any]) -> tuple[Topology, Any, Any]:
    """Topology, target and draft laws of a golden case."""
    return Topology.from_parents(case["parents"]), _law(case["target"]), _law(case["draft"])


def joint_rows(
    case: dict[str, Any], answer: dict[str, Any], tree: Tree
) -> Iterator[list[Fraction]]:
    """A golden stop law, one row [V] a node: the probability of stopping there with each token."""
    for node in range(tree.topology.num_nodes):
        key = ",".join(map(str, enumeration.node_path(tree, node)))
        present = tree.tokens[node] >= 0
        row = answer["stop_law"].get(key) if present else None
        yield [Fraction(value) for value in row or ["0"] * case["vocab"]]
