"""k-SEQ (SpecTr, Sun et al. 2023), at any scale: k independent drafts, each judged alike.

| paper | name | meaning |
|---|---|---|
| k | arity | number of children |
| rho | rho | divisor in [1, k] that keeps the k drafts together below the target |
| 1 - beta | failing | chance that one draft fails, sum [q - s p / rho]+ |
| p^res | surplus | [s p - rho q]+, what the drafts leave of the target |

A draft x passes with min(1, s p(x) / (rho q(x))). All k together give each token what it has below
rho q, and so leave it the surplus, if they all fail with chance (1 - beta)^k = 1 - s + sum surplus.
SpecTr writes the same equation as 1 - (1 - beta)^k = rho beta; divided by beta it is
1 + (1 - beta) + ... + (1 - beta)^(k - 1) = rho. Where most drafts fail nothing cancels in the last
form, where most pass nothing in the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.rows import at, normalise, ratio, total
from univer.rules import Allocated, share_out

STEPS = 16  # of Newton's method; most roots take 8
HALVINGS = 54  # for the others
NOTHING = 2.0**-50  # a sum of laws below it is rounding
EXACT = 2.0**-50  # relative error of such sums


def _gap(
    scale: Tensor, scaled: Tensor, draft: Tensor, rho: Tensor, arity: Tensor
) -> tuple[Tensor, Tensor]:
    """How far rho [n] is above the root, in a measure of its own, and the derivative of that."""
    wanted, covered = scaled / rho[:, None], rho[:, None] * draft
    failing = total((draft - wanted).clamp_(min=0))
    left = total((scaled - covered).clamp_(min=0)) + (1 - scale)
    left = torch.where(left > NOTHING, left, 0.0)
    faster = total(torch.where(wanted < draft, wanted, 0.0)) / rho  # 1 - beta grows
    slower = -total(torch.where(covered < scaled, draft, 0.0))
    times, by_failing = torch.ones_like(rho), torch.zeros_like(rho)
    for drafts in range(2, int(arity.amax() if len(arity) else 0) + 1):
        more = arity >= drafts
        by_failing = torch.where(more, times + failing * by_failing, by_failing)
        times = torch.where(more, 1 + failing * times, times)
    some = failing > 0.5
    gap = torch.where(some, rho - times, arity * failing.log() - left.log())
    slope = torch.where(some, 1 - by_failing * faster, arity * faster / failing - slower / left)
    return torch.where((failing <= 0) & (left <= 0), 0.0, gap), slope


def solve_rho(scale: Tensor, target: Tensor, draft: Tensor, arity: Tensor) -> Tensor:
    """The least rho in [1, k] for which k drafts stay below the target.

    Args:
        scale: s, [n].
        target: p, [n, V].
        draft: q, [n, V]; rows of both sum to 1.
        arity: k >= 1, int64 [n].

    Returns:
        rho [n], to float64's rounding.

    Source: SpecTr, Sun et al. 2023, section 5.

    Example:
        >>> target, draft = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)
        >>> solve_rho(torch.ones(1), target, draft, torch.tensor([2]))  # 1 + (1 - 1/2) = rho
        tensor([1.5000], dtype=torch.float64)
    """
    scaled = scale[:, None] * target
    low = torch.ones_like(scale)
    found = (_gap(scale, scaled, draft, low, arity)[0] >= 0) | (arity == 1)
    rho = high = torch.where(found, 1.0, arity.double())
    for _ in range(STEPS):
        gap, slope = _gap(scale, scaled, draft, rho, arity)
        found |= gap.abs() <= arity * EXACT
        if found.all():
            return rho
        low, high = torch.where(gap < 0, rho, low), torch.where(gap < 0, high, rho)
        step = rho - gap / slope
        step = torch.where((step > low) & (step < high), step, (low + high) / 2)
        # A root that is found stays: its last bit must not depend on the rest of the batch.
        rho = torch.where(found, rho, step)
    rest = ~found
    rho[rest] = _halved(scale[rest], scaled[rest], draft[rest], arity[rest])
    return rho


def _halved(scale: Tensor, scaled: Tensor, draft: Tensor, arity: Tensor) -> Tensor:
    """`solve_rho` by halving its bracket: where 1 - beta or what is left is all but 0."""
    low, high = torch.ones_like(scale), arity.double()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _gap(scale, scaled, draft, middle, arity)[0] >= 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high


def k_seq(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """Independent children, each passing by s p / (rho q)."""
    q, drawn = normalise(draft), children >= 0
    arity = drawn.sum(1)
    rho = torch.where(arity > 0, solve_rho(scale, target, q, arity.clamp(min=1)), 0.0)
    covered = rho[:, None] * q
    scaled = scale[:, None] * target
    passes = ratio(at(scaled, children), at(covered, children)).clamp(max=1)
    failed = (1 - passes).cumprod(1)
    reached = torch.cat([torch.ones_like(failed[:, :1]), failed[:, :-1]], 1)
    surplus = (scaled - covered).clamp_(min=0)
    return share_out(reached * passes, failed[:, -1], surplus, scale)
