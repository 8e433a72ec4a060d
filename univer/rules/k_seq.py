"""k-SEQ (SpecTr, Sun et al. 2023), at any scale: k independent drafts, each judged alike.

| paper | name | meaning |
|---|---|---|
| k | arity | number of children |
| rho | rho | divisor in [1, k] that keeps the k drafts together below the target |
| beta | passing | chance that one draft passes, sum min(s p / rho, q) |
| (1 - (1 - beta)^k) / beta | times | 1 + (1 - beta) + ... + (1 - beta)^(k - 1) |

A draft x passes with min(1, s p(x) / (rho q(x))); on average `times` drafts are looked at, so that
all together they give a token the mass min(s p / rho, q) times. rho is the least for which that is
below s p everywhere: rho = times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.rows import at, normalise, ratio, total
from univer.rules import Allocated, share_out

HALVINGS = 54  # of [1, k]: what is left is below the rounding of rho
# Where s p = q the root is a double one, and rounding of 1e-16 would move it by 1e-8.
ROUNDING = 2.0**-48


def _times(scaled: Tensor, draft: Tensor, rho: Tensor, arity: int) -> Tensor:
    """The mean number [n] of drafts that are looked at."""
    failing = (1 - total(torch.minimum(scaled / rho[:, None], draft))).clamp(min=0)
    times = torch.ones_like(failing)
    for _ in range(arity - 1):
        times = 1 + failing * times
    return times


def solve_rho(scaled: Tensor, draft: Tensor, arity: int) -> Tensor:
    """The least rho in [1, k] for which k drafts stay below the target.

    Args:
        scaled: s p, [n, V].
        draft: q, [n, V], rows summing to 1.
        arity: k.

    Returns:
        rho [n], to float64's rounding.

    Source: SpecTr, Sun et al. 2023, section 5.

    Example:
        >>> law = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
        >>> solve_rho(law, law.flip(-1), 2)  # 1 + (1 - 1 / rho) = rho
        tensor([1.], dtype=torch.float64)
    """
    low = scaled.new_ones(len(scaled))
    high = torch.full_like(low, arity)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _times(scaled, draft, middle, arity) <= middle * (1 + ROUNDING)
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high


def k_seq(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """Independent children, each passing by s p / (rho q)."""
    scaled, q = scale[:, None] * target, normalise(draft)
    rho = solve_rho(scaled, q, children.shape[1])
    passes = ratio(at(scaled, children), rho[:, None] * at(q, children)).clamp(max=1)
    failed = (1 - passes).cumprod(1)
    reached = torch.cat([torch.ones_like(failed[:, :1]), failed[:, :-1]], 1)
    times = _times(scaled, q, rho, children.shape[1])
    together = torch.minimum(scaled / rho[:, None], q) * times[:, None]
    surplus = (scaled - together).clamp_(min=0)
    return share_out(reached * passes, failed[:, -1], surplus, scale)
