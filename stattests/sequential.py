"""STATS L3: sampled cycles, judged by the sequential e-test; and that cycles are independent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from stattests import budget
from stattests.engine import (
    Emitted,
    Register,
    cycles,
    decide,
    draw,
    emitted,
    forbidden,
    register,
    rename,
    trees_a_call,
)
from stattests.etest import combine, concentration, log_e, required_n
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, PrefixFinding, Reason, Run, Verdict, passed

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
    cells = [int((law > 0).sum()) for law in laws]
    weights = [
        concentration(k, float(w), delta) if k > 1 else 1.0
        for k, w in zip(cells, registered.visit_probs, strict=True)
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


def _sample(
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
        if time.monotonic() > run.deadline:
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


def l3(subject: Subject, problem: Problem, run: Run, pilot: list[Emitted]) -> CaseResult:
    """Sampled cycles against the target's law at every registered prefix, sequentially."""
    registered = register(pilot, run.delta, budget.MAX_PREFIXES)
    test = prefix_test(problem, registered, run.delta)
    alpha = run.alpha / (2 * len(test.laws))  # one prefix alone must be able to speak
    needed = max(
        (
            required_n(k, run.delta, alpha, budget.BETA, float(w))
            for k, w in zip(test.cells, registered.visit_probs, strict=True)
            if k > 1
        ),
        default=budget.BATCH,
    )
    counts = np.zeros((len(test.laws), problem.vocab), dtype=np.int64)
    generator = torch_generator(f"L3/{problem.name}", batch=1, root=run.root)
    largest = trees_a_call(subject, problem)

    def cycles_after(n: int) -> Emitted:
        # A small odd batch first.
        size = min(largest, needed - n) if n else min(largest, 37)
        return cycles(subject, problem, size, generator)

    def log_e_with(out: Emitted) -> float:
        nonlocal counts
        counts += registered.counts(out, problem.vocab)
        return test.log_e(counts)

    holds = f"no TV >= {run.delta:g} at a prefix"
    end = _sample(problem, run, needed, cycles_after, log_e_with, holds)
    findings = _findings(registered, test.laws, counts)
    return end.as_case(
        problem.name,
        "L3",
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


def _findings(registered: Register, targets: list[Any], counts: Any) -> tuple[PrefixFinding, ...]:
    """Every prefix, the worst by chi-square first, Holm-corrected, where cells expect enough."""
    rows = []
    for prefix, law, x in zip(registered.prefixes, targets, counts, strict=True):
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
        rows.append(PrefixFinding(prefix, float(n), tv, p_value, tokens, seen_counts))
    rows.sort(key=lambda row: (2.0 if row.p_value is None else row.p_value, -row.tv))
    return tuple(
        replace(row, p_value=row.p_value and min(1.0, row.p_value * (len(rows) - i)))
        for i, row in enumerate(rows)
    )


def wide(subject: Subject, problem: Problem, run: Run) -> CaseResult:
    """First tokens over a vocabulary of real size, in groups: tails, floors and running sums.

    Tokens are grouped in the order of q / p, where over- and under-accepted ones lie apart.
    """
    target, draft = problem.target_law(()), problem.draft_law(())
    order = np.argsort(np.divide(draft, target, out=np.full_like(draft, inf), where=target > 0))
    below = target[order].cumsum() - target[order]
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.minimum((below * budget.WIDE_CELLS).astype(np.int64), budget.WIDE_CELLS - 1)
    null = np.bincount(group, weights=target)
    needed = required_n(len(null), budget.WIDE_DELTA, run.alpha, budget.BETA)
    c = concentration(len(null), 1.0, budget.WIDE_DELTA)
    generator = torch_generator(f"wide/{problem.name}", root=run.root)
    renamed = rename(problem, generator)  # once: what clings to some ids must not average out
    counts = np.zeros(len(null), dtype=np.int64)

    def cycles_after(n: int) -> Emitted:
        drawn = draw(subject, problem, min(budget.WIDE_BATCH, needed - n), generator, renamed)
        return emitted(problem, drawn, decide(subject, problem, drawn, generator))

    def log_e_with(out: Emitted) -> float:
        nonlocal counts
        counts += np.bincount(group[out.tokens[:, 0]], minlength=len(null))
        return log_e(counts, null, c)

    holds = f"no TV >= {budget.WIDE_DELTA:g} of the first token over {problem.vocab:,} tokens"
    end = _sample(problem, run, needed, cycles_after, log_e_with, holds)
    return end.as_case(
        problem.name,
        "wide",
        needed,
        extra={"counts": counts.tolist(), "expected": (null * end.n).tolist()},
    )


def pairs(subject: Subject, problem: Problem, run: Run) -> Iterator[CaseResult]:
    """First tokens of neighbouring rows, and of successive calls, are independent."""
    law = problem.target_law(())
    null = np.outer(law, law).ravel()
    cells = int((null > 0).sum())
    needed = required_n(cells, run.delta, run.alpha, budget.BETA)
    weight = concentration(cells, 1.0, run.delta)
    counts = {"rows": np.zeros(len(null)), "calls": np.zeros(len(null))}
    generator = torch_generator(f"pairs/{problem.name}", root=run.root)
    size = trees_a_call(subject, problem) + 1 & ~1  # rows are paired
    n, before = 0, None
    while n < needed and time.monotonic() < run.deadline:
        first = cycles(subject, problem, size, generator).tokens[:, 0]
        codes = {"rows": first[::2] * problem.vocab + first[1::2]}
        if before is not None:
            codes["calls"] = before * problem.vocab + first
        for kind, code in codes.items():
            counts[kind] += np.bincount(code.numpy(), minlength=len(null))
        before, n = first, n + size // 2
    for kind, seen in counts.items():
        value = log_e(seen, null, weight)
        name, total = f"{problem.name}/{kind}", int(seen.sum())
        if value >= log(1 / run.alpha):
            yield CaseResult(
                name,
                "pairs",
                Verdict.BIASED,
                Reason.DEPENDENT_DRAWS,
                f"first tokens of two {kind} are not independent draws from the law",
                n=total,
                n_required=needed,
                log10_e=value / log(10),
            )
        elif total < needed:
            detail = f"{total} of {needed} pairs"
            yield CaseResult(
                name, "pairs", Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, detail, n=total
            )
        else:
            yield passed(
                name,
                "pairs",
                f"two {kind} are independent",
                n=total,
                n_required=needed,
                log10_e=value / log(10),
            )
