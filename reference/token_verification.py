"""The rule of a single draft (Leviathan et al. 2023; Chen et al. 2023), on a chain, token by token.

Every draft law that draws takes the only child of a node from q. Where nothing was drafted the next
token is the target's.

| symbol | here | meaning |
|---|---|---|
| p(x)/q(x) | acceptance | the draft x is kept with min(1, p(x)/q(x)) |
| p' | residual | norm([p - q]+), the law of the token that replaces a rejected one |
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Attempts, Laws, StopLaw, TreeLike, VerifyOutput
from reference.laws import Law, Number, positive_part, ratio

DRAFTING = "without_replacement"
MAX_ARITY = 1


def _attempts(laws: Laws) -> Attempts:
    def attempts(node: int) -> tuple[list[tuple[int, Number]], Law]:
        p, children = laws.target(node), decision.present_children(laws.tree, node)
        if not children:
            return [], p
        q, (child,) = laws.draft(node), children
        x, residual = laws.token(child), positive_part(p - q)
        return [(child, ratio(p[x], q[x]))], residual if residual.sum() > 0 else p

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
