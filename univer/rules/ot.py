"""Optimal transport (the UniVer paper, Eqs. 3-7; at scale 1 Hu et al. 2025).

| paper | name | meaning |
|---|---|---|
| M_s^not | residual_draft q' | draft law without the top m - 1 children |
| Z | whole | 1 - s + sum [s p - q']+ |
| f | factor | (1 - a(u_m)) / Z |
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.rows import at, normalise, ratio, total, without
from univer.rules import Allocated


def optimal_transport(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """The last slot is the sampled child, absent if it is -1; the others are fixed."""
    fixed, sampled = children[:, :-1], children[:, -1:]
    # Without a sampled child the formulas hold with q' = 0.
    residual_draft = normalise(without(draft, fixed), where=sampled[:, 0] >= 0)
    scaled = scale[:, None] * target
    surplus = (scaled - residual_draft).clamp_(min=0)
    whole = (1 - scale[:, None]) + total(surplus)[:, None]  # Z
    at_sampled = ratio(at(scaled, sampled), at(residual_draft, sampled)).clamp(max=1)
    # Z = 0 only where s = 1 and p = q': then the sampled child takes everything.
    at_sampled = torch.where((whole <= 0) & (sampled >= 0), 1.0, at_sampled)
    factor = ratio(1 - at_sampled, whole)  # f
    return Allocated(
        child_acceptance=torch.cat([at(surplus, fixed) * factor, at_sampled], 1),
        residual=without(surplus, children) * factor,
        rejection_mass=((1 - scale[:, None]) * factor)[:, 0],
    )
