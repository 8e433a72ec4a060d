"""Block Verification (Sun et al. 2025): a chain is kept up to the longest prefix that passes.

Every draft law that draws takes the only child of a node from q. A chain ends with the last token
that was drafted.

| symbol | here | meaning |
|---|---|---|
| p_i | keep[i] | min(1, p_{i-1} M_b(x_i) / M_s(x_i)), p_0 = 1 |
| S_i | mass | sum of [p_i M_b - M_s]+ over the row after x_i |
| h_i | chance | S_i / (S_i + 1 - p_i); p_i for the last draft |
| tau | the first visit that passes | longest prefix with eta_i < h_i |

The token after a prefix that is not the whole chain comes from norm([p_tau M_b - M_s]+).
"""

from __future__ import annotations

from collections.abc import Iterator

from numpy.typing import ArrayLike

from reference import decision
from reference.decision import Laws, StopLaw, TreeLike, VerifyOutput, Visit
from reference.laws import positive_part, ratio

DRAFTING = "without_replacement"
MAX_ARITY = 1


def _visits(laws: Laws) -> Iterator[Visit]:
    drafted = [token for token in laws.tree.tokens[1:] if token >= 0]
    last, keep = len(drafted), [laws.one]
    for i in range(1, last + 1):
        x, p, q = laws.token(i), laws.target(i - 1), laws.draft(i - 1)
        keep.append(ratio(keep[i - 1] * p[x], q[x]))
    yield last, keep[last], laws.target(last)
    for i in reversed(range(last)):
        rejected = positive_part(keep[i] * laws.target(i) - laws.draft(i))
        mass = rejected.sum()
        yield i, ratio(mass, mass + (1 - keep[i])), rejected if mass > 0 else laws.target(i)


def verify(
    tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike, *, uniforms: ArrayLike
) -> VerifyOutput:
    """The decision with given uniforms [N + 1]: slot i tests prefix i, slot N draws the token."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.verify_post_order(laws, _visits(laws), uniforms)


def stop_law(tree: TreeLike, target_probs: ArrayLike, draft_probs: ArrayLike) -> StopLaw:
    """The exact law of (stop node, next token) given the tree."""
    laws = Laws.of(tree, target_probs, draft_probs)
    return decision.stop_law_post_order(laws, _visits(laws))
