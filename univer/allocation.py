"""Allocation rules (SPEC 4): how one node splits its scale among children, residual, rejection.

| paper | name | meaning |
|---|---|---|
| p~_v | scale s | acceptance of the node's own prefix, in [0, 1] |
| M_b, M_s | target p, draft q | laws at the node |
| M_s^not | residual_draft q' | draft law without the top m - 1 children |
| p_v(u) | child_acceptance a(u) | marginal mass of child u |
| r(x) | residual | mass of every token that is not a child |
| p_v(not v) | rejection_mass n | mass that leaves the subtree; sum a + sum r + n = 1 |

Each rule works on n nodes of one arity at once: `allocate(scale [n], target [n, V], draft [n, V],
children [n, m]) -> Allocated`; draft rows need not sum to 1. Everything is float64: the rules
subtract nearly equal laws, and a float32 difference would be noise just where a peaked draft makes
it matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from univer.rows import at, normalise, ratio, total, without


@dataclass(frozen=True)
class Allocated:
    """The masses of n nodes: child_acceptance [n, m], residual [n, V], rejection_mass [n]."""

    child_acceptance: Tensor
    residual: Tensor
    rejection_mass: Tensor


def _ot(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """Optimal transport (UniVer, Eqs. 3-7): the last slot is the sampled child, the rest fixed."""
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


def _rrsw(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """Recursive rejection without replacement: each child in turn against what is left."""
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
        # Not again for an absent child: the same to the last bit, wherever slots are empty.
        q = torch.where(present, normalise(without(q, x)), q)
    return Allocated(
        child_acceptance=torch.cat(child_acceptance, 1),
        residual=without(reached * c * p, children),
        rejection_mass=(reached * (1 - c))[:, 0],
    )


@dataclass(frozen=True)
class Allocation:
    """One rule, and the draft laws for which it is locally lossless (Definition 1)."""

    name: str
    allocate: Callable[[Tensor, Tensor, Tensor, Tensor], Allocated]
    drafting: tuple[str, ...]


ALLOCATION = {
    row.name: row
    for row in (
        # Under without_replacement the first m - 1 children drawn are the fixed set.
        Allocation("ot", _ot, drafting=("top_residual", "without_replacement")),
        Allocation("rrsw", _rrsw, drafting=("without_replacement",)),
    )
}
