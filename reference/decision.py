"""What every reference verifier is given and gives back, and the two ways of walking a tree.

A verifier file says how one node splits its mass; here that becomes a decision with given uniforms
(`verify`) or the exact law of the decision (`stop_law`):

- top-down (RRSw, Greedy): `attempts(v)` lists the children of an entered node, each with the
  probability that it is entered after the earlier ones were not, and the weights of the next token
  if none is;
- post-order (Traversal, UniVer): the visits are every node that is tried, in order, each with the
  probability that it is accepted after all earlier ones were not, and the next token's weights.

Letters: N nodes, I internal nodes, V vocabulary, D depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference.laws import Law, Number, as_laws, inverse_cdf, normalise, one

Visit = tuple[int, Number, Law]


class TopologyLike(Protocol):
    """The parts of a topology that are read here."""

    @property
    def parents(self) -> tuple[int, ...]:
        """Parent of each node, in level order; -1 for the root."""

    @property
    def internal(self) -> tuple[int, ...]:
        """Nodes with child slots, in level order."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""

    def children(self, node: int, /) -> tuple[int, ...]:
        """Child slots in draw order."""


class TreeLike(Protocol):
    """Any object with a topology and tokens [N]; -1 marks an absent node."""

    @property
    def topology(self) -> TopologyLike:
        """The tree's shape."""

    @property
    def tokens(self) -> Any:
        """Token ids, [N]."""


@dataclass(frozen=True)
class Topology:
    """A tree's shape: parents in level order, parents[0] = -1."""

    parents: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parents)

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(u for u, parent in enumerate(self.parents) if parent == v)
            for v in range(len(self.parents))
        )

    def children(self, node: int) -> tuple[int, ...]:
        """Child slots in draw order."""
        return self._children[node]

    @cached_property
    def internal(self) -> tuple[int, ...]:
        """Nodes with child slots, in level order."""
        return tuple(v for v, children in enumerate(self._children) if children)


@dataclass(frozen=True)
class Tree:
    """A drafted tree: tokens [N], the root's first, -1 for an absent node."""

    topology: TopologyLike
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class VerifyOutput:
    """As univer.VerifyOutput, without the batch axis."""

    accepted_nodes: NDArray[np.int64]  # [D], -1 padded
    num_accepted: int
    next_token: int
    tokens: NDArray[np.int64]  # [D + 1], -1 padded


@dataclass(frozen=True)
class StopLaw:
    """As univer.StopLaw, without the batch axis."""

    stop_probs: Law  # [N]
    next_token_probs: Callable[[], Law]  # () -> [N, V]
    expected_accepted: Number


