"""The registered cases: which problems a certification runs, per layer.

Between them: a tie at the top m - 1 edge, support smaller than m, nodes with one child, a leaf
before an inner node, V > 8, depths to 7, 4 children, chains, temperatures other than 1, zeros in
either law; vocabularies to 151,936.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from stattests.problems import FAMILIES, RAGGED, WIDE_FAMILIES, Problem, make_problem
from univer import InputError, Topology

Row = tuple[str, str, int]  # family, topology, vocabulary


@dataclass(frozen=True)
class Cases:
    """What a certification runs, layer by layer.

    sampled: L3, sharp toys first, so that gross faults fall in seconds; edges and pairs take some.
    exact: L0. integrated: L2, trees whose drafts are too many to list: deep ones, and those that
    people decode with. probed, probed_batched: Lx, the latter where calls are cheap.
    wide: vocabularies of the usual sizes, for floors, running sums and tails that small ones hide.
    small: topologies on which a diagnosis looks for the smallest problem, in that order.
    default: the topology to which a user's own vocabulary is put.
    """

    sampled: tuple[Row, ...]
    exact: tuple[Row, ...]
    integrated: tuple[Row, ...]
    probed: tuple[Row, ...]
    probed_batched: tuple[Row, ...]
    wide: tuple[Row, ...]
    small: tuple[str, ...]
    default: str


HARD = (
    *("sharp", "dirichlet-.3", "near", "ties", "small-support", "peaked-draft", "disjoint"),
    *("equal", "temperature-.5", "top-p"),
)
TREES = Cases(
    sampled=(
        ("sharp", "2x2", 6),
        ("sharp", "chain:3", 5),
        ("dirichlet-.3", RAGGED, 6),
        ("near", "2x2", 6),
        ("sharp", "4x2", 7),
        ("sharp", "chain:7", 5),
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
        ("near", "eagle", 8),
    ),
    exact=(
        *(
            (family, topology, 5 if topology == "3x1" else 4)
            for family in HARD
            for topology in ("2x1", "3x1", "chain:2", "2x2", "[[0],[1],[1,0]]")
        ),
        ("sharp", "chain:4", 4),
        ("near", "chain:4", 4),
        ("sharp", "5x1", 7),
    ),
    integrated=(
        ("near", "2x4", 8),
        ("sharp", "3x3", 6),
        ("dirichlet-.3", RAGGED, 8),
        ("temperature-.5", "chain:5", 12),
        ("top-p", "eagle", 9),
    ),
    probed=(
        ("sharp", "2x1", 4),
        ("sharp", "chain:2", 4),
        ("dirichlet-.3", "2x1", 4),
        ("near", "[[0],[1],[0,0]]", 4),
    ),
    probed_batched=(
        *((family, "2x1", 5) for family in FAMILIES if family not in WIDE_FAMILIES),
        *((family, "chain:2", 4) for family in ("ties", "disjoint", "peaked-target", "top-p")),
        ("small-support", "3x1", 5),
        ("ties", "2x2", 4),
        ("dirichlet-.3", "[[0],[1],[1,0]]", 4),
    ),
    wide=(("wide", "2x1", 32_768), ("zipf", "chain:2", 50_257), ("wide", "chain:1", 151_936)),
    small=("chain:1", "2x1", "chain:2", "[[0],[1],[0,0]]", "[[0],[1],[1,0]]", "2x2"),
    default="2x2",
)
CHAINS = Cases(
    sampled=(
        ("sharp", "chain:3", 5),
        ("dirichlet-.3", "chain:2", 6),
        ("temperature-.5", "chain:3", 6),
        ("sharp", "chain:7", 5),
        ("near", "chain:5", 8),
        *((family, "chain:3", 9) for family in ("ties", "top-p", "top-k", "temperature-2")),
        *((family, "chain:2", 6) for family in ("equal", "disjoint", "small-support")),
        *((family, "chain:2", 6) for family in ("peaked-draft", "peaked-target")),
        ("dirichlet-3", "chain:3", 12),
    ),
    exact=tuple((family, f"chain:{depth}", 4) for family in HARD for depth in (1, 2, 4)),
    integrated=(("temperature-.5", "chain:5", 12), ("near", "chain:8", 8)),
    probed=(("sharp", "chain:1", 4), ("sharp", "chain:2", 4), ("near", "chain:2", 4)),
    probed_batched=tuple(
        (family, "chain:2", 4)
        for family in FAMILIES
        if family not in (*WIDE_FAMILIES, "sharp", "near")
    ),
    wide=(("wide", "chain:1", 32_768), ("zipf", "chain:2", 50_257), ("wide", "chain:1", 151_936)),
    small=("chain:1", "chain:2", "chain:3"),
    default="chain:3",
)


def cases_for(chains_only: bool) -> Cases:
    """The cases of a verifier that takes chains only, or of one that takes trees."""
    return CHAINS if chains_only else TREES


@lru_cache
def problem(family: str, topology: str, vocab: int) -> Problem:
    """A registered problem."""
    label = "ragged" if topology == RAGGED else topology.replace(" ", "")
    return make_problem(family, topology, vocab, label=label)


def problems(rows: tuple[Row, ...]) -> list[Problem]:
    """The problems of some rows."""
    return [problem(*row) for row in rows]


def is_chain(topology: Topology) -> bool:
    """Whether no node has two children."""
    return all(layer.arity == 1 for layer in topology.layers)


def users_own(topology: str | None, vocab: int | None, *, chains_only: bool) -> list[Problem]:
    """Problems on a topology and vocabulary that the user names.

    Raises:
        InputError: a tree without drafts, a tree for a verifier of chains, too few tokens.
    """
    if topology is None and vocab is None:
        return []
    shape = Topology.parse(topology or cases_for(chains_only).default)
    if not shape.internal:
        raise InputError(f"topology: {topology!r} has no drafts to verify; give a tree or a chain.")
    if chains_only and not is_chain(shape):
        raise InputError(
            f"topology: {topology!r} has nodes with several children, but this verifier declares"
            " chains_only; give a chain such as chain:4."
        )
    arity = max(layer.arity for layer in shape.layers)
    size = max(6, arity + 2) if vocab is None else vocab
    return [make_problem(family, shape, size) for family in ("near", "dirichlet-.3")]
