"""STATS L2: trees are drawn, decisions are integrated exactly with the subject's own stop law.

What is left is the noise of the trees alone, so that deep trees, whose drafts cannot be listed and
whose prefixes sampled cycles rarely reach, are judged with few trees. For a registered prefix s and
a token x a tree gives

    D(s, x) = F(s, x) - A(s) p(x | s),

F the probability, given the tree, that the output begins with (s, x), A that it passes s. A
lossless verifier has E[D] = 0 over trees and -1 <= D <= 1, so for every fixed 0 < |bet| < 1 the
product of 1 + bet x D over trees is a test martingale, and so is the mean over bets, tokens and
prefixes (Ville bounds it at every n, as in etest.py; betting on bounded means: Waudby-Smith and
Ramdas 2024).

Letters: B trees, N nodes, V vocabulary, R prefixes, L bets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests import budget
from stattests.answers import Decisions
from stattests.engine import Drawn, cycles, decide, draw, register, rename, translated, trees_a_call
from stattests.etest import detectable_tv, pit_log_e
from stattests.problems import Problem
from stattests.streams import numpy_generator, torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, Reason, Run, Verdict, passed
from univer import StopLaw, Topology, stop_law

BETS = torch.tensor([sign * 2.0**-k for sign in (1, -1) for k in range(1, 10)]).double()


def next_masses(
    topology: Topology, tokens: Tensor, stop_probs: Tensor, next_token_probs: Tensor
) -> Tensor:
    """Probability, given each tree, that the output passes a node and which token comes next.

    Args:
        topology: of the trees.
        tokens: int64 [B, N], -1 absent.
        stop_probs: [B, N].
        next_token_probs: [B, N, V].

    Returns:
        [B, N, V]: entry (v, x) is the chance that the output is the path to v, then x, and so on.
    """
    reached = stop_probs.clone()  # that the decision ends at a node or below it
    masses = stop_probs[..., None] * next_token_probs
    for node in range(topology.num_nodes - 1, 0, -1):
        parent, token = topology.parents[node], tokens[:, node, None]
        share = torch.where(token >= 0, reached[:, node, None], 0.0)
        reached[:, parent] += share[:, 0]
        masses[:, parent].scatter_add_(1, token.clamp(min=0), share)
    return masses


def _in_own_names(drawn: Drawn, law: StopLaw) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and the law of the decision under the tokens' own names, in float64."""
    tokens = translated(drawn.renamed.argsort(), drawn.tokens)
    return tokens, law.stop_probs.double(), law.next_token_probs().double()[..., drawn.renamed]


@dataclass
class Bets:
    """The running bets on D(s, x) for R prefixes and V tokens.

    targets: p(. | s), [R, V]; wealth: log of each product, [R, V, L]; total and squares: of D.
    """

    targets: Tensor
    wealth: Tensor
    total: Tensor
    squares: Tensor
    n: int = 0

    def add(self, prefix: int, follows: Tensor) -> None:
        """Take in F(s, .) of B trees, [B, V], for one prefix."""
        d = follows - follows.sum(-1, keepdim=True) * self.targets[prefix]
        self.total[prefix] += d.sum(0)
        self.squares[prefix] += (d**2).sum(0)
        self.wealth[prefix] += torch.log1p(d[..., None] * BETS).sum(0)

    def log_e(self) -> float:
        """The log of the mean of all products."""
        return float(self.wealth.flatten().logsumexp(0)) - log(self.wealth.numel())

    def visible(self, alpha: float) -> float:
        """The mean deviation that the best bet turns into 1 / alpha after this many trees."""
        needed = log(1 / alpha) + log(self.wealth.numel())
        return float((2 * needed * self.squares).sqrt().amax()) / self.n


def _start(targets: Tensor) -> Bets:
    wealth = torch.zeros(*targets.shape, len(BETS), dtype=torch.float64)
    return Bets(targets, wealth, torch.zeros_like(targets), torch.zeros_like(targets))


