"""SpecTr's k-SEQ (Sun et al. 2023): k independent drafts, each judged alike.

Draft law: `with_replacement`.

| paper | here | meaning |
|---|---|---|
| rho | rho | divisor of the target, in [1, k] |
| beta | beta | chance that one draft passes, sum of min(p / rho, q) |
| (1 - (1 - beta)^k) / beta | times | 1 + (1 - beta) + ... + (1 - beta)^(k - 1), drafts looked at |
| p^res | residual | p - min(p / rho, q) times |

For a scale s, p is s p throughout. The rule is lossless for every rho >= times; the least is the
root, which is no fraction: `solve_rho` gives one a little above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from reference.laws import Law, Number, one, positive_part, ratio, share_out

DRAFTING = "with_replacement"
HALVINGS = 54
ROUNDING = 2.0**-50
NEAR = 2.0**-46


def passing(p: Law, q: Law, rho: Number, k: int) -> tuple[Law, Number, Number]:
    """min(p / rho, q), its sum beta, and the mean number of drafts that are looked at."""
    overlap = np.minimum(p / rho, q)
    beta = overlap.sum()
    return overlap, beta, sum((1 - beta) ** j for j in range(k))


def enough(s: Number, p: Law, q: Law, rho: Number, k: int) -> bool:
    """Whether times <= rho; where most drafts pass told as (1 - beta)^k >= 1 - rho beta."""
    _, beta, times = passing(p, q, rho, k)
    if beta < 1 / 2:
        return bool(times <= rho)
    failing, left = positive_part(q - p / rho).sum(), positive_part(p - rho * q).sum() + (1 - s)
    return bool(failing**k >= (left if p.dtype == object or left > ROUNDING else 0))


def solve_rho(s: Number, p: Law, q: Law, k: int) -> Number:
    """The least rho in [1, k] with times <= rho, from above: to 1e-12, in floats to rounding."""
    low, high = 1.0, float(k)
    wanted, drafted, scale = p.astype(np.float64), q.astype(np.float64), float(s)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = enough(scale, wanted, drafted, middle, k)
        low, high = (low, middle) if above else (middle, high)
    if p.dtype != object:
        return high
    below, rho, step = Fraction(low), Fraction(high), Fraction(ROUNDING)
    while not enough(s, p, q, rho, k):
        below, rho, step = rho, min(rho + step, Fraction(k)), 2 * step
    while rho - below > NEAR:
        half = (below + rho) / 2
        below, rho = (below, half) if enough(s, p, q, half, k) else (half, rho)
    return rho


def layer(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
    """Child masses, residual, rejection mass."""
    p = s * p
    rho = solve_rho(s, p, q, len(tokens))
    overlap, _, times = passing(p, q, rho, len(tokens))
    reached, masses = one(p), []
    for x in tokens:
        accepted = ratio(p[x], rho * q[x])
        masses.append(reached * accepted)
        reached = reached * (1 - accepted)
    return masses, *share_out(reached, positive_part(p - overlap * times), s)
