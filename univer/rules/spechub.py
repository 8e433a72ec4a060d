"""SpecHub (Sun et al. 2024), at any scale: a pair of drafts, one of them always the hub.

| paper | name | meaning |
|---|---|---|
| a | hub | most probable token of q |
| Q(x, a) = q(x) | rest | chance of drafting x, then the hub |
| Q(a, x) = q(a) q(x) / (1 - q(a)) | turned | chance of drafting the hub, then x |

The target's mass is given out in four stages: to x from the pairs (x, a), to x from (a, x), to a
from what (a, x) has left, to a from what (x, a) has left. In a pair, x is asked first, in whichever
slot it is. One child alone is the rule of a single draft: pairs (x, a) without a hub.
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.rows import at, normalise, ratio, total, without
from univer.rules import Allocated, share_out
from univer.rules.single_draft import single_draft


def spechub(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """One or two children drawn as `spechub_pairs`."""
    if children.shape[1] == 1:
        return single_draft(scale, target, draft, children)
    scaled, q = scale[:, None] * target, normalise(draft, where=children[:, 0] >= 0)
    first, second = children[:, :1], children[:, 1:]
    # The hub has more draft mass than any other token, ties to the lower id (SPEC 3): by the very
    # numbers that children were drawn from, which dividing could make equal.
    gap = at(draft, first) - at(draft, second)
    hub_first = (second >= 0) & ((gap > 0) | ((gap == 0) & (first < second)))
    hub, x = (torch.where(hub_first, *pair) for pair in ((first, second), (second, first)))
    rest, wanted = without(q, hub), without(scaled, hub)
    turned = normalise(rest) * at(q, hub)
    unmet = (wanted - rest).clamp(min=0)  # of x, by the pairs (x, a)
    left_turned = total((turned - unmet).clamp_(min=0))[:, None]
    left_rest = total((rest - wanted).clamp_(min=0))[:, None]
    for_hub = at(scaled, hub)
    by_turned = ratio(for_hub, left_turned).clamp(max=1)
    by_rest = ratio((for_hub - left_turned).clamp(min=0), left_rest).clamp(max=1)
    by_pair = (ratio(at(unmet, x), at(turned, x)), ratio(at(wanted, x), at(rest, x)))
    at_x = torch.where(hub_first, *by_pair).clamp(max=1)
    asked = 1 - at_x
    passes = torch.where(hub_first, by_turned, by_rest)
    at_hub = asked * passes
    accepted = torch.where(hub_first, torch.cat([at_hub, at_x], 1), torch.cat([at_x, at_hub], 1))
    surplus = (unmet - turned).clamp_(min=0)
    return share_out(accepted, (asked * (1 - passes))[:, 0], surplus, scale)
