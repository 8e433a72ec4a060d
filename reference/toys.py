"""Toy problems on which every verifier can be measured exactly: random laws, small trees.

The laws of a toy are drawn anew for each prefix, from Dirichlet laws, and are the same for all
verifiers and ways of drafting. In half of the toys the draft law knows nothing of the target's, in
the others it is half of it. The trees, by name:

| tree | drafted paths, as child numbers |
|---|---|
| `first:2`, `first:3` | two children; under the first, one or two more |
| `last:2`, `last:3` | the same under the last, which `top_residual` draws |
| `delayed` | one child, two below it |
| `rollouts:2`, `:3`, `:5` | two independent chains of this length from the root |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from reference.decision import Topology, path
from reference.enumeration import NextLaw, Prefix
from reference.laws import Law

SEED, VOCAB = 0, 5
CONCENTRATIONS = (0.3, 1.0)  # of the Dirichlet laws, by turns: sharp and flat
KINDS = ("unrelated", "close")  # draft laws, by turns: of their own, or half the target's


@dataclass(frozen=True)
class Shape:
    """A tree and how many tokens there are: what is enumerated grows with V^nodes."""

    parents: tuple[int, ...]
    vocab: int = 4

    @property
    def topology(self) -> Topology:
        """The tree."""
        return Topology(self.parents)

    @property
    def arity(self) -> int:
        """Most children of a node."""
        return max(self.parents.count(node) for node in range(len(self.parents)))


SHAPES = {
    "chain:2": Shape((-1, 0, 1)),
    "chain:3": Shape((-1, 0, 1, 2)),
    "2x1": Shape((-1, 0, 0)),
    "3x1": Shape((-1, 0, 0, 0)),
    "first:2": Shape((-1, 0, 0, 1)),
    "first:3": Shape((-1, 0, 0, 1, 1)),
    "last:2": Shape((-1, 0, 0, 2)),
    "last:3": Shape((-1, 0, 0, 2, 2)),
    "delayed": Shape((-1, 0, 1, 1)),
    "2x2": Shape((-1, 0, 0, 1, 1, 2, 2), vocab=3),
    "rollouts:2": Shape((-1, 0, 0, 1, 2)),
    "rollouts:3": Shape((-1, 0, 0, 1, 2, 3, 4), vocab=3),
    "rollouts:5": Shape((-1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8), vocab=2),
}


def toy_laws(
    concentration: float, rng: np.random.Generator, vocab: int = VOCAB
) -> tuple[NextLaw, NextLaw]:
    """Target and draft law of the next token, drawn anew for each prefix and then kept."""

    def law() -> Callable[[Prefix], Law]:
        known: dict[Prefix, Law] = {}

        def of(prefix: Prefix) -> Law:
            if prefix not in known:
                known[prefix] = rng.dirichlet(np.full(vocab, concentration))
            return known[prefix]

        return of

    return law(), law()


def kind_of(number: int) -> str:
    """How draft and target law of the toy of this number are related; sharp and flat by turns."""
    return KINDS[number // len(CONCENTRATIONS) % len(KINDS)]


def toy(name: str, number: int) -> tuple[NextLaw, NextLaw]:
    """Target and draft law of a toy of the tree of this name."""
    shape, rng = SHAPES[name], np.random.default_rng([SEED, list(SHAPES).index(name), number])
    target, own = toy_laws(CONCENTRATIONS[number % len(CONCENTRATIONS)], rng, shape.vocab)
    depth = max(len(path(shape.topology, node)) for node in range(len(shape.parents)))
    for length in range(depth + 1):
        for prefix in product(range(shape.vocab), repeat=length):
            # Asked for in this order: a law must not depend on which verifier comes first.
            target(prefix), own(prefix)
    if kind_of(number) == "unrelated":
        return target, own
    return target, lambda prefix: (target(prefix) + own(prefix)) / 2


def write_or_show(text: str, arguments: list[str]) -> None:
    """Write the text to the file that a command's first argument names, or to the screen."""
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
