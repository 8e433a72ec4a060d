"""STATS L3: sampled cycles, judged by the sequential e-test.

Counts are kept twice. Per registered prefix: what follows it must follow its law. And per depth and
law: a deep tree has more prefixes than can each be seen often, but few laws, and given the prefix
the next token follows its law whatever came before; so tokens are pooled over all prefixes of one
length that have the same law, and a fault that only shows deep down has nowhere to hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2

from stattests import budget
from stattests.engine import (
    Emitted,
    Register,
    counts_by_depth,
    cycles,
    forbidden,
    register,
    trees_a_call,
)
from stattests.etest import combine, concentration, log_e, required_n
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, PrefixFinding, Reason, Run, Verdict

SHOWN = 5  # prefixes that a passing case keeps
PATH_POINTS = 100  # looks at log E that a report keeps


@dataclass(frozen=True)
class PrefixTest:
    """The e-test at every registered prefix: null laws, cells with p > 0, concentrations."""

    laws: list[NDArray[np.float64]]
    cells: list[int]
    weights: list[float]

    def log_e(self, counts: NDArray[np.int64]) -> float:
        """The log E of counts [R, V], all prefixes combined."""
        rows = zip(counts, self.laws, self.weights, strict=True)
        return combine([log_e(x, p, c) for x, p, c in rows])


def prefix_test(problem: Problem, registered: Register, delta: float) -> PrefixTest:
    """The test that bets on a joint bias of TV delta at each registered prefix."""
    laws = [problem.target_law(prefix) for prefix in registered.prefixes]
    return _test(laws, registered.visit_probs, delta)


def depth_test(problem: Problem, pilot: list[Emitted], delta: float) -> PrefixTest:
    """The same for each depth from 1 to D and each law of the pool, D x K rows."""
    seen = sum(counts_by_depth(problem, out).sum(-1) for out in pilot)
    visits = np.maximum(seen / sum(len(out.tokens) for out in pilot), delta).ravel()
    return _test([*problem.target] * problem.topology.depth, visits, delta)


def _test(laws: list[Any], visit_probs: NDArray[np.float64], delta: float) -> PrefixTest:
    cells = [int((law > 0).sum()) for law in laws]
    weights = [
        concentration(k, float(w), delta) if k > 1 else 1.0
        for k, w in zip(cells, visit_probs, strict=True)
    ]
    return PrefixTest(laws, cells, weights)


@dataclass(frozen=True)
class Stopped:
    """Where sampling stopped and why; path: (n, log10 E) at each look."""

    verdict: Verdict
    reason: Reason
    detail: str
    n: int
    log10_e: float
    path: list[tuple[int, float]]

    def as_case(self, case: str, layer: str, needed: int, **more: Any) -> CaseResult:
        """The result of a case of which `needed` cycles were planned."""
        return CaseResult(
            case,
            layer,
            self.verdict,
            self.reason,
            self.detail,
            n=self.n,
            n_required=needed,
            log10_e=self.log10_e,
            **more,
        )


def sample(
    problem: Problem,
    run: Run,
    needed: int,
    cycles_after: Callable[[int], Emitted],
    log_e_with: Callable[[Emitted], float],
    holds: str,
) -> Stopped:
    """Sample until log E crosses, a forbidden token comes, or all that is needed was seen.

    Args:
        problem: whose target may forbid tokens.
        run: its false-alarm rate and deadline.
        needed: cycles that are enough.
        cycles_after: the next batch, given how many cycles there were.
        log_e_with: counts a batch and gives the log E of all counts.
        holds: what is said when nothing was found.
    """
    n, value = 0, 0.0
    path: list[tuple[int, float]] = []

    def stopped(verdict: Verdict, reason: Reason, detail: str) -> Stopped:
        return Stopped(verdict, reason, detail, n, value / log(10), path)

    while n < needed:
        if run.late:
            detail = f"{n} of {needed} cycles"
            return stopped(Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, detail)
        out = cycles_after(n)
        n += len(out.tokens)
        value = log_e_with(out)
        if (found := forbidden(problem, out)) is not None:
            value = inf
            last = out.tokens[found[0], : found[1] + 1].tolist()
            detail = f"the last token of {last} has probability 0"
            return stopped(Verdict.BIASED, Reason.FORBIDDEN_TOKEN, detail)
        path.append((n, value / log(10)))
        if value >= log(1 / run.alpha):
            detail = f"log10 E = {value / log(10):.1f} after {n} cycles"
            return stopped(Verdict.BIASED, Reason.EVIDENCE, detail)
    return stopped(Verdict.CERTIFIED, Reason.ALL_PASSED, holds)


def l3(
    subject: Subject,
    problem: Problem,
    run: Run,
    pilot: list[Emitted],
    *,
    name: str = "L3",
    batch: int | None = None,
) -> CaseResult:
    """Sampled cycles against the target's law at every registered prefix, sequentially.

    Args:
        subject: whose cycles.
        problem: on which.
        run: the bias to catch, its false-alarm rate, the deadline.
        pilot: cycles that say which prefixes are visited; they are not counted.
        name: of the layer.
        batch: trees in each call; None for a small odd number, then many.
    """
    registered = register(pilot, run.delta, budget.MAX_PREFIXES)
    test = prefix_test(problem, registered, run.delta)
    deep_test = depth_test(problem, pilot, run.delta)
    # One prefix alone must be able to speak; the counts by depth take half of what one bets.
    alpha = run.alpha / (4 * len(test.laws))
    needed = max(
        (
            required_n(k, run.delta, alpha, budget.BETA, float(w))
            for k, w in zip(test.cells, registered.visit_probs, strict=True)
            if k > 1
        ),
        default=budget.BATCH,
    )
    counts = np.zeros((len(test.laws), problem.vocab), dtype=np.int64)
    deep = np.zeros((problem.topology.depth, *problem.target.shape), dtype=np.int64)
    generator = torch_generator(f"{name}/{problem.name}", batch=1, root=run.root)
    largest = trees_a_call(subject, problem)

    def cycles_after(n: int) -> Emitted:
        if batch is not None:
            return cycles(subject, problem, batch, generator)
        # A small odd batch first, then large ones of any size.
        size = largest - int(torch.randint(1 + largest // 4, (), generator=generator))
        return cycles(subject, problem, min(size, needed - n) if n else min(37, largest), generator)

    def log_e_with(out: Emitted) -> float:
        nonlocal counts, deep
        counts += registered.counts(out, problem.vocab)
        deep += counts_by_depth(problem, out)
        log_e_deep = deep_test.log_e(deep.reshape(-1, problem.vocab))
        return float(np.logaddexp(test.log_e(counts), log_e_deep) - log(2))

    holds = f"no TV >= {run.delta:g} at a prefix"
    end = sample(problem, run, needed, cycles_after, log_e_with, holds)
    findings = _findings([*_by_prefix(registered, test, counts), *_by_depth(problem, deep)])
    return end.as_case(
        problem.name,
        name,
        needed,
        findings=findings if end.verdict.failed else findings[:SHOWN],
        extra={
            "prefixes": len(test.laws),
            "batches": len(end.path),
            "path": _thinned(end.path),
        },
    )


def _thinned(path: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most some PATH_POINTS of the looks, the last among them."""
    step = -(-len(path) // PATH_POINTS) or 1
    return path[::-1][::step][::-1]


Counted = tuple[tuple[int, ...], str, NDArray[np.float64], NDArray[np.int64]]


def _by_prefix(registered: Register, test: PrefixTest, counts: Any) -> Iterator[Counted]:
    for prefix, law, x in zip(registered.prefixes, test.laws, counts, strict=True):
        yield prefix, "", law, x


def _by_depth(problem: Problem, deep: NDArray[np.int64]) -> Iterator[Counted]:
    for depth, rows in enumerate(deep, 1):
        for pair, (law, x) in enumerate(zip(problem.target, rows, strict=True)):
            yield (), f"any prefix of {depth} tokens that law {pair} follows", law, x


def _findings(rows_counted: Iterable[Counted]) -> tuple[PrefixFinding, ...]:
    """Every prefix, the worst by chi-square first, Holm-corrected, where cells expect enough."""
    rows = []
    for prefix, pooled, law, x in rows_counted:
        n = int(x.sum())
        if n == 0:
            continue
        big = law * n >= budget.MIN_EXPECTED
        seen, expected = [*x[big], x[~big].sum()], [*(law[big] * n), law[~big].sum() * n]
        if expected[-1] < budget.MIN_EXPECTED and len(expected) > 1:
            few, rare = expected.pop(), seen.pop()
            expected[-1] += few
            seen[-1] += rare
        p_value = None
        if len(expected) > 1:
            statistic = sum((o - e) ** 2 / e for o, e in zip(seen, expected, strict=True))
            p_value = float(chi2.sf(statistic, len(expected) - 1))
        share = x / n
        worst = np.argsort(-np.abs(share - law))[:4]
        tokens = tuple((int(t), float(share[t]), float(law[t])) for t in worst)
        tv = float(np.abs(share - law).sum() / 2)
        seen_counts = tuple(int(count) for count in x)
        rows.append(PrefixFinding(prefix, float(n), tv, p_value, tokens, seen_counts, pooled))
    rows.sort(key=lambda row: (2.0 if row.p_value is None else row.p_value, -row.tv))
    return tuple(
        replace(row, p_value=row.p_value and min(1.0, row.p_value * (len(rows) - i)))
        for i, row in enumerate(rows)
    )