class Verifier(Protocol):
    """What a reference module, or a rule composed over trees, offers."""

    @property
    def DRAFTING(self) -> str:  # noqa: N802 - the name of a module's constant
        """Its draft law."""

    def verify(
        self,
        tree: TreeLike,
        target_probs: ArrayLike,
        draft_probs: ArrayLike,
        *,
        uniforms: ArrayLike,
    ) -> VerifyOutput:
        """The decision with given uniforms [N + 1]."""

    def stop_law(self, tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
        """The exact law of (stop node, next token) given the tree."""


def path(topology: TopologyLike, node: int) -> list[int]:
    """Nodes from the root's child down to `node`."""
    nodes: list[int] = []
    while node > 0:
        nodes.insert(0, node)
        node = topology.parents[node]
    return nodes


def present_children(tree: TreeLike, node: int) -> list[int]:
    """The children that were drawn."""
    return [u for u in tree.topology.children(node) if tree.tokens[u] >= 0]


@dataclass(frozen=True)
class Laws:
    """The laws of one tree, by node: target(v), draft(v)."""

    tree: TreeLike
    target_probs: Law
    draft_probs: Law

    @staticmethod
    def of(tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> Laws:
        """Laws from arrays [N, V] and [I, V], floats or fractions.

        Raises:
            ValueError: floats beside fractions, or tokens that are not those of one tree.
        """
        if np.ndim(tree.tokens) != 1 or len(tree.tokens) != tree.topology.num_nodes:
            raise ValueError(
                f"tree.tokens: expected one tree's {tree.topology.num_nodes} tokens, got an array"
                f" of shape {list(np.shape(tree.tokens))}."
            )
        target, draft = as_laws(target_probs), as_laws(draft_probs)
        if draft.size and target.dtype != draft.dtype:
            raise ValueError(
                "target_probs, draft_probs: one holds floats, the other fractions or whole numbers;"
                " give both as floats or both as fractions."
            )
        return Laws(tree, target, draft)

    def target(self, node: int) -> Law:
        """The target law after a node."""
        row: Law = self.target_probs[node]
        return row

    def draft(self, node: int) -> Law:
        """The law that an internal node's children were drawn from."""
        row: Law = self.draft_probs[self.tree.topology.internal.index(node)]
        return row

    def token(self, node: int) -> int:
        """The token at a node; -1 if it is absent."""
        return int(self.tree.tokens[node])

    @property
    def one(self) -> Number:
        """The number 1 of the laws' own kind."""
        return one(self.target_probs)


def _uniforms(laws: Laws, uniforms: ArrayLike) -> NDArray[Any]:
    eta = np.asarray(uniforms)
    if eta.shape != (laws.tree.topology.num_nodes + 1,):
        raise ValueError(
            f"uniforms: expected [N + 1] = [{laws.tree.topology.num_nodes + 1}] numbers,"
            f" got shape {list(eta.shape)}."
        )
    return eta


def _output(laws: Laws, node: int, weights: Law, uniform: Number) -> VerifyOutput:
    topology = laws.tree.topology
    depth = max(len(path(topology, v)) for v in range(topology.num_nodes))
    nodes = path(topology, node)
    next_token = inverse_cdf(weights, uniform)
    tokens = [*(laws.token(v) for v in nodes), next_token]
    pad = depth - len(nodes)
    return VerifyOutput(
        np.array(nodes + [-1] * pad, dtype=np.int64),
        len(nodes),
        next_token,
        np.array(tokens + [-1] * pad, dtype=np.int64),
    )


def _stop_law(laws: Laws, stops: Iterable[Visit]) -> StopLaw:
    """The law from (node, probability of stopping there, weights of the next token)."""
    # Not 0 x the laws: the row of an absent node may hold anything.
    stop_probs = np.full(len(laws.target_probs), laws.one * 0)
    rows = np.full(laws.target_probs.shape, laws.one * 0)
    for node, prob, weights in stops:
        stop_probs[node] = prob
        if prob > 0:
            rows[node] = normalise(weights)
    topology = laws.tree.topology
    lengths = [len(path(topology, v)) for v in range(topology.num_nodes)]
    expected = sum((p * d for p, d in zip(stop_probs, lengths, strict=True)), laws.one * 0)
    return StopLaw(stop_probs, lambda: rows, expected)


def verify_post_order(laws: Laws, visits: Iterable[Visit], uniforms: ArrayLike) -> VerifyOutput:
    """Accept the first visited node v with uniforms[v] < its acceptance; the root at the latest."""
    eta = _uniforms(laws, uniforms)
    for node, acceptance, weights in visits:
        if eta[node] < acceptance or node == 0:
            return _output(laws, node, weights, eta[-1])
    raise AssertionError("the root is visited last")


def stop_law_post_order(laws: Laws, visits: Iterable[Visit]) -> StopLaw:
    """Exclusive running product over the visits."""

    def stops() -> Iterator[Visit]:
        alive = laws.one
        for node, acceptance, weights in visits:
            accepted = laws.one if node == 0 else acceptance
            yield node, alive * accepted, weights
            alive = alive * (1 - accepted)

    return _stop_law(laws, stops())


Attempts = Callable[[int], tuple[list[tuple[int, Number]], Law]]


def verify_top_down(laws: Laws, attempts: Attempts, uniforms: ArrayLike) -> VerifyOutput:
    """Enter the first child u with uniforms[u] < its acceptance; stop where none is entered."""
    eta, node = _uniforms(laws, uniforms), 0
    while True:
        tries, weights = attempts(node)
        entered = next((u for u, acceptance in tries if eta[u] < acceptance), None)
        if entered is None:
            return _output(laws, node, weights, eta[-1])
        node = entered


def stop_law_top_down(laws: Laws, attempts: Attempts) -> StopLaw:
    """Products along the paths."""

    def stops() -> Iterator[Visit]:
        reached = [(0, laws.one)]
        for node, prob in reached:  # grows while it is read: every entered child joins the end
            tries, weights = attempts(node)
            for child, acceptance in tries:
                reached.append((child, prob * acceptance))
                prob = prob * (1 - acceptance)
            yield node, prob, weights

    return _stop_law(laws, stops())
