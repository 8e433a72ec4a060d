"""The most draft mass that one layer can keep, exactly: a transport from drafts to tokens.

A set of drafts may be turned into any of its own tokens; token t can take s p(t) in all (Definition
1). The largest flow is the optimum of SpecTr's and Khisti et al.'s problem for independent drafts,
and Theorem 5's for `top_residual`. Ford and Fulkerson's search along shortest paths, in fractions.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache

from numpy.typing import ArrayLike

from reference.drafting import children_law
from reference.laws import Law, Number, as_laws, share_out

Node = tuple[str, int]
Rooms = dict[Node, dict[Node, Number]]
SOURCE, SINK = ("source", 0), ("sink", 0)


def accepted_mass(drafting: str, scale: Number, p: ArrayLike, q: ArrayLike, arity: int) -> Number:
    """The largest expected accepted mass of a locally lossless rule.

    Example:
        >>> from fractions import Fraction
        >>> half = [Fraction(1, 2), Fraction(1, 2)]
        >>> accepted_mass("with_replacement", Fraction(1), [Fraction(1), Fraction(0)], half, 2)
        Fraction(3, 4)
    """
    return _largest_flow(_rooms(drafting, scale * as_laws(p), q, arity))


def layer(
    drafting: str, s: Number, p: Law, q: Law, tokens: Sequence[int]
) -> tuple[list[Number], Law, Number]:
    """Child masses, residual, rejection mass of one of the best rules; every slot is filled.

    Of twins, the first has the mass. Which of several best rules it is, the search decides.
    """
    plan, left = _plan(drafting, tuple(s * p), tuple(q), len(tokens), p.dtype.kind)
    residual = s * p
    residual[:] = left  # a set of drafts that fails has none of it among its own tokens
    masses = [plan[tuple(tokens)][x] * (x not in tokens[:j]) for j, x in enumerate(tokens)]
    return masses, *share_out(1 - sum(masses), residual, s)


@lru_cache(maxsize=4096)
def _plan(
    drafting: str, wanted: tuple[Number, ...], q: tuple[Number, ...], arity: int, kind: str
) -> tuple[dict[tuple[int, ...], dict[int, Number]], list[Number]]:
    """Children -> the share of their chance that each token gets; what no drafts could become."""
    del kind  # what is known of floats is not what is known of fractions, which may equal them
    wanted_law, law = as_laws(list(wanted)), as_laws(list(q))
    rooms = _rooms(drafting, wanted_law, law, arity)
    _largest_flow(rooms)
    plan = {
        tuple(children): {
            x: rooms["token", x].get(("drafts", number), chance * 0) / chance
            for x in {*children} - {-1}
        }
        for number, (children, chance) in enumerate(children_law(drafting, law, arity))
    }
    return plan, [rooms["token", token][SINK] for token in range(len(wanted))]


def _rooms(drafting: str, wanted: Law, q: ArrayLike, arity: int) -> Rooms:
    """What may flow from place to place: source, sets of drafts, tokens, sink."""
    rooms: Rooms = defaultdict(dict)
    for number, (children, chance) in enumerate(children_law(drafting, q, arity)):
        rooms[SOURCE]["drafts", number] = chance
        for token in set(children) - {-1}:
            rooms["drafts", number]["token", token] = chance
    for token, mass in enumerate(wanted):
        rooms["token", token][SINK] = mass
    return rooms


def _largest_flow(room: Rooms) -> Number:
    """Its size; `room` is left with what may still flow, and backwards with what does."""
    total: Number = 0
    while True:
        came_from, ahead = {SOURCE: SOURCE}, deque([SOURCE])
        while ahead and SINK not in came_from:
            at = ahead.popleft()
            for to, left in room[at].items():
                if left > 0 and to not in came_from:
                    came_from[to] = at
                    ahead.append(to)
        if SINK not in came_from:
            return total
        steps, at = [], SINK
        while at != SOURCE:
            steps.append((came_from[at], at))
            at = came_from[at]
        flow = min(room[a][b] for a, b in steps)
        for a, b in steps:
            room[a][b] -= flow
            room[b][a] = room[b].get(a, 0) + flow
        total += flow
