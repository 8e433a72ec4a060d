"""The most draft mass that one layer can keep, exactly: a transport from drafts to tokens.

A set of drafts may be turned into any of its own tokens; token t can take s p(t) in all (Definition
1). The largest flow is the optimum of SpecTr's and Khisti et al.'s problem for independent drafts,
and Theorem 5's for `top_residual`. Ford and Fulkerson's search along shortest paths, in fractions.
"""

from __future__ import annotations

from collections import defaultdict, deque

from numpy.typing import ArrayLike

from reference.drafting import children_law
from reference.laws import Number, as_laws

Node = tuple[str, int]


def accepted_mass(drafting: str, scale: Number, p: ArrayLike, q: ArrayLike, arity: int) -> Number:
    """The largest expected accepted mass of a locally lossless rule.

    Example:
        >>> from fractions import Fraction
        >>> half = [Fraction(1, 2), Fraction(1, 2)]
        >>> accepted_mass("with_replacement", Fraction(1), [Fraction(1), Fraction(0)], half, 2)
        Fraction(3, 4)
    """
    room: dict[Node, dict[Node, Number]] = defaultdict(dict)
    source, sink = ("source", 0), ("sink", 0)
    for number, (children, chance) in enumerate(children_law(drafting, q, arity)):
        room[source]["drafts", number] = chance
        for token in set(children) - {-1}:
            room["drafts", number]["token", token] = chance
    for token, mass in enumerate(as_laws(p)):
        room["token", token][sink] = scale * mass
    return _largest_flow(room, source, sink)


def _largest_flow(room: dict[Node, dict[Node, Number]], source: Node, sink: Node) -> Number:
    total: Number = 0
    while True:
        came_from, ahead = {source: source}, deque([source])
        while ahead and sink not in came_from:
            at = ahead.popleft()
            for to, left in room[at].items():
                if left > 0 and to not in came_from:
                    came_from[to] = at
                    ahead.append(to)
        if sink not in came_from:
            return total
        steps, at = [], sink
        while at != source:
            steps.append((came_from[at], at))
            at = came_from[at]
        flow = min(room[a][b] for a, b in steps)
        for a, b in steps:
            room[a][b] -= flow
            room[b][a] = room[b].get(a, 0) + flow
        total += flow
