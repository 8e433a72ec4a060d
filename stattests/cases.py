"""The registered cases: which problems a certification runs, per layer.

Between them: a tie at the top m - 1 edge, support smaller than m, nodes with one child, a leaf
before an inner node, V > 8, depths to 7, 4 children, chains, temperatures other than 1, zeros in
either law; vocabularies to 151,936; in every layer drafters that stop early.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from stattests.early_stops import CHANCE
from stattests.problems import EARLY, FAMILIES, RAGGED, WIDE_FAMILIES, Problem, make_problem
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
FORKED = "[[0],[1],[1,0],[1,1]]"  # few enough drafts to list even where a token may come twice
TREES = Cases(
    sampled=(
        ("sharp", "2x2", 6),
        ("sharp", "chain:3", 5),
        ("sharp", "chain:3/early", 5),
        ("dirichlet-.3", f"{RAGGED}/early", 6),
        ("dirichlet-.3", RAGGED, 6),
        ("near", "2x2", 6),
        ("sharp", "4x2", 7),
        ("near", "3x2/early", 6),
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
            for topology in ("2x1", "3x1", "chain:2", "2x2", "[[0],[1],[1,0]]", FORKED)
        ),
        *((family, f"{topology}/early", 4) for family in HARD for topology in ("2x1", "chain:3")),
        ("sharp", f"{FORKED}/early", 4),
        ("near", "3x1/early", 5),
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
        ("near", "2x4/early", 8),
        ("temperature-2", "chain:5/early", 9),
    ),
    probed=(
        ("sharp", "2x1", 4),
        ("sharp", "chain:2", 4),
        ("sharp", "chain:1/early", 4),
        ("sharp", "2x1/early", 4),
        ("dirichlet-.3", "2x1", 4),
        ("near", "[[0],[1],[0,0]]", 4),
    ),
    probed_batched=(
        *((family, "2x1", 5) for family in FAMILIES if family not in WIDE_FAMILIES),
        *((family, "chain:2", 4) for family in ("ties", "disjoint", "peaked-target", "top-p")),
        ("small-support", "3x1", 5),
        ("ties", "2x2", 4),
        ("ties", FORKED, 4),
        ("dirichlet-.3", "[[0],[1],[1,0]]", 4),
        ("near", "[[0],[1],[1,0]]/early", 4),
        ("ties", "3x1/early", 5),
        ("dirichlet-.3", "chain:2/early", 4),
    ),
    wide=(
        ("wide", "2x1", 32_768),
        ("zipf", "chain:2", 50_257),
        ("wide", "chain:1", 151_936),
        ("zipf", "2x2/early", 32_768),
    ),
    small=(
        *("chain:1", "2x1", "chain:2", "[[0],[1],[0,0]]", "[[0],[1],[1,0]]", "2x2"),
        *("chain:1/early", "2x1/early", "chain:2/early", "[[0],[1],[1,0]]/early"),
    ),
    default="2x2",
)
CHAINS = Cases(
    sampled=(
        ("sharp", "chain:3", 5),
        ("sharp", "chain:3/early", 5),
        ("dirichlet-.3", "chain:2", 6),
        ("near", "chain:5/early", 8),
        ("temperature-.5", "chain:3", 6),
        ("sharp", "chain:7", 5),
        ("near", "chain:5", 8),
        *((family, "chain:3", 9) for family in ("ties", "top-p", "top-k", "temperature-2")),
        *((family, "chain:2", 6) for family in ("equal", "disjoint", "small-support")),
        *((family, "chain:2", 6) for family in ("peaked-draft", "peaked-target")),
        ("dirichlet-3", "chain:3", 12),
    ),
    exact=tuple(
        (family, f"chain:{depth}", 4)
        for family in HARD
        for depth in ("1", "2", "4", "1/early", "3/early")
    ),
    integrated=(
        ("temperature-.5", "chain:5", 12),
        ("near", "chain:8", 8),
        ("temperature-2", "chain:5/early", 9),
    ),
    probed=(
        ("sharp", "chain:1", 4),
        ("sharp", "chain:2", 4),
        ("near", "chain:2", 4),
        ("sharp", "chain:1/early", 4),
        ("sharp", "chain:2/early", 4),
    ),
    probed_batched=(
        *(
            (family, "chain:2", 4)
            for family in FAMILIES
            if family not in (*WIDE_FAMILIES, "sharp", "near")
        ),
        ("near", "chain:3/early", 4),
        ("dirichlet-.3", "chain:2/early", 4),
    ),
    wide=(
        ("wide", "chain:1", 32_768),
        ("zipf", "chain:2", 50_257),
        ("wide", "chain:1", 151_936),
        ("zipf", "chain:3/early", 32_768),
    ),
    small=("chain:1", "chain:2", "chain:3", "chain:1/early", "chain:2/early"),
    default="chain:3",
)


def first_children(topology: Topology, most: int) -> Topology:
    """The tree with only the first `most` children of every node, and what hangs below them."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node in topology.internal:
        if node in paths:
            for rank, child in enumerate(topology.children(node)[:most]):
                paths[child] = (*paths[node], rank)
    return Topology.from_paths(paths.values())


