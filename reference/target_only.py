"""The target-only walk (SGLang, TensorRT-LLM): follow the target's own tokens through the tree.

Lossless for every draft law: at a node a token is drawn from the target; if it is a child, the walk
goes there (to the first of twins), else it is emitted. Told child by child in draw order, child u
is entered with p(u) over the mass that the earlier children left.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference.laws import Law, Number, without

DRAFTING = "top"


def layer(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
    """Child masses, residual, rejection mass."""
    del q
    masses = [s * p[x] * (x not in tokens[:j]) for j, x in enumerate(tokens)]
    return masses, without(s * p, *tokens), 1 - s