@dataclass
class Agreement:
    """Decisions against the subject's own stop law: PIT values that are uniform if it is theirs."""

    planned: int
    spread: np.random.Generator
    values: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, law: StopLaw, decisions: Decisions) -> None:
        """Take in one decision a tree, in the order of nodes, then ids."""
        joint = (law.stop_probs[..., None] * law.next_token_probs()).double().flatten(1)
        at = decisions.stop * (joint.shape[1] // law.stop_probs.shape[1]) + decisions.next_token
        own = joint.gather(1, at[:, None])[:, 0].numpy()
        below = joint.cumsum(1).gather(1, at[:, None])[:, 0].numpy() - own
        values = below + self.spread.random(len(own)) * own
        self.values.append(np.where(own > 0, values, inf))

    def result(self, case: str, run: Run) -> CaseResult:
        """L1 where laws cannot be listed: BROKEN if the decisions follow another law."""
        values = np.concatenate([np.empty(0), *self.values])
        value = pit_log_e(values, self.planned)
        seen: dict[str, Any] = {"n": len(values), "log10_e": value / log(10)}
        if value >= log(1 / run.alpha):
            detail = f"the decisions on {len(values)} trees do not follow its stop_law"
            return CaseResult(case, "L1", Verdict.BROKEN, Reason.ANOTHER_LAW, detail, **seen)
        if len(values) < self.planned:
            detail = f"{len(values)} of {self.planned} trees"
            return CaseResult(case, "L1", Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, detail, **seen)
        tv = detectable_tv(len(values), alpha=run.alpha)
        return passed(case, "L1", f"decisions follow its stop_law: no TV >= {tv:.2g}", **seen)


def l2(subject: Subject, problem: Problem, run: Run) -> Iterator[CaseResult]:
    """Exact decisions on drawn trees, against the target at every registered prefix; then L1.

    The length that the subject claims is compared on the same trees. Nothing without a stop law.
    """
    if subject.stop_law is None:
        return
    most = ceil(budget.TREES_PER_DELTA / run.delta) if subject.batched else budget.TREES_SLOW
    agreement = Agreement(most, numpy_generator(f"L1/{problem.name}", root=run.root))
    found = _integrated(subject, problem, run, most, agreement)
    yield found
    if found.verdict is not Verdict.BIASED:  # a bias ends the trees early, and outranks it anyway
        yield agreement.result(problem.name, run)


def _integrated(
    subject: Subject, problem: Problem, run: Run, most: int, agreement: Agreement
) -> CaseResult:
    slow = not subject.batched
    size = trees_a_call(subject, problem, budget.BATCH_SLOW if slow else budget.TREES)
    generator = torch_generator(f"L2/{problem.name}", root=run.root)
    pilot = cycles(subject, problem, trees_a_call(subject, problem), generator)
    registered = register([pilot], run.delta, budget.MAX_PREFIXES)
    laws = [problem.target_law(prefix) for prefix in registered.prefixes]
    bets = _start(torch.from_numpy(np.array(laws)))
    short, value = 0.0, 0.0
    path: list[tuple[int, float]] = []

    def result(verdict: Verdict, reason: Reason, detail: str) -> CaseResult:
        return CaseResult(
            problem.name,
            "L2",
            verdict,
            reason,
            detail,
            n=bets.n,
            n_required=most,
            log10_e=value / log(10),
            extra={"path": path},
        )

    while bets.n < most and not run.late:
        count = min(size, most - bets.n)
        drawn = draw(subject, problem, count, generator, rename(problem, generator))
        law = subject.law(problem.topology, drawn.tokens, drawn.target, drawn.draft)
        agreement.add(law, decide(subject, problem, drawn, generator))
        masses = next_masses(problem.topology, *_in_own_names(drawn, law))
        bets.n += count
        lost = float((masses[:, 0].sum(-1) - 1).abs().max())
        if lost > budget.EXACT_ULPS * torch.finfo(law.stop_probs.dtype).eps:
            detail = f"the probabilities of one tree miss 1 by {lost:.2g}"
            return result(Verdict.BIASED, Reason.EXACT_BIAS, detail)
        for prefix, hashed in enumerate(registered.hashes):
            at = (drawn.hashes == hashed)[..., None]
            bets.add(prefix, torch.where(at, masses, 0.0).sum(1))
        if subject.measure is not None:
            due = stop_law(subject.measure, drawn.as_tree(problem), drawn.target, drawn.draft)
            short += float((due.expected_accepted - law.expected_accepted).sum())
        value = bets.log_e()
        path.append((bets.n, value / log(10)))
        if value >= log(1 / run.alpha):
            worst = float(bets.total.abs().max()) / bets.n
            detail = f"some token after some prefix is off by {worst:.2g} over {bets.n} trees"
            return result(Verdict.BIASED, Reason.EVIDENCE, detail)
    if short / max(bets.n, 1) > budget.LENGTH_TOLERANCE:
        detail = f"accepts {short / bets.n:.6f} tokens a cycle fewer than {subject.measure}"
        return result(Verdict.BROKEN, Reason.SHORTER, detail)
    if bets.n < most:
        return result(Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, f"{bets.n} of {most} trees")
    detail = f"no token after a prefix off by {bets.visible(run.alpha):.2g}, which would have shown"
    return result(Verdict.CERTIFIED, Reason.ALL_PASSED, detail)
