"""UniVer (the UniVer paper, Eqs. 3-7, Algorithm 1): conditional optimal transport, post-order.

Draft law: `top_residual`; the last slot u_m is the sampled child.

| paper | here | meaning |
|---|---|---|
| p~_v | scale s | acceptance of v given that the decision reaches it; 1 at the root |
| M_b, M_s^not | p, residual_draft | target law; draft law without the fixed children |
| Z | total | 1 - s + sum [s p - q']+ |
| p_v(u) | child_acceptance | marginal mass of child u |
| p_v(not v) | rejection_mass | mass that leaves the subtree of v |
| p~_v^res | fallback | acceptance of v itself after all its children failed |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Laws, StopLaw, TreeLike, VerifyOutput, Visit
from reference.laws import Law, Number, normalise, one, positive_part, ratio, without

DRAFTING = "top_residual"


def layer(
    scale: Number, p: Law, q: Law, fixed: Sequence[int], sampled: int
) -> tuple[list[Number], Law, Number]:
    """Child masses (fixed children, then the sampled one), residual, rejection mass; Eqs. 3-7.

    `sampled` is -1 if the residual draft law had no mass and no child was drawn.
    """
    residual_draft = normalise(without(q, *fixed)) if sampled >= 0 else q * 0
    surplus = positive_part(scale * p - residual_draft)
    total = 1 - scale + surplus.sum()  # Z, Eq. 3
    at_sampled = scale * 0
    if sampled >= 0:
        at_sampled = ratio(scale * p[sampled], residual_draft[sampled])  # Eq. 4
    if total == 0:  # s = 1 and p = q': the sampled child takes everything
        return [scale * 0] * len(fixed) + [one(p)], p * 0, scale * 0
    factor = (1 - at_sampled) / total
    masses = [surplus[x] * factor for x in fixed]  # Eq. 5
    if sampled >= 0:
        masses.append(at_sampled)
    children = [*fixed, sampled] if sampled >= 0 else fixed
    residual = without(surplus, *children) * factor  # Eq. 6
    return masses, residual, factor * (1 - scale)  # Eq. 7


def visits(laws: Laws, node: int, scale: Number) -> Iterator[Visit]:
    """The subtree of a node that is reached with acceptance `scale`, in post-order."""
    children = decision.present_children(laws.tree, node)
    if node not in laws.tree.topology.internal:
        yield node, scale, laws.target(node)
        return
    sampled = laws.token(laws.tree.topology.children(node)[-1])
    tokens = [laws.token(u) for u in children]
    fixed = tokens[:-1] if sampled >= 0 else tokens
    p = laws.target(node)
    masses, residual, rejected = layer(scale, p, laws.draft(node), fixed, sampled)
    beyond = residual.sum() + rejected
    for j, u in enumerate(children):
        # 1 - (mass of the earlier children), summed from what is left (SPEC 8)
        yield from visits(laws, u, ratio(masses[j], sum(masses[j:], beyond)))
    fallback = ratio(residual.sum(), beyond)  # 1 - n / (1 - sum a)
    yield node, fallback, residual if fallback > 0 else p


def verify(
    tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike, *, uniforms: ArrayLike
) -> VerifyOutput:
    """The decision with given uniforms [N + 1]: slot v accepts node v, slot N draws the token."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.verify_post_order(laws, visits(laws, 0, laws.one), uniforms)


def stop_law(tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
    """The exact law of (stop node, next token) given the tree."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.stop_law_post_order(laws, visits(laws, 0, laws.one))
