"""One toy shown to both sides: trees drawn once, laws as fractions, float64 and float32.

Letters: B trees, N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from stattests.cases import first_children
from stattests.strategies import Toy
from stattests.streams import numpy_generator
from univer import VERIFIERS, DraftTree, Topology, verifiers

GOLDEN = Path(__file__).parent / "golden"
LARGEST = 1 - 2**-53  # the largest float64 below 1

# Masses are sums and products of at most some 50 numbers in [0, 1], each within 2^-53 of exact.
FLOAT64_TOLERANCE = 1e-12
# A threshold is a ratio of such masses: where what is left is as small as 1e-9 (the peaked laws),
# an error of 1e-16 becomes 1e-7 of it. Such a place is reached with probability 1e-9.
THRESHOLD_MARGIN = 1e-6


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

    def rows(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """target_probs [B, N, V] and draft_probs [B, I, V]."""
        target, draft = (
            torch.tensor(np.array(laws).astype(np.float64), dtype=dtype, device=device)
            for laws in (self.target, self.draft)
        )
        return target, draft

    def on(self, device: torch.device) -> DraftTree:
        """The same trees on a device."""
        return DraftTree(self.topology, self.draft_tree.tokens.to(device))

    def as_float32(self) -> Batch:
        """The same trees with the laws that float32 rows say, exactly: in fractions."""
        return replace(self, target=_rounded(self.target), draft=_rounded(self.draft))


def _rounded(laws: tuple[Any, ...]) -> tuple[Any, ...]:
    """Laws rounded to float32 and renormalised, as fractions."""
    rounded = []
    for law in laws:
        floats = law.astype(np.float64).astype(np.float32)
        exact = np.array([Fraction(float(x)) for x in floats.flat], dtype=object)
        exact = exact.reshape(law.shape)
        rounded.append(exact / exact.sum(-1, keepdims=True) if exact.size else exact)
    return tuple(rounded)


def fitting(name: str, spec: Any) -> Topology:
    """The tree of a spec, cut to the children a node that a row of VERIFIERS takes."""
    shape, most = Topology.parse(spec), VERIFIERS[name].max_arity
    return shape if most is None else first_children(shape, most)


def acceptance_of(name: str, tree: DraftTree, target: Tensor, draft: Tensor) -> Tensor:
    """The thresholds [B, N] that the uniforms are compared with."""
    verifier, target_rows, draft_rows = verifiers._check_probs(name, tree, target, draft)
    judged = verifiers._judge(verifier, tree.topology, tree.tokens, target_rows, draft_rows)
    return judged.acceptance


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


def by_path(batch: Batch) -> dict[tuple[Any, ...], int]:
    """Each tree's place in the batch by the paths of its present nodes, as golden cases name it."""
    nodes = range(batch.topology.num_nodes)
    return {
        tuple(enumeration.node_path(tree, v) for v in nodes if tree.tokens[v] >= 0): i
        for i, tree in enumerate(batch.trees)
    }


def joint_rows(
    case: dict[str, Any], answer: dict[str, Any], tree: Tree
) -> Iterator[list[Fraction]]:
    """A golden stop law, one row [V] a node: the probability of stopping there with each token."""
    for node in range(tree.topology.num_nodes):
        key = ",".join(map(str, enumeration.node_path(tree, node)))
        present = tree.tokens[node] >= 0
        row = answer["stop_law"].get(key) if present else None
        yield [Fraction(value) for value in row or ["0"] * case["vocab"]]
