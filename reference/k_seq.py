"""SpecTr's k-SEQ (Sun et al. 2023): k independent drafts, each judged alike.

Draft law: `with_replacement`.

| paper | here | meaning |
|---|---|---|
| rho | rho | divisor of the target, in [1, k] |
| beta | beta | chance that one draft passes, sum of min(p / rho, q) |
| 1 - (1 - beta)^k | some | chance that one of the k passes |
| p^res | residual | p - min(p / rho, q) some / beta |

For a scale s, p is s p throughout. The rule is lossless for every rho with some <= rho beta; the
least is the root, which is no fraction: `solve_rho` goes below 2^-60 of it, from above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference.laws import Law, Number, one, positive_part, ratio

DRAFTING = "with_replacement"
HALVINGS = 60


def passing(p: Law, q: Law, rho: Number, k: int) -> tuple[Law, Number, Number]:
    """min(p / rho, q), its sum beta, and the chance that one of k drafts passes."""
    overlap = np.minimum(p / rho, q)
    beta = overlap.sum()
    return overlap, beta, 1 - (1 - beta) ** k


def solve_rho(p: Law, q: Law, k: int) -> Number:
    """The least rho in [1, k] with 1 - (1 - beta)^k <= rho beta, from above."""
    low, high = one(p), one(p) * k
    if passing(p, q, low, k)[2] <= passing(p, q, low, k)[1]:
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        _, beta, some = passing(p, q, middle, k)
        low, high = (low, middle) if some <= middle * beta else (middle, high)
    return high


def layer(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
    """Child masses, residual, rejection mass."""
    p = s * p
    rho = solve_rho(p, q, len(tokens))
    overlap, beta, some = passing(p, q, rho, len(tokens))
    reached, masses = one(p), []
    for x in tokens:
        accepted = ratio(p[x], rho * q[x])
        masses.append(reached * accepted)
        reached = reached * (1 - accepted)
    residual = positive_part(p - overlap * (some / beta if beta > 0 else 0))
    failed = residual.sum() + 1 - s  # the mean of `reached`: (1 - beta)^k
    share = reached / failed if failed > 0 else reached * 0
    return masses, residual * share, (1 - s) * share
