"""Traversal verification (Weng et al. 2025): from the leaves up, deleting what is rejected.

Draft law: `without_replacement`. The tree shrinks: always the first remaining branch is followed
down to its leaf; the leaf is accepted with its path's acceptance; a rejected leaf is deleted and
its parent's laws are rewritten as if that child had never been drafted.

| symbol | here | meaning |
|---|---|---|
| p_ini | acceptance[v] | min(1, acceptance of the parent x P(x)/Q(x)) |
| M_b at v | p[v] | target law, rewritten to norm([acceptance P - Q]+) after a rejection |
| M_s at v | q[v] | draft law, rewritten to norm(Q without x) |
"""

from __future__ import annotations

from collections.abc import Iterator

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Laws, StopLaw, TreeLike, VerifyOutput, Visit
from reference.laws import normalise, positive_part, ratio, without

DRAFTING = "without_replacement"


def _visits(laws: Laws) -> Iterator[Visit]:
    tree = laws.tree
    remaining = {v: decision.present_children(tree, v) for v in range(tree.topology.num_nodes)}
    p = {v: laws.target(v) for v in remaining}
    q = {v: laws.draft(v) for v in tree.topology.internal}
    acceptance = {0: laws.one}
    while True:
        v, parent = 0, -1
        while remaining[v]:
            parent, v = v, remaining[v][0]
            x = laws.token(v)
            if v not in acceptance:  # first visit; later ones find what rejections left
                acceptance[v] = ratio(acceptance[parent] * p[parent][x], q[parent][x])
        yield v, acceptance[v], p[v]
        if v == 0:
            return
        remaining[parent].pop(0)
        x = laws.token(v)
        rejected = positive_part(acceptance[parent] * p[parent] - q[parent])
        mass = rejected.sum()
        acceptance[parent] = ratio(mass, mass + (1 - acceptance[parent]))
        p[parent] = normalise(rejected) if mass > 0 else p[parent]
        q[parent] = normalise(without(q[parent], x))


def verify(
    tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike, *, uniforms: ArrayLike
) -> VerifyOutput:
    """The decision with given uniforms [N + 1]: slot v accepts node v, slot N draws the token."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.verify_post_order(laws, _visits(laws), uniforms)


def stop_law(tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
    """The exact law of (stop node, next token) given the tree."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.stop_law_post_order(laws, _visits(laws))
