"""RRSw: recursive rejection sampling without replacement, top-down (Li et al. 2024, EAGLE).

Draft law: `without_replacement`. At an entered node the children are tried in draw order:

| symbol | here | meaning |
|---|---|---|
| P | p | target law, the residual of the earlier rejections |
| Q | q | draft law without the children already tried |
| P(x)/Q(x) | acceptance | child x is entered with min(1, P(x)/Q(x)) |
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Attempts, Laws, StopLaw, TreeLike, VerifyOutput
from reference.laws import Law, Number, normalise, positive_part, ratio, without

DRAFTING = "without_replacement"


def _attempts(laws: Laws) -> Attempts:
    def attempts(node: int) -> tuple[list[tuple[int, Number]], Law]:
        p, tries = laws.target(node), []
        q = laws.draft(node) if node in laws.tree.topology.internal else p
        for u in decision.present_children(laws.tree, node):
            x = laws.token(u)
            tries.append((u, ratio(p[x], q[x])))
            rejected = positive_part(p - q)
            p = normalise(rejected) if rejected.sum() > 0 else p
            q = normalise(without(q, x))
        return tries, p

    return attempts


def verify(
    tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike, *, uniforms: ArrayLike
) -> VerifyOutput:
    """The decision with given uniforms [N + 1]: slot v enters node v, slot N draws the token."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.verify_top_down(laws, _attempts(laws), uniforms)


def stop_law(tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
    """The exact law of (stop node, next token) given the tree."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.stop_law_top_down(laws, _attempts(laws))
