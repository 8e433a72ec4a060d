"""SpecHub (Sun et al. 2024): pairs of drafts with a hub, the most probable draft token a.

Draft law: `spechub_pairs`. A pair is (x, a), its chance Q(x, a) = q(x), or (a, x), its chance
Q(a, x) = q(a) q(x) / (1 - q(a)). The target's mass is handed out in four stages:

| stage | pairs | to | mass |
|---|---|---|---|
| 1 | (x, a) | x | min(p(x), Q(x, a)) |
| 2 | (a, x) | x | min(p(x) - stage 1, Q(a, x)) |
| 3 | (a, x) | a | min(p(a), what stage 2 left of these pairs) |
| 4 | (x, a) | a | min(p(a) - stage 3, what stage 1 left of these pairs) |

For a scale s, p is s p throughout. A child alone (one slot, or a hub that is all of q) is judged as
a single draft is.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference.laws import Law, Number, positive_part, ratio, share_out, without

DRAFTING = "spechub_pairs"
MAX_ARITY = 2


def layer(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
    """Child masses, residual, rejection mass."""
    p, hub = s * p, min(range(len(q)), key=lambda token: (-q[token], token))
    if len(tokens) == 1:
        at_x, residual = ratio(p[tokens[0]], q[tokens[0]]), positive_part(p - q)
        return [at_x], *share_out(1 - at_x, residual, s)
    pair_first = without(q, hub)  # Q(x, a)
    pair_turned = pair_first * (q[hub] / pair_first.sum())  # Q(a, x)
    stage_1 = _least(without(p, hub), pair_first)
    stage_2 = _least(without(p, hub) - stage_1, pair_turned)
    open_turned, open_first = (pair_turned - stage_2).sum(), (pair_first - stage_1).sum()
    stage_3 = min(p[hub], open_turned)
    stage_4 = min(p[hub] - stage_3, open_first)
    if tokens[0] == hub:  # (a, x)
        at_x = ratio(stage_2[tokens[1]], pair_turned[tokens[1]])
        masses = [(1 - at_x) * ratio(stage_3, open_turned), at_x]
    else:  # (x, a)
        at_x = ratio(stage_1[tokens[0]], pair_first[tokens[0]])
        masses = [at_x, (1 - at_x) * ratio(stage_4, open_first)]
    return masses, *share_out(1 - sum(masses), without(p, hub) - stage_1 - stage_2, s)


def _least(some: Law, others: Law) -> Law:
    return some - positive_part(some - others)
