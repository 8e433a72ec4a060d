"""`python -m reference.sibling_order FILE`: what the order of siblings is worth to UniVer, on toys.

Any order of a node's children that is settled before its grandchildren are drawn keeps UniVer's law
(SPEC 7): given the children, the subtrees are independent of each other, so that child u_j is
reached with chance L_j = 1 - (masses of those before it), and kept as a whole with a(u_j) whatever
the order. The order only says at which scale a(u_j) / L_j the subtree is judged.

| order | siblings are tried |
|---|---|
| `drawn` | as they were drawn: fixed ones by falling draft probability, then the sampled one |
| `reversed` | the other way round |
| `sampled_first` | the sampled one before the fixed ones |
| `heavy_first`, `light_first` | by falling or rising mass a(u) |
| `deep_first` | by falling depth of their subtrees, then as drawn |
| `looked_ahead` | as best for the accepted mass of the children's own layers (Eq. 10), of m! |
| `best` | as best for the length, which needs the laws of the whole subtree: a bound, not a rule |

The length is the sum over all nodes of the chance that the cycle stops below or at them; by the
above, W(v, s) = s + E sum_j L_j W(u_j, a_j / L_j) over the draws of v's children: exact.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from reference import decision
from reference.decision import Laws, Topology, TopologyLike, Visit
from reference.drafting import children_law
from reference.enumeration import NextLaw, Prefix
from reference.laws import Number, normalise, one, positive_part, ratio, without
from reference.toys import CONCENTRATIONS, toy_laws, write_or_show
from reference.univer import layer

DRAFTING = "top_residual"
TOYS, SEED = 40, 0
TOPOLOGIES = {
    "2x2": (-1, 0, 0, 1, 1, 2, 2),
    "3x2": (-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3),
    "2x3": (-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6),
    "chain below the first": (-1, 0, 0, 1, 3),
    "chain below the sampled": (-1, 0, 0, 2, 3),
    "two chains of 3": (-1, 0, 0, 1, 2, 3, 4),
}

Order = Callable[["Place"], list[int]]


@dataclass(frozen=True)
class Place:
    """What is known at a node before its grandchildren are drawn.

    masses: a(u) of the present children, in draw order.
    sampled: whether the last of them was drawn.
    depths: of their subtrees.
    gain: (child's position, scale) -> accepted mass of the child's own layer, 0 for a leaf.
    value: the same of the child's whole subtree, with itself; None where it is not known.
    """

    masses: Sequence[Number]
    sampled: bool
    depths: Sequence[int]
    gain: Callable[[int, Number], Number]
    value: Callable[[int, Number], Number] | None = None


def scales(masses: Sequence[Number], order: Iterable[int]) -> Iterator[tuple[int, Number, Number]]:
    """Each child's position, the chance L that it is tried, and its scale a / L, in this order."""
    left = sum(masses[:0], masses[0] * 0 + 1)
    for j in order:
        yield j, left, ratio(masses[j], left)
        left = left - masses[j] if left > masses[j] else left * 0


def _best_by(place: Place, value: Callable[[int, Number], Number]) -> list[int]:
    def worth(order: Iterable[int]) -> Number:
        return sum(left * value(j, s) for j, left, s in scales(place.masses, order))

    return list(max(permutations(range(len(place.masses))), key=worth))


def _positions(place: Place) -> list[int]:
    return list(range(len(place.masses)))


ORDERS: dict[str, Order] = {
    "drawn": _positions,
    "reversed": lambda place: _positions(place)[::-1],
    "sampled_first": lambda place: (
        [_positions(place)[-1], *_positions(place)[:-1]] if place.sampled else _positions(place)
    ),
    "heavy_first": lambda place: sorted(_positions(place), key=lambda j: -place.masses[j]),
    "light_first": lambda place: sorted(_positions(place), key=lambda j: place.masses[j]),
    "deep_first": lambda place: sorted(_positions(place), key=lambda j: -place.depths[j]),
    "looked_ahead": lambda place: _best_by(place, place.gain),
    "best": lambda place: _best_by(place, place.value or place.gain),
}


def accepted_mass(scale: Number, p: Any, q: Any, arity: int) -> Number:
    """Expected accepted mass of one layer (Eq. 10)."""
    fixed = sorted(range(len(q)), key=lambda token: (-q[token], token))[: arity - 1]
    rest = normalise(without(q, *fixed))
    return scale * p[fixed].sum() + (scale * p - positive_part(scale * p - rest)).sum()


def subtree_depth(topology: TopologyLike, node: int) -> int:
    """Levels below a node."""
    children = topology.children(node)
    return 1 + max(subtree_depth(topology, u) for u in children) if children else 0


def _place(
    masses: Sequence[Number],
    sampled: bool,
    topology: TopologyLike,
    slots: Sequence[int],
    rows: Callable[[int], tuple[Any, Any]],
    value: Callable[[int, Number], Number] | None = None,
) -> Place:
    def gain(j: int, scale: Number) -> Number:
        arity = len(topology.children(slots[j]))
        return accepted_mass(scale, *rows(j), arity) if arity else scale * 0

    return Place(masses, sampled, [subtree_depth(topology, u) for u in slots], gain, value)


def visits(laws: Laws, order: Order, node: int, scale: Number) -> Iterator[Visit]:
    """`reference.univer.visits` with the siblings in another order."""
    topology = laws.tree.topology
    if node not in topology.internal:
        yield node, scale, laws.target(node)
        return
    children = decision.present_children(laws.tree, node)
    sampled = laws.token(topology.children(node)[-1])
    tokens = [laws.token(u) for u in children]
    p = laws.target(node)
    fixed = tokens[:-1] if sampled >= 0 else tokens
    masses, residual, rejected = layer(scale, p, laws.draft(node), fixed, sampled)
    beyond = residual.sum() + rejected

    def rows(j: int) -> tuple[Any, Any]:
        return laws.target(children[j]), laws.draft(children[j])

    place = _place(masses, sampled >= 0, topology, children, rows)
    ordered = order(place) if children else []
    for position, j in enumerate(ordered):
        left = sum((masses[i] for i in ordered[position:]), beyond)
        yield from visits(laws, order, children[j], ratio(masses[j], left))
    fallback = ratio(residual.sum(), beyond)
    yield node, fallback, residual if fallback > 0 else p


@dataclass(frozen=True)
class Lengths:
    """Expected numbers of accepted tokens on one toy, exact for every order."""

    topology: TopologyLike
    target: NextLaw
    draft: NextLaw
    order: Order
    known: dict[Any, Number] = field(default_factory=dict)

    def of(self, prefix: Prefix, node: int, scale: Number) -> Number:
        """W of a node with this prefix: tokens accepted at it and below; the root is none."""
        key = (prefix, node, scale)
        if key not in self.known:
            below = scale * 0
            slots = self.topology.children(node)
            for drawn, chance in children_law(DRAFTING, self.draft(prefix), len(slots)):
                if slots and scale > 0:
                    below += chance * self._below(prefix, node, scale, drawn)
            self.known[key] = below + (scale if node else 0)
        return self.known[key]

    def _below(self, prefix: Prefix, node: int, scale: Number, drawn: list[int]) -> Number:
        present = [x for x in drawn if x >= 0]
        fixed = present[:-1] if drawn[-1] >= 0 else present
        masses, _, _ = layer(scale, self.target(prefix), self.draft(prefix), fixed, drawn[-1])
        slots = self.topology.children(node)

        def rows(j: int) -> tuple[Any, Any]:
            after = (*prefix, present[j])
            return self.target(after), self.draft(after)

        def value(j: int, s: Number) -> Number:
            return self.of((*prefix, present[j]), slots[j], s)

        place = _place(masses, drawn[-1] >= 0, self.topology, slots[: len(present)], rows, value)
        ordered = scales(masses, self.order(place))
        return sum((left * value(j, s) for j, left, s in ordered if masses[j] > 0), scale * 0)


def toys() -> dict[str, Any]:
    """All toys' numbers of accepted tokens by order, the next token not counted."""
    rows = []
    for place, (name, parents) in enumerate(TOPOLOGIES.items()):
        for toy in range(TOYS):
            concentration = CONCENTRATIONS[toy % len(CONCENTRATIONS)]
            laws = toy_laws(concentration, np.random.default_rng([SEED, place, toy]))
            found = {
                order: float(Lengths(Topology(parents), *laws, rule).of((), 0, one(laws[0](()))))
                for order, rule in ORDERS.items()
            }
            rows.append({"topology": name, "toy": toy, **found})
        print(f"{name}: {TOYS} toys", file=sys.stderr)
    return {"command": "python -m reference.sibling_order", "seed": SEED, "rows": rows}


def main(arguments: list[str]) -> None:
    """Write the lengths to the file that is named, or to the screen."""
    write_or_show(json.dumps(toys(), indent=1) + "\n", arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