def narrowed(topology: str, most: int) -> str:
    """How a registered tree is called once it is cut to `most` children a node.

    Example:
        >>> [narrowed(topology, 2) for topology in ("4x2", "eagle", "chain:3")]
        ['2x2', 'eagle-2', 'chain:3']
    """
    spec, slash, early = topology.partition("/")
    shape = Topology.parse(spec)
    cut = first_children(shape, most)
    if cut == shape:
        return topology
    regular = f"{most}x{shape.depth}"
    regular = regular if Topology.parse(regular) == cut else f"{spec}-{most}"
    return regular + slash + early


@lru_cache
def cases_for(max_arity: int | None, full_trees: bool = False) -> Cases:
    """The cases of a verifier that takes this many children a node, None for any number.

    With `full_trees`, only those in which no slot is ever empty.
    """
    cases = CHAINS if max_arity == 1 else TREES

    def narrow(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        if max_arity is None or cases is CHAINS:
            return rows
        cut = ((family, narrowed(shape, max_arity), vocab) for family, shape, vocab in rows)
        return tuple(dict.fromkeys(cut))

    def taken(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        return tuple(row for row in narrow(rows) if not full_trees or problem(*row).full)

    return replace(
        cases,
        sampled=taken(cases.sampled),
        exact=taken(cases.exact),
        integrated=taken(cases.integrated),
        probed=taken(cases.probed),
        probed_batched=taken(cases.probed_batched),
        wide=taken(cases.wide),
        small=tuple(s for s in cases.small if not (full_trees and s.endswith(EARLY))),
    )


@lru_cache
def problem(family: str, topology: str, vocab: int) -> Problem:
    """A registered problem, its topology a spec or what `narrowed` gives."""
    tree, slash, early = topology.partition("/")
    spec, _, most = tree.partition("-")
    label = "ragged" if spec == RAGGED else spec.replace(" ", "")
    if not most:
        return make_problem(family, spec + slash + early, vocab, label=label)
    shape = first_children(Topology.parse(spec), int(most))
    stops = CHANCE if early else 0.0
    return make_problem(family, shape, vocab, label=f"{label}-{most}", stops=stops)


def problems(rows: tuple[Row, ...]) -> list[Problem]:
    """The problems of some rows."""
    return [problem(*row) for row in rows]


def users_own(
    topology: str | None,
    vocab: int | None,
    max_arity: int | None = None,
    full_trees: bool = False,
) -> list[Problem]:
    """Problems on a topology and vocabulary that the user names, one with drafts that stop early.

    Raises:
        InputError: a tree without drafts or wider than the verifier takes, too few tokens.
    """
    if topology is None and vocab is None:
        return []
    shape = Topology.parse(topology or cases_for(max_arity).default)
    if not shape.internal:
        raise InputError(f"topology: {topology!r} has no drafts to verify; give a tree or a chain.")
    arity = shape.max_arity
    if max_arity is not None and arity > max_arity:
        fits = "chain:4" if max_arity == 1 else f"{max_arity}x3"
        raise InputError(
            f"topology: {topology!r} has nodes with {arity} children, but this verifier takes at"
            f" most {max_arity} a node; give one such as {fits}."
        )
    size = max(6, arity + 2) if vocab is None else vocab
    own = [make_problem(family, shape, size) for family in ("near", "dirichlet-.3")]
    return own if full_trees else [*own, make_problem("near", shape, size, stops=CHANCE)]
