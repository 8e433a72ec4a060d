"""A rule of one layer composed over a tree, for rules that are published for one layer only.

`layer(s, p, q, tokens)` gives what one node does at scale s: the masses of its children, in draw
order, the residual [V] and the mass of the rejection.

- `local`: every entered node has scale 1; its children are tried in draw order.
- `conditional` (Theorem 4): a child's chance, given that the earlier ones failed, is the scale of
  its own layer; nodes are tried in post-order.

Drafted twins are branches of their own, or `merged`: judged together as the first of them, with the
children of all, as K rollouts that begin alike are one path of a prefix tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Attempts, Laws, StopLaw, TreeLike, VerifyOutput, Visit
from reference.drafting import WHOLE
from reference.laws import Law, Number, ratio, without

Layer = Callable[[Number, Law, Law, Sequence[int]], tuple[list[Number], Law, Number]]
Place = tuple[int, ...]  # a node, then those of its twins that are merged into it


@dataclass(frozen=True)
class Composed:
    """A verifier with the two functions of a reference module."""

    DRAFTING: str
    layer: Layer
    conditional: bool
    merged: bool = False

    def _split(
        self, laws: Laws, place: Place, scale: Number
    ) -> tuple[list[tuple[Place, Number]], Law, Number]:
        """Places below with their chances after the earlier ones; next token; fallback."""
        p, tree = laws.target(place[0]), laws.tree
        children = [u for node in place for u in decision.present_children(tree, node)]
        if not children:
            return [], p, scale
        draft = next(laws.draft(v) for v in place if decision.present_children(tree, v))
        tokens = [laws.token(u) for u in children]
        slots = sum(len(tree.topology.children(node)) for node in place)
        if self.DRAFTING in WHOLE and len(tokens) < slots and without(draft, *tokens).any():
            raise ValueError(
                f"tree.tokens: node {place[0]} has only the children {tokens} of {slots};"
                f" {self.DRAFTING!r} draws all of a node's children, or the drafter none."
            )
        masses, residual, rejected = self.layer(scale, p, draft, tokens)
        groups: dict[int, list[int]] = {}
        for j, x in enumerate(tokens):
            groups.setdefault(x if self.merged else j, []).append(j)
        shares = [sum(masses[j] for j in group) for group in groups.values()]
        beyond = residual.sum() + rejected
        chances = [ratio(share, sum(shares[k:], beyond)) for k, share in enumerate(shares)]
        below = [tuple(children[j] for j in group) for group in groups.values()]
        fallback = ratio(residual.sum(), beyond)
        return list(zip(below, chances, strict=True)), residual if fallback > 0 else p, fallback

    def _visits(self, laws: Laws, place: Place, scale: Number) -> Iterator[Visit]:
        tries, weights, fallback = self._split(laws, place, scale)
        for below, chance in tries:
            yield from self._visits(laws, below, chance)
        yield place[0], fallback, weights

    def _attempts(self, laws: Laws) -> Attempts:
        places: dict[int, Place] = {0: (0,)}

        def attempts(node: int) -> tuple[list[tuple[int, Number]], Law]:
            tries, weights, _ = self._split(laws, places[node], laws.one)
            places.update((below[0], below) for below, _ in tries)
            return [(below[0], chance) for below, chance in tries], weights

        return attempts

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
            visits = self._visits(laws, (0,), laws.one)
            return decision.verify_post_order(laws, visits, uniforms)
        return decision.verify_top_down(laws, self._attempts(laws), uniforms)

    def stop_law(self, tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
        """The exact law of (stop node, next token) given the tree."""
        laws = Laws.of(tree, target_probs, draft_probs)
        if self.conditional:
            return decision.stop_law_post_order(laws, self._visits(laws, (0,), laws.one))
        return decision.stop_law_top_down(laws, self._attempts(laws))
