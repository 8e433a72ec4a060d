"""Greedy multi-draft verification (Hu et al. 2025), top-down.

Draft law: `top_residual`; the last slot u_m is the sampled child. At an entered node, first u_m
competes with its own law; if it fails, a token is drawn from the surplus, and a fixed child that
is drawn there is accepted as well. Told child by child in draw order:

| symbol | here | meaning |
|---|---|---|
| q' | residual_draft | draft law without the fixed children, renormalised; 0 without u_m |
| alpha | sampled | min(1, p(u_m) / q'(u_m)) |
| W | surplus | norm([p - q']+) |
| a(u_k) | fixed | (1 - alpha) W(u_k) |
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Attempts, Laws, StopLaw, TreeLike, VerifyOutput
from reference.laws import Law, Number, normalise, positive_part, ratio, without

DRAFTING = "top_residual"


def _attempts(laws: Laws) -> Attempts:
    def attempts(node: int) -> tuple[list[tuple[int, Number]], Law]:
        p, slots = laws.target(node), laws.tree.topology.children(node)
        children = decision.present_children(laws.tree, node)
        if not children:
            return [], p
        tokens = [laws.token(u) for u in children]
        if laws.token(slots[-1]) >= 0:
            residual_draft = normalise(without(laws.draft(node), *tokens[:-1]))
            alpha = ratio(p[tokens[-1]], residual_draft[tokens[-1]])
            surplus = normalise(positive_part(p - residual_draft))
            if surplus.sum() == 0:  # p = q': the sampled child is always kept
                alpha = laws.one
            masses = [(1 - alpha) * surplus[x] for x in tokens[:-1]] + [alpha]
            residual = (1 - alpha) * without(surplus, *tokens)
        else:
            masses, residual = [p[x] for x in tokens], without(p, *tokens)
        tries = []
        for j, u in enumerate(children):
            left = sum(masses[j:], residual.sum())
            tries.append((u, ratio(masses[j], left)))
        return tries, residual if residual.sum() > 0 else p

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
