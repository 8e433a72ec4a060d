"""A rule of one layer composed over a tree, for rules that are published for one layer only.

`layer(s, p, q, tokens)` gives what one node does at scale s: the masses of its children, in draw
order, the residual [V] and the mass of the rejection.

- `local`: every entered node has scale 1; its children are tried in draw order.
- `conditional` (Theorem 4): a child's chance, given that the earlier ones failed, is the scale of
  its own layer; nodes are tried in post-order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Attempts, Laws, StopLaw, TreeLike, VerifyOutput, Visit
from reference.laws import Law, Number, ratio

Layer = Callable[[Number, Law, Law, Sequence[int]], tuple[list[Number], Law, Number]]


def _split(laws: Laws, layer: Layer, node: int, scale: Number) -> Any:
    """The children of an internal node, each one's chance after the earlier ones, and the rest."""
    children = decision.present_children(laws.tree, node)
    tokens = [laws.token(u) for u in children]
    masses, residual, rejected = layer(scale, laws.target(node), laws.draft(node), tokens)
    beyond = residual.sum() + rejected
    chances = [ratio(masses[j], sum(masses[j:], beyond)) for j in range(len(children))]
    return children, chances, residual, ratio(residual.sum(), beyond)


def _visits(laws: Laws, layer: Layer, node: int, scale: Number) -> Iterator[Visit]:
    if node not in laws.tree.topology.internal:
        yield node, scale, laws.target(node)
        return
    children, chances, residual, fallback = _split(laws, layer, node, scale)
    for u, chance in zip(children, chances, strict=True):
        yield from _visits(laws, layer, u, chance)
    yield node, fallback, residual if fallback > 0 else laws.target(node)


def _attempts(laws: Laws, layer: Layer) -> Attempts:
    def attempts(node: int) -> tuple[list[tuple[int, Number]], Law]:
        if node not in laws.tree.topology.internal:
            return [], laws.target(node)
        children, chances, residual, fallback = _split(laws, layer, node, laws.one)
        weights = residual if fallback > 0 else laws.target(node)
        return list(zip(children, chances, strict=True)), weights

    return attempts


@dataclass(frozen=True)
class Composed:
    """A verifier with the two functions of a reference module."""

    DRAFTING: str
    layer: Layer
    conditional: bool

    def verify(
        self,
        tree: TreeLike,
        target_probs: ArrayLike,
        draft_probs: ArrayLike,
        *,
        uniforms: ArrayLike,
    ) -> VerifyOutput:
        """The decision with given uniforms [N + 1], as in every reference module."""
        laws = Laws.of(tree, target_probs, draft_probs)
        if self.conditional:
            visits = _visits(laws, self.layer, 0, laws.one)
            return decision.verify_post_order(laws, visits, uniforms)
        return decision.verify_top_down(laws, _attempts(laws, self.layer), uniforms)

    def stop_law(self, tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
        """The exact law of (stop node, next token) given the tree."""
        laws = Laws.of(tree, target_probs, draft_probs)
        if self.conditional:
            return decision.stop_law_post_order(laws, _visits(laws, self.layer, 0, laws.one))
        return decision.stop_law_top_down(laws, _attempts(laws, self.layer))
