"""The registered cases: which problems a certification runs, per layer.

Between them: a tie at the top m - 1 edge, support smaller than m, nodes with one child, a leaf
before an inner node, V > 8, depth 3, chains, temperatures other than 1, zeros in either law.
"""

from __future__ import annotations

from functools import lru_cache

from stattests.problems import FAMILIES, RAGGED, Problem, make_problem
from univer import Topology

# (family, topology, vocabulary); sharp toys first, so that gross faults fall in seconds.
SAMPLED = (
    ("sharp", "2x2", 6),
    ("sharp", "chain:3", 5),
    ("dirichlet-.3", RAGGED, 6),
    ("near", "2x2", 6),
    ("ties", "3x1", 9),
    ("small-support", "3x2", 6),
    ("temperature-.5", "chain:3", 6),
    ("temperature-2", "2x2", 9),
    ("top-k", "2x2", 9),
    ("top-p", RAGGED, 7),
    ("disjoint", "2x2", 6),
    ("equal", RAGGED, 6),
    ("peaked-draft", "2x2", 6),
    ("peaked-target", "2x2", 6),
    ("dirichlet-3", "3x1", 12),
)
EXACT = tuple(
    (family, topology, 5 if topology == "3x1" else 4)
    for family in (
        *("sharp", "dirichlet-.3", "near", "ties", "small-support", "peaked-draft", "disjoint"),
        *("equal", "temperature-.5", "top-p"),
    )
    for topology in ("2x1", "3x1", "chain:2", "2x2", "[[0],[1],[1,0]]")
)
PROBED = (
    ("sharp", "2x1", 4),
    ("sharp", "chain:2", 4),
    ("dirichlet-.3", "2x1", 4),
    ("near", "[[0],[1],[0,0]]", 4),
)
PROBED_BATCHED = (
    *((family, "2x1", 5) for family in FAMILIES if family != "wide"),
    *((family, "chain:2", 4) for family in ("ties", "disjoint", "peaked-target", "top-p")),
    ("small-support", "3x1", 5),
    ("ties", "2x2", 4),
    ("dirichlet-.3", "[[0],[1],[1,0]]", 4),
)
# Trees whose drafts are too many to list: deep ones, and those that people decode with.
INTEGRATED = (
    ("near", "2x4", 8),
    ("sharp", "3x3", 6),
    ("dirichlet-.3", RAGGED, 8),
    ("temperature-.5", "chain:5", 12),
    ("top-p", "eagle", 9),
)
# A vocabulary of the usual size: floors, running sums and tails that small ones do not show.
WIDE = (("wide", "2x1", 32_768),)
WIDE_CHAINS = (("wide", "chain:1", 32_768),)

CHAINS = (
    ("sharp", "chain:3", 5),
    ("dirichlet-.3", "chain:2", 6),
    ("temperature-.5", "chain:3", 6),
    ("top-p", "chain:3", 9),
    ("equal", "chain:2", 6),
    ("disjoint", "chain:2", 6),
    ("peaked-draft", "chain:2", 6),
)


@lru_cache
def problem(family: str, topology: str, vocab: int) -> Problem:
    """A registered problem."""
    label = "ragged" if topology == RAGGED else topology.replace(" ", "")
    return make_problem(family, topology, vocab, label=label)


def problems(rows: tuple[tuple[str, str, int], ...]) -> list[Problem]:
    """The problems of some rows."""
    return [problem(*row) for row in rows]


def users_own(topology: str | None, vocab: int | None) -> list[Problem]:
    """Problems on a topology and vocabulary that the user names."""
    if topology is None and vocab is None:
        return []
    shape = Topology.parse(topology or "2x2")
    arity = max((layer.arity for layer in shape.layers), default=1)
    size = max(6, arity + 2) if vocab is None else vocab
    return [make_problem(family, shape, size) for family in ("near", "dirichlet-.3")]
