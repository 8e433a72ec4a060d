"""STATS L0: the exact law of a verifier's output, from its stop law and every drafted tree.

Nothing is sampled: all trees that the draft law can draw are listed with their probabilities and
judged in one batch. What is left is rounding.

| symbol | name | SPEC 6 |
|---|---|---|
| F(s, t) | masses[s][t] | probability that the output begins with (s, t) |
| A(s) | sum of F(s, .) | probability that it passes s and goes beyond it |
| J(o) | joint | law of the first D + 1 tokens, shorter outputs continued by the target |

Letters: T trees, N nodes, I internal nodes, V vocabulary, D depth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests.early_stops import Outcomes, cut_outcomes
from stattests.problems import ROOT_HASH, Problem, extend_hash
from univer import DRAFTING, DraftTree, Topology
from univer.indices import columns, indices

MAX_TREES = 2000

Prefix = tuple[int, ...]
Masses = dict[Prefix, NDArray[np.float64]]  # prefix -> [V]


def count_trees(problem: Problem, drafting: str) -> int:
    """How many trees `drafted_trees` would list at the most."""
    count, outcomes = 1, _outcomes(problem, drafting)
    for node in problem.topology.internal:
        arity = len(problem.topology.children(node))
        count *= max(len(outcomes(law, arity)) for law in problem.draft)
    return count


def _outcomes(problem: Problem, drafting: str | Outcomes) -> Outcomes:
    """All that can be drawn at a node, the drafter's early stops included."""
    outcomes = DRAFTING[drafting].outcomes if isinstance(drafting, str) else drafting
    return cut_outcomes(outcomes, drafting, problem.stops) if problem.stops else outcomes


def drafted_trees(problem: Problem, drafting: str | Outcomes) -> tuple[Tensor, NDArray[np.float64]]:
    """Tokens int64 [T, N] of every tree that can be drawn, and their probabilities [T].

    `drafting` is a name in DRAFTING or lists the outcomes of one node: (law [V], arity) ->
    [(children, probability)].
    """
    outcomes, topology = _outcomes(problem, drafting), problem.topology
    found: list[tuple[list[int], float]] = [([0] + [-1] * (topology.num_nodes - 1), 1.0)]
    for node in topology.internal:
        slots = topology.children(node)
        grown = []
        for tokens, chance in found:
            if tokens[node] < 0:
                grown.append((tokens, chance))
                continue
            law = problem.draft_law([tokens[v] for v in topology.path(node)])
            for children, share in outcomes(law, len(slots)):
                filled = tokens.copy()
                for slot, token in zip(slots, children, strict=True):
                    filled[slot] = token
                grown.append((filled, chance * share))
        found = grown
    return torch.tensor([tokens for tokens, _ in found]), np.array([chance for _, chance in found])


def node_hashes(topology: Topology, tokens: Tensor) -> Tensor:
    """The hash of the prefix at every node, int64 [B, N]."""
    hashes = torch.full_like(tokens, ROOT_HASH)
    for level in topology.levels[1:]:
        nodes = list(level)
        parents = [topology.parents[v] for v in nodes]
        hashes[:, nodes] = extend_hash(hashes[:, parents], tokens[:, nodes])
    return hashes


