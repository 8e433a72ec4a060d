"""Locally lossless allocations that nobody designed, and both compositions of any allocation.

An invented allocation is a mixture of simple lossless rules, stirred: mass moves between two
tokens (or a token and the rejection) in one outcome of the draft and back in another, so that every
mean stays. What is left is lossless by Definition 1 and otherwise arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reference import decision, univer
from reference.decision import Attempts, Laws, StopLaw, Visit
from reference.drafting import children_law
from reference.enumeration import StopLawOf
from reference.laws import Law, ratio
from stattests.theorems.checks import layer_masses

# (scale, target, draft, children) -> masses of the V tokens and, last, of the rejection
Allocate = Callable[[Fraction, Law, Law, list[int]], Law]


def _places(masses: Law, rejected: Fraction) -> Law:
    places: Law = np.array([*masses, rejected], dtype=object)
    return places


def transport(scale: Fraction, p: Law, q: Law, children: list[int]) -> Law:
    """The `ot` rule."""
    masses, rejected = layer_masses(univer, scale, p, q, children)
    return _places(masses, rejected)


def ignoring(scale: Fraction, p: Law, q: Law, children: list[int]) -> Law:
    """Accept every child with its own target mass, whatever the draft law was."""
    del q, children
    return _places(scale * p, 1 - scale)


@dataclass(frozen=True)
class Invented:
    """A random locally lossless allocation for one draft law.

    `mix` weighs `transport` against `ignoring`; each stir names two outcomes, two of the V + 1
    places and the share of what could move.
    """

    drafting: str
    mix: Fraction
    stirs: tuple[tuple[int, int, int, int, Fraction], ...]

    def __call__(self, scale: Fraction, p: Law, q: Law, children: list[int]) -> Law:
        """The masses for one outcome of the draft."""
        outcomes = list(children_law(self.drafting, q, len(children)))
        table: list[Any] = [
            self.mix * transport(scale, p, q, drawn) + (1 - self.mix) * ignoring(scale, p, q, drawn)
            for drawn, _ in outcomes
        ]
        for i, j, a, b, share in self.stirs:
            i, j, a, b = i % len(outcomes), j % len(outcomes), a % (len(p) + 1), b % (len(p) + 1)
            if i != j and a != b:
                chance_i, chance_j = outcomes[i][1], outcomes[j][1]
                moved = share * min(chance_i * table[i][a], chance_j * table[j][b])
                table[i][a] -= moved / chance_i
                table[i][b] += moved / chance_i
                table[j][b] -= moved / chance_j
                table[j][a] += moved / chance_j
        masses: Law = table[[drawn for drawn, _ in outcomes].index(children)]
        return masses


def inventions(drafting: str) -> st.SearchStrategy[Invented]:
    """Random locally lossless allocations for a draft law."""
    place = st.integers(0, 30)
    share = st.fractions(0, 1, max_denominator=4)
    stirs = st.lists(st.tuples(place, place, place, place, share), max_size=6)
    mix = st.fractions(0, 1, max_denominator=4)
    return st.builds(Invented, st.just(drafting), mix, stirs.map(tuple))


def _split(laws: Laws, node: int, allocate: Allocate, scale: Fraction) -> Any:
    """(child, mass) in draw order, residual [V], rejection mass of one node."""
    tree, p = laws.tree, laws.target(node)
    if node not in tree.topology.internal:
        return [], scale * p, 1 - scale
    slots = tree.topology.children(node)
    masses = allocate(scale, p, laws.draft(node), [laws.token(u) for u in slots])
    accepted = [(u, masses[laws.token(u)]) for u in slots if laws.token(u) >= 0]
    residual = masses[:-1].copy()
    for u, _ in accepted:
        residual[laws.token(u)] *= 0
    return accepted, residual, masses[-1]


def _in_turn(accepted: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Each child's acceptance given that the earlier ones were not accepted."""
    left = Fraction(1)
    for u, mass in accepted:
        yield u, ratio(mass, left)
        left -= mass


def _visits(laws: Laws, rules: Sequence[Allocate], node: int, scale: Fraction) -> Iterator[Visit]:
    accepted, residual, rejected = _split(laws, node, rules[node % len(rules)], scale)
    for u, acceptance in _in_turn(accepted):
        yield from _visits(laws, rules, u, acceptance)
    yield node, ratio(residual.sum(), residual.sum() + rejected), residual


def _attempts(laws: Laws, rules: Sequence[Allocate]) -> Attempts:
    def attempts(node: int) -> tuple[list[tuple[int, Any]], Law]:
        accepted, residual, _ = _split(laws, node, rules[node % len(rules)], Fraction(1))
        return list(_in_turn(accepted)), residual

    return attempts


def composed(rules: Sequence[Allocate], composition: str) -> StopLawOf:
    """The stop law of allocations (node v uses rules[v mod their number]), composed either way."""

    def stop_law(tree: Any, target_probs: Law, draft_probs: Law) -> StopLaw:
        laws = Laws.of(tree, target_probs, draft_probs)
        if composition == "local":
            return decision.stop_law_top_down(laws, _attempts(laws, rules))
        return decision.stop_law_post_order(laws, _visits(laws, rules, 0, Fraction(1)))

    return stop_law
