"""SpecInfer's recursive rejection sampling (Miao et al. 2024): independent drafts.

Draft law: `with_replacement`. Children are tried in draw order, each against the same draft law:

| symbol | here | meaning |
|---|---|---|
| P | p | target law, the residual of the earlier rejections |
| q | q | draft law, the same for every child |
| P(x)/q(x) | min(1, c P(x)/q(x)) | chance of child x after the earlier ones failed |

At a scale s below 1, P is a part c of a law: c = s at first, and a rejection leaves the part
S / (S + 1 - c) with S = sum [c P - q]+.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference.laws import Law, Number, normalise, one, positive_part, ratio

DRAFTING = "with_replacement"


def layer(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
    """Child masses, residual, rejection mass."""
    c, reached, masses = s, one(p), []
    for x in tokens:
        accepted = ratio(c * p[x], q[x])
        masses.append(reached * accepted)
        reached = reached * (1 - accepted)
        rejected = positive_part(c * p - q)
        mass = rejected.sum()
        c = ratio(mass, mass + (1 - c))
        p = normalise(rejected) if mass > 0 else p
    return masses, reached * c * p, reached * (1 - c)
