"""Toy language models on which verifiers are certified, and the families they come from.

A problem is a topology and a pool of law pairs. Which pair follows a prefix is decided by a hash
of the whole prefix, so that laws depend on the path (a context-free toy hides every wrong-row
fault), problems of any vocabulary and depth cost nothing to hold, and one problem is one small JSON
object.

Letters: B trees, N nodes, V vocabulary, K law pairs of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests.early_stops import CHANCE
from stattests.streams import numpy_generator
from univer import Filters, InputError, Topology

Laws = NDArray[np.float64]  # [K, V]

LISTED = 4096  # largest vocabulary whose laws are written out
POOL_SIZE = 7  # law pairs a pool: coprime to the usual vocabularies and arities
WIDE_POOL_SIZE = 2  # the same of a real vocabulary: fewer laws, so that each is seen often
ONE_HOT_PAIR = 2  # a pair that the root does not use: one-hot there would leave nothing to see

ROOT_HASH = 0x2545F4914F6CDD1D
_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407


def extend_hash(hashes: Tensor, tokens: Tensor) -> Tensor:
    """The hash of a prefix with one more token: int64, wrapping."""
    mixed = hashes * _MULTIPLIER + (tokens + 2) * _INCREMENT
    return mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)


@dataclass(frozen=True, eq=False)
class Problem:
    """A toy model on a topology.

    name: how reports and streams call it.
    target, draft: the pool, float64 [K, V]; pair k is used together.
    family: where the pool came from.
    stops: chance that drafting stops at a node (`stattests.early_stops`).
    """

    name: str
    topology: Topology
    target: Laws
    draft: Laws
    family: str = "given"
    stops: float = 0.0

    def __post_init__(self) -> None:
        for side in ("target", "draft"):
            laws = getattr(self, side)
            if laws.ndim != 2 or laws.shape != self.target.shape:
                raise InputError(
                    f"{side}: expected [K, V] = {self.target.shape}, got {laws.shape}."
                )
            if (laws < 0).any() or not np.allclose(laws.sum(1), 1, atol=1e-9, rtol=0):
                raise InputError(f"{side}: every row must be a law.")

    @property
    def vocab(self) -> int:
        """Number V of tokens."""
        return int(self.target.shape[1])

    @property
    def full(self) -> bool:
        """Whether every slot is filled: no drafter stops, no law has too few tokens."""
        support = int((self.draft > 0).sum(1).min())
        return self.stops == 0 and support >= self.topology.max_arity

    def pair_of(self, hashes: Tensor) -> Tensor:
        """Which pair of the pool follows each prefix."""
        return ((hashes >> 33) & 0x3FFFFFFF) % len(self.target)

    def hash_of(self, prefix: Sequence[int]) -> int:
        """The hash of a prefix."""
        hashes = torch.tensor([ROOT_HASH], dtype=torch.int64)
        for token in prefix:
            hashes = extend_hash(hashes, torch.tensor([token]))
        return int(hashes[0])

    def target_law(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """The target's law after a prefix, [V]."""
        law: NDArray[np.float64] = self.target[self._pair(prefix)]
        return law

    def draft_law(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """The draft law after a prefix, [V]."""
        law: NDArray[np.float64] = self.draft[self._pair(prefix)]
        return law

    def _pair(self, prefix: Sequence[int]) -> int:
        return int(self.pair_of(torch.tensor([self.hash_of(prefix)]))[0])

    @cached_property
    def pool(self) -> tuple[Tensor, Tensor]:
        """Target and draft laws as tensors [K, V]."""
        return torch.from_numpy(self.target), torch.from_numpy(self.draft)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with hexadecimal floats: it reads back bit for bit.

        Laws of a real vocabulary would be megabytes: they are made again from name and family.
        """
        made = {
            "name": self.name,
            "family": self.family,
            "parents": list(self.topology.parents),
            "stops": self.stops,
        }
        if self.vocab > LISTED and self.family in FAMILIES:
            again = _pool(self.name, self.family, self.topology, self.vocab)
            if np.array_equal(again, (self.target, self.draft)):
                return {**made, "vocab": self.vocab}
        return {
            **made,
            "target": [[value.hex() for value in row] for row in self.target.tolist()],
            "draft": [[value.hex() for value in row] for row in self.draft.tolist()],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Problem:
        """The problem of `to_json`."""

        def laws(side: str) -> Laws:
            return np.array([[float.fromhex(value) for value in row] for row in data[side]])

        topology = Topology.from_parents(data["parents"])
        name, family, stops = data["name"], data["family"], data.get("stops", 0.0)
        if "vocab" in data:
            pool = _pool(name, family, topology, data["vocab"])
        else:
            pool = (laws("target"), laws("draft"))
        return Problem(name, topology, *pool, family, stops)


def normalised(weights: Any) -> Laws:
    """Weights [K, V] as laws."""
    rows = np.asarray(weights, dtype=np.float64)
    laws: Laws = rows / rows.sum(1, keepdims=True)
    return laws


Family = Callable[[np.random.Generator, int, int, int], tuple[Laws, Laws]]  # rng, K, V, arity


def _dirichlet(concentration: float) -> Family:
    def family(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
        del m
        target, draft = rng.dirichlet(np.full(v, concentration), size=(2, k))
        # Some target tokens cannot come: a verifier that emits one is found at once.
        target[np.arange(k), rng.integers(v, size=k)] = 0
        return normalised(target + 1e-12 * (target > 0)), normalised(draft + 1e-6)

    return family


def _near(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """A good drafter: target logits plus noise."""
    del m
    logits = rng.normal(size=(k, v)) * 1.3
    return _softmax(logits), _softmax(logits + 0.7 * rng.normal(size=(k, v)))


def _softmax(logits: NDArray[np.float64]) -> Laws:
    return normalised(np.exp(logits - logits.max(1, keepdims=True)))


def _wide(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """Nearly flat target laws, a tenth of them zeros, and a drafter that is often rejected."""
    del m
    logits = rng.normal(size=(k, v))
    target = np.exp(0.3 * logits) * (rng.random((k, v)) < 0.9)
    return normalised(target), _softmax(0.3 * logits + 2.0 * rng.normal(size=(k, v)))


def _peaked_draft(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """The draft has all but 1e-9 on one token."""
    target, draft = _dirichlet(1.0)(rng, k, v, m)
    peak = np.zeros((k, v))
    peak[np.arange(k), rng.integers(v, size=k)] = 1
    return target, normalised(peak + 1e-9 * draft)


def _peaked_target(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    target, draft = _peaked_draft(rng, k, v, m)
    return draft, np.where(target > 0, target, 1e-3) / (target + 1e-3 * (target == 0)).sum(
        1, keepdims=True
    )


def _disjoint(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """Supports that share nothing, or one token."""
    del m
    target, draft = rng.dirichlet(np.ones(v), size=(2, k))
    mine = rng.permuted(np.tile(np.arange(v) < v // 2, (k, 1)), axis=1)
    shared = mine.copy()
    shared[np.arange(k), rng.integers(v, size=k)] ^= rng.random(k) < 0.5
    return normalised(target * shared + 1e-300 * mine), normalised(draft * ~mine)


def _equal(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    del m
    laws = rng.dirichlet(np.ones(v), size=k)
    return laws, laws.copy()


def _ties(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """Small whole weights, with two tokens equal at the top m - 1 edge."""
    target = rng.integers(0, 4, size=(k, v)) + 0.0
    target[:, 0] += target.sum(1) == 0
    draft = rng.integers(1, 3, size=(k, v)) + 0.0
    order = rng.permuted(np.tile(np.arange(v), (k, 1)), axis=1)
    draft[np.arange(k)[:, None], order[:, : m - 2]] = 5
    draft[np.arange(k)[:, None], order[:, m - 2 : m]] = 4
    return normalised(target), normalised(draft)


def _small_support(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """Fewer draft tokens than children, and one-hot rows of both."""
    target, draft = rng.dirichlet(np.ones(v), size=(2, k))
    size = rng.integers(1, m + 1, size=(k, 1))
    ranks = draft.argsort(1).argsort(1)
    draft = np.where(ranks >= v - size, draft, 0)
    target[ONE_HOT_PAIR] = np.eye(v)[rng.integers(v)]
    return target, normalised(draft)


# Target and draft weights that show most faults by the most.
SHARP_PAIRS = (
    ((5, 0, 5), (1, 4, 5)),
    ((2, 8, 0), (1, 1, 8)),
    ((6, 4, 0), (1, 4, 5)),
    ((0, 4, 6), (2, 2, 6)),
    ((10, 1, 1), (2, 4, 4)),
    ((4, 1, 7), (2, 4, 4)),
    ((1, 5, 4), (1, 1, 8)),
    ((2, 2, 6), (2, 3, 5)),
)


def _sharp(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """The pairs that kill most faults by the most, embedded in the vocabulary, ids permuted."""
    del m
    target, draft = np.zeros((k, v)), np.zeros((k, v))
    for row in range(k):
        p, q = SHARP_PAIRS[row % len(SHARP_PAIRS)]
        ids = rng.permutation(v)
        target[row, ids[:3]], draft[row, ids[:3]] = p, q
        target[row, ids[3:]], draft[row, ids[3:]] = rng.random((2, v - 3))
    return normalised(target), normalised(draft)


def _shaped(filters: Filters) -> Family:
    """Draft and target shaped by one chain of filters, as requests shape them."""

    def family(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
        del m
        logits = torch.from_numpy(rng.normal(size=(k, v)) * 1.3)
        noise = torch.from_numpy(rng.normal(size=(k, v)))
        return normalised(filters(logits)), normalised(filters(logits + 0.7 * noise))

    return family


def _zipf(rng: np.random.Generator, k: int, v: int, m: int) -> tuple[Laws, Laws]:
    """Probabilities that fall like a power of the rank, to 1e-9 and below, as in real text."""
    del m
    ranks = rng.permuted(np.tile(np.arange(1.0, v + 1), (k, 1)), axis=1)
    noise = np.exp(rng.normal(size=(k, v)))
    return normalised(ranks**-1.1 * (rng.random((k, v)) < 0.9)), normalised(ranks**-1.4 * noise)


FAMILIES: dict[str, Family] = {
    "sharp": _sharp,
    "near": _near,
    "wide": _wide,
    "zipf": _zipf,
    "dirichlet-.3": _dirichlet(0.3),
    "dirichlet-3": _dirichlet(3.0),
    "ties": _ties,
    "small-support": _small_support,
    "disjoint": _disjoint,
    "equal": _equal,
    "peaked-draft": _peaked_draft,
    "peaked-target": _peaked_target,
    "temperature-.5": _shaped(Filters(0.5)),
    "temperature-2": _shaped(Filters(2.0)),
    "top-k": _shaped(Filters(1.0, top_k=3)),
    "top-p": _shaped(Filters(0.8, top_p=0.7)),
}

WIDE_FAMILIES = ("wide", "zipf")  # made for vocabularies of thousands
RAGGED = "[[0],[1],[2],[0,0],[1,0],[1,1],[1,0,0],[1,0,1]]"  # a leaf before an inner node, depth 3


EARLY = "/early"  # behind a topology: its drafter stops early


def parse_shape(topology: str | Topology) -> tuple[Topology, float]:
    """A tree, and the chance that drafting stops at a node of it: "2x2/early"."""
    if isinstance(topology, str) and topology.endswith(EARLY):
        return Topology.parse(topology.removesuffix(EARLY)), CHANCE
    return Topology.parse(topology), 0.0


def make_problem(
    family: str,
    topology: str | Topology,
    vocab: int,
    *,
    label: str = "",
    root: int = 0,
    stops: float = 0.0,
) -> Problem:
    """A problem of a family; the same arguments give the same problem.

    Args:
        family: a name in FAMILIES.
        topology: a tree or its spec; behind a spec, `/early` makes a drafter that stops early.
        vocab: number of tokens.
        label: how the tree is called in the problem's name.
        root: of the laws' stream.
        stops: chance that drafting stops at a node, where the spec does not say.

    Raises:
        InputError: an unknown family or topology, or a vocabulary too small for a hard problem.
    """
    if family not in FAMILIES:
        raise InputError(f"family: {family!r} is unknown; choose one of {', '.join(FAMILIES)}.")
    shape, early = parse_shape(topology)
    stops = stops or early
    arity = max(shape.max_arity, 1)
    if vocab < max(4, arity + 2):
        raise InputError(
            f"vocab: {vocab} is too small for {shape}; expected at least {max(4, arity + 2)} tokens"
            " (arity + 2, and 4): fewer hide faults."
        )
    name = f"{family}/{label or shape}{EARLY if stops else ''}/V{vocab}"
    return Problem(name, shape, *_pool(name, family, shape, vocab, root), family, stops)


def _pool(name: str, family: str, shape: Topology, vocab: int, root: int = 0) -> tuple[Laws, Laws]:
    rng = numpy_generator(f"problem/{name}", root=root)
    size = WIDE_POOL_SIZE if family in WIDE_FAMILIES else POOL_SIZE
    return FAMILIES[family](rng, size, vocab, max(shape.max_arity, 2))
