"""Allocation rules, one file each: how one node splits its scale (SPEC 4).

| paper | name | meaning |
|---|---|---|
| p~_v | scale s | acceptance of the node's own prefix, in [0, 1] |
| M_b, M_s | target p, draft q | laws at the node |
| p_v(u) | child_acceptance a(u) | marginal mass of child u |
| r(x) | residual | mass of every token that is not a child |
| p_v(not v) | rejection_mass n | mass that leaves the subtree; sum a + sum r + n = 1 |

Each rule works on n nodes of one arity at once: `rule(scale [n], target [n, V], draft [n, V],
children [n, m]) -> Allocated`; draft rows need not sum to 1. Everything is float64: the rules
subtract nearly equal laws, and a float32 difference would be noise just where a peaked draft makes
it matter. A rule is locally lossless (Definition 1) if, averaged over the children that its draft
law draws, the mass of every token t, accepted or residual, is s p(t).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from univer.rows import ratio, total


@dataclass(frozen=True)
class Allocated:
    """The masses of n nodes: child_acceptance [n, m], residual [n, V], rejection_mass [n]."""

    child_acceptance: Tensor
    residual: Tensor
    rejection_mass: Tensor


Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Allocated]


def share_out(accepted: Tensor, reached: Tensor, surplus: Tensor, scale: Tensor) -> Allocated:
    """Masses [n, m] of the children, and what is `reached` [n] when all of them failed shared out.

    It goes to the tokens in proportion to `surplus` [n, V], the part of s p that children get on
    no draw, and to the rejection in proportion to 1 - s.
    """
    whole = total(surplus) + (1 - scale)
    # Without anything to share, what is reached is rounding.
    part = torch.where(whole > 0, ratio(reached, whole), 0.0)
    return Allocated(accepted, surplus * part[:, None], (1 - scale) * part)
