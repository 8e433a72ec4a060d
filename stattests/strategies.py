"""Hypothesis strategies for laws, trees and toy language models (needs the `test` extra).

Laws are exact fractions built from small whole numbers, so that they have zeros, ties, one-hot and
peaked rows as often as plain ones, and shrink to readable ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod
from zlib import crc32

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from univer import DRAFTING, PAPER, VERIFIERS, Topology

MAX_TREES = 120  # drafted trees a toy: exact fractions take about a millisecond each
WEIGHTS = st.sampled_from([0, 1, 1, 2, 3, 5, 10**9])  # 10^9: all but a billionth on one token

Weights = tuple[int, ...]
FractionLaw = NDArray[np.object_]


def fractions(weights: Weights) -> FractionLaw:
    """The law with these weights, in fractions."""
    total = sum(weights)
    law = np.empty(len(weights), dtype=object)
    law[:] = [Fraction(weight, total) for weight in weights]
    return law


def weights(vocab: int) -> st.SearchStrategy[Weights]:
    """Whole numbers, not all zero, that make a law."""
    one_hot = st.integers(0, vocab - 1).map(lambda t: tuple(int(t == x) for x in range(vocab)))
    plain = st.tuples(*[WEIGHTS] * vocab).filter(any)
    return st.one_of(plain, plain, plain, one_hot)


@st.composite
def law_pairs(draw: st.DrawFn, vocab: int) -> tuple[Weights, Weights]:
    """Target and draft weights: unrelated, equal, or with disjoint supports."""
    target = draw(weights(vocab))
    kind = draw(st.sampled_from(["unrelated", "unrelated", "equal", "disjoint"]))
    if kind == "equal":
        return target, target
    draft = draw(weights(vocab))
    if kind == "disjoint":
        apart = tuple(w if not t else 0 for w, t in zip(draft, target, strict=True))
        return target, apart if any(apart) else draft
    return target, draft


@dataclass(frozen=True)
class Toy:
    """A language model small enough to enumerate: a pool of laws, chosen by the whole prefix."""

    vocab: int
    parents: tuple[int, ...]
    pool: tuple[tuple[Weights, Weights], ...]

    @cached_property
    def topology(self) -> Topology:
        """The shape of its draft trees."""
        return Topology(self.parents)

    def _pair(self, prefix: tuple[int, ...]) -> tuple[Weights, Weights]:
        return self.pool[crc32(bytes(prefix)) % len(self.pool)]

    def target(self, prefix: tuple[int, ...]) -> FractionLaw:
        """Target law after a prefix."""
        return fractions(self._pair(prefix)[0])

    def draft(self, prefix: tuple[int, ...]) -> FractionLaw:
        """Draft law after a prefix."""
        return fractions(self._pair(prefix)[1])


@lru_cache
def _most_outcomes(drafting: str, vocab: int, arity: int) -> int:
    return len(DRAFTING[drafting].outcomes(np.full(vocab, 1 / vocab), arity))


def max_trees(topology: Topology, vocab: int, drafting: str = "without_replacement") -> int:
    """An upper bound on the number of different trees that can be drafted."""
    return prod(
        _most_outcomes(drafting, vocab, len(topology.children(v))) for v in topology.internal
    )


@st.composite
def topologies(draw: st.DrawFn, max_nodes: int = 7, max_arity: int = 3) -> Topology:
    """Ragged trees: leaves at any depth, arities from 1, the empty tree now and then."""
    parents = [-1]
    for node in range(1, draw(st.integers(1, max_nodes))):
        # Parents that never decrease give every tree in level order.
        first = parents[-1] if node > 1 else 0
        if parents.count(first) >= max_arity:
            first += 1
        parents.append(draw(st.integers(first, node - 1)))
    return Topology(tuple(parents))


@st.composite
def toys(
    draw: st.DrawFn,
    shapes: st.SearchStrategy[Topology] | None = None,
    max_drafted: int = MAX_TREES,
    drafting: str = "without_replacement",
) -> Toy:
    """Toy models whose laws depend on the prefix, on ragged trees.

    `drafting` says for which draft law `max_drafted` must hold: `top_residual` draws far fewer
    trees, so that larger vocabularies fit.
    """
    topology = draw(topologies() if shapes is None else shapes)
    fits = [v for v in (5, 4, 3, 2) if max_trees(topology, v, drafting) <= max_drafted]
    sizes = fits or [2]
    vocab = draw(st.sampled_from(sizes))
    pool = draw(st.lists(law_pairs(vocab), min_size=1, max_size=6))
    return Toy(vocab, topology.parents, tuple(pool))


def toys_of(name: str, max_drafted: int = MAX_TREES) -> st.SearchStrategy[Toy]:
    """Toy models on trees that a verifier of VERIFIERS takes."""
    verifier = VERIFIERS[name]
    shapes = topologies(max_arity=verifier.max_arity or 3)
    return toys(shapes, max_drafted, verifier.drafting)


def for_toys(
    name: str, check: Callable[[Toy], None], examples: int = 100, max_drafted: int = MAX_TREES
) -> None:
    """Check on toy models: a third of the examples for verifiers that the paper does not have.

    They share all code with the paper's but the rule of one layer, which has checks of its own.
    """
    examples = examples if name in PAPER else examples // 3

    suppressed = (*settings().suppress_health_check, HealthCheck.filter_too_much)

    @settings(max_examples=examples, suppress_health_check=suppressed)
    @given(toy=toys_of(name, max_drafted))
    def on_toys(toy: Toy) -> None:
        check(toy)

    on_toys()


def chains(max_depth: int = 3) -> st.SearchStrategy[Topology]:
    """Trees with one child a node."""
    return st.integers(1, max_depth).map(lambda d: Topology(tuple(range(-1, d))))


scales = st.fractions(0, 1, max_denominator=12)  # p~_v, the acceptance of a node's own prefix
