"""Theorems 3 and 5 at single nodes of real trees, over the whole vocabulary, in closed form.

The optimal transport rule's masses depend on the sampled child u only through its acceptance a(u):
a token x that is neither u nor without surplus gets (1 - a(u)) g(x), with one g for all u. So one
call of the rule, at a u that is not accepted for sure, gives g; and the means over u ~ q' are sums
over the vocabulary instead of over all its pairs:

    E[p_v(t)]  =  q'(t) a(t) + g(t) sum_u q'(u) (1 - a(u))
    E[accepted] = sum_u q'(u) a(u) + sum_k g(u_k) sum_u q'(u) (1 - a(u))

That g is one and the same is checked as well, by calling the rule at other children.

Letters: V vocabulary, m arity. Equation numbers are the UniVer paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_runs.theorems_findings import Finding, at_most
from univer.allocation import ALLOCATION
from univer.rows import normalise, ratio, total, without

Allocate = Callable[[Tensor, Tensor, Tensor, Tensor], Any]  # as in univer.rules

OT: Allocate = ALLOCATION["ot"].allocate
LIMITS = {torch.float32: 2e-6, torch.float64: 1e-12}
SMALLEST_SCALE = 1e-3  # the random scales are spread evenly over the decades from here to 1


@dataclass(frozen=True)
class Node:
    """An internal node of a drawn tree: target and draft law [V], and its children's tokens [m].

    The first m - 1 children are fixed; the last was sampled, or is -1.
    """

    target: Tensor
    draft: Tensor
    children: Tensor

    def rounded(self, dtype: torch.dtype) -> Node:
        """The same with its laws in another dtype."""
        target, draft = (normalise(law.to(dtype)[None])[0] for law in (self.target, self.draft))
        return Node(target, draft, self.children)


@dataclass(frozen=True)
class Means:
    """Averages over the sampled child.

    masses: E[p_v(t)] of every token, [V].
    accepted: expected accepted mass of the children, a scalar tensor.
    spread: how far the rule's masses at other sampled children are from the closed form's.
    """

    masses: Tensor
    accepted: Tensor
    spread: float


def layer_means(
    node: Node, scale: float, others: Iterable[int] = (), allocate: Allocate = OT
) -> Means:
    """The rule's means at a node, in the dtype of its laws.

    Args:
        node: laws that sum to 1 up to rounding.
        scale: s, in [0, 1].
        others: sampled children at which the closed form is compared with the rule.
        allocate: the rule.
    """
    p, q, fixed = node.target[None], node.draft[None], node.children[None, :-1]
    s = torch.tensor([scale], dtype=p.dtype)
    rest = normalise(without(q, fixed) if fixed.shape[1] else q)[0]
    accepts = torch.where(rest > 0, ratio(scale * p[0], rest).clamp(max=1), 1.0)
    least = int(accepts.argmin()) if bool((rest > 0).any()) else -1

    def outcome(sampled: int) -> tuple[Tensor, Tensor]:
        """Masses [V] and the sampled child's acceptance when this child was drawn."""
        children = torch.cat([fixed, fixed.new_tensor([[sampled]])], 1)
        out = allocate(s, p, q, children)
        present = children[0] >= 0
        masses = out.residual[0].scatter_add(
            0, children[0, present], out.child_acceptance[0, present]
        )
        return masses, out.child_acceptance[0, -1]

    masses, accepted = outcome(least)
    if least < 0:
        return Means(masses, masses[fixed[0]].sum(), 0.0)
    shared = ratio(masses, 1 - accepted)  # g
    shared[least] = 0
    missed = total((rest * (1 - accepts))[None])[0]
    spread = 0.0
    for other in others:
        found, _ = outcome(other)
        due = (1 - accepts[other]) * shared
        due[other] = accepts[other]
        spread = max(spread, float((found - due).abs().max()))
    taken = total((rest * accepts)[None])[0] + shared[fixed[0]].sum() * missed
    return Means(rest * accepts + shared * missed, taken, spread)


def equation_10(node: Node, scale: float) -> Tensor:
    """What a lossless layer can accept: sum_k s p(u_k) + sum_x min(s p(x), q'(x))."""
    p, q, fixed = node.target[None], node.draft[None], node.children[None, :-1]
    rest = normalise(without(q, fixed) if fixed.shape[1] else q)
    return (scale * p[0, fixed[0]]).sum() + total(torch.minimum(scale * p, rest))[0]


@dataclass
class LayerReport:
    """The worst of all nodes so far; deviations by dtype."""

    nodes: int = 0
    masses: dict[torch.dtype, float] | None = None
    accepted: dict[torch.dtype, float] | None = None
    spread: float = 0.0
    slack: float = float("inf")

    def add(
        self, node: Node, scales: Sequence[float], others: Sequence[int], allocate: Allocate = OT
    ) -> None:
        """Look at one node, float64 laws, at scale 1 and these scales."""
        self.nodes += 1
        self.masses, self.accepted = self.masses or {}, self.accepted or {}
        for dtype in LIMITS:
            rounded = node.rounded(dtype)
            compared = others if dtype == torch.float64 else ()
            whole = layer_means(rounded, 1.0, compared, allocate)
            found = {1.0: whole} | {
                scale: layer_means(rounded, scale, compared, allocate) for scale in scales
            }
            for scale, means in found.items():
                off = float((means.masses - scale * rounded.target).abs().max())
                self.masses[dtype] = max(self.masses.get(dtype, 0.0), off)
                off = float((means.accepted - equation_10(rounded, scale)).abs())
                self.accepted[dtype] = max(self.accepted.get(dtype, 0.0), off)
                if dtype == torch.float64:
                    self.spread = max(self.spread, means.spread)
                    gain = float(means.accepted - scale * whole.accepted)
                    self.slack = min(self.slack, gain)

    def findings(self) -> list[Finding]:
        """Theorem 3, Theorem 5 and Lemma 1 on one layer."""
        rows = []
        for dtype, limit in LIMITS.items():
            name = str(dtype).removeprefix("torch.")
            off = (self.masses or {}).get(dtype, float("nan"))
            claim = f"Theorem 3, {name}: E[p_v(t)] = s p(t)"
            rows.append(at_most(claim, "largest deviation", off, limit, self.nodes, "nodes"))
        for dtype, limit in LIMITS.items():
            name = str(dtype).removeprefix("torch.")
            off = (self.accepted or {}).get(dtype, float("nan"))
            claim = f"Theorem 5, {name}: accepted mass = Eq. 10"
            rows.append(at_most(claim, "largest deviation", off, limit, self.nodes, "nodes"))
        exact = LIMITS[torch.float64]
        claim = "closed form = the rule itself, at other sampled children"
        rows.append(at_most(claim, "largest deviation", self.spread, exact, self.nodes, "nodes"))
        rows.append(
            Finding(
                "Lemma 1, one layer: E[N_Mod] >= s E[N_Greedy]",
                f"smallest difference {self.slack:.1e}",
                f">= -{exact:.0e}",
                self.slack,
                self.nodes,
                "nodes",
                self.slack >= -exact,
            )
        )
        return rows


def random_scales(count: int, generator: torch.Generator) -> list[float]:
    """Scales in (0, 1), as many small ones as large ones."""
    drawn = torch.rand(count, generator=generator, dtype=torch.float64)
    return [float(scale) for scale in SMALLEST_SCALE**drawn]