def tree_rows(
    problem: Problem, hashes: Tensor, pool: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """target_probs [B, N, V] and draft_probs [B, I, V]; absent nodes have some law of the pool.

    `pool` stands for the problem's own where its tokens have other names.
    """
    target, draft = problem.pool if pool is None else pool
    pairs = problem.pair_of(hashes)
    inner = columns(pairs, indices(problem.topology, pairs.device).internal)

    def rows(laws: Tensor, at: Tensor) -> Tensor:
        return laws.index_select(0, at.flatten()).view(*at.shape, -1)

    return rows(target, pairs), rows(draft, inner)


def node_prefix(topology: Topology, tokens: list[int], node: int) -> Prefix:
    """The tokens from the root's child down to a node."""
    return tuple(tokens[v] for v in topology.path(node))


@dataclass(frozen=True)
class ExactLaw:
    """The exact law of the output on one problem.

    masses: F(s, .) for every prefix s that can be passed.
    expected_accepted: mean number of accepted draft tokens.
    total: probability that anything is emitted; 1 for a verifier that keeps its contract.
    """

    problem: Problem
    masses: Masses
    expected_accepted: float
    total: float

    def visit_prob(self, prefix: Prefix) -> float:
        """A(s)."""
        return float(self.masses[prefix].sum()) if prefix in self.masses else 0.0

    def conditional_tv(self, prefix: Prefix) -> float:
        """TV of the next token after a visited prefix."""
        row = self.masses[prefix]
        tv: float = np.abs(row / row.sum() - self.problem.target_law(prefix)).sum() / 2
        return tv

    def joint(self) -> dict[Prefix, float]:
        """J(o) for every sequence of D + 1 tokens."""
        vocab = self.problem.vocab
        level: dict[Prefix, float] = {(): self.total}
        for _ in range(self.problem.topology.depth + 1):
            grown: dict[Prefix, float] = {}
            for prefix, mass in level.items():
                beyond = self.masses.get(prefix, np.zeros(vocab))
                rows = (mass - beyond.sum()) * self.problem.target_law(prefix) + beyond
                grown |= {(*prefix, token): float(rows[token]) for token in range(vocab)}
            level = grown
        return level

    def joint_tv(self) -> float:
        """TV of the joint law of the first D + 1 tokens against the target's."""
        vocab, length = self.problem.vocab, self.problem.topology.depth + 1
        joint, distance = self.joint(), 0.0
        for tokens in product(range(vocab), repeat=length):
            exact = 1.0
            for i, token in enumerate(tokens):
                exact *= self.problem.target_law(tokens[:i])[token]
                if exact == 0:
                    break
            distance += abs(joint[tokens] - exact)
        return distance / 2


def law_of_stops(
    problem: Problem,
    tokens: Tensor,
    chances: NDArray[np.float64],
    stop_probs: NDArray[np.float64],
    next_token_probs: NDArray[np.float64],
) -> ExactLaw:
    """The output's law from (stop node, next token) given each tree, [T, N] and [T, N, V]."""
    topology = problem.topology
    joint = chances[:, None, None] * stop_probs[..., None] * next_token_probs
    ended: Masses = defaultdict(lambda: np.zeros(problem.vocab))
    for tree, row in enumerate(tokens.tolist()):
        for node in np.flatnonzero(joint[tree].any(-1)):
            ended[node_prefix(topology, row, int(node))] += joint[tree, node]
    masses: Masses = defaultdict(lambda: np.zeros(problem.vocab))
    for prefix in sorted(ended, key=len, reverse=True):
        masses[prefix] += ended[prefix]
    for prefix in sorted(masses, key=len, reverse=True):
        for length in range(len(prefix)):
            masses[prefix[:length]][prefix[length]] += ended[prefix].sum()
    depths = np.array(topology.depths)
    return ExactLaw(
        problem,
        dict(masses),
        float((joint.sum(-1) @ depths).sum()),
        float(joint.sum()),
    )


StopLawOf = Callable[[DraftTree, Tensor, Tensor], Any]


def exact_law(problem: Problem, drafting: str, stop_law: StopLawOf) -> ExactLaw:
    """The exact law of a verifier that has a stop law, over all drafted trees."""
    tokens, chances = drafted_trees(problem, drafting)
    rows = tree_rows(problem, node_hashes(problem.topology, tokens))
    law = stop_law(DraftTree(problem.topology, tokens), *rows)
    return law_of_stops(
        problem,
        tokens,
        chances,
        np.asarray(law.stop_probs, dtype=np.float64),
        np.asarray(law.next_token_probs(), dtype=np.float64),
    )
