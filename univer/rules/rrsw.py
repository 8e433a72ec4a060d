"""Recursive rejection without replacement (EAGLE, Li et al. 2024), and its loop.

| paper | name | meaning |
|---|---|---|
| P, Q | p, q | target law and draft law as the earlier rejections left them |
| c | c | acceptance of the node's prefix as they left it; s at first |
| S | mass | sum of [c P - Q]+ |
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.rows import at, normalise, ratio, total, without
from univer.rules import Allocated


def recursive_rejection(
    scale: Tensor, target: Tensor, draft: Tensor, children: Tensor, *, replacement: bool = False
) -> Allocated:
    """Each child in draw order against what is left of the target; `replacement` keeps the draft.

    Args:
        scale: s of every node, [n].
        target: p, [n, V].
        draft: q, [n, V].
        children: tokens [n, m], -1 for an absent one.
        replacement: whether children were drawn independently of each other.
    """
    c, p, q = scale[:, None], target, normalise(draft)
    reached = torch.ones_like(c)
    child_acceptance = []
    for x in children.T[..., None]:
        accepted = ratio(c * at(p, x), at(q, x)).clamp(max=1)
        child_acceptance.append(reached * accepted)
        reached = reached * (1 - accepted)
        left = (c * p - q).clamp_(min=0)
        mass = total(left)[:, None]
        present = x >= 0
        p = torch.where(present & (mass > 0), left / mass, p)
        c = torch.where(present, ratio(mass, mass + (1 - c)), c)
        if not replacement:
            # Not again for an absent child: the same to the last bit, wherever slots are empty.
            q = torch.where(present, normalise(without(q, x)), q)
    return Allocated(
        child_acceptance=torch.cat(child_acceptance, 1),
        residual=without(reached * c * p, children),
        rejection_mass=(reached * (1 - c))[:, 0],
    )
