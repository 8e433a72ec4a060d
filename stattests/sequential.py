"""STATS L3: sampled cycles, judged by the sequential e-test; and that cycles are independent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf, log
from typing import Any

import numpy as np
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
from stattests.verdict import CaseResult, PrefixFinding, Reason, Run, Verdict, failing, passed

SHOWN = 5  # prefixes that a passing case keeps
PATH_POINTS = 100  # looks at log E that a report keeps


def l3(subject: Subject, problem: Problem, run: Run, pilot: list[Emitted]) -> CaseResult:
    """Sampled cycles against the target's law at every registered prefix, sequentially."""
    registered = register(pilot, run.delta, budget.MAX_PREFIXES)
    targets = [problem.target_law(prefix) for prefix in registered.prefixes]
    cells = [int((law > 0).sum()) for law in targets]
    visits = registered.visit_probs
    alpha = run.alpha / (2 * len(targets))  # one prefix alone must be able to speak
    needed = max(
        (
            required_n(k, run.delta, alpha, budget.BETA, float(w))
            for k, w in zip(cells, visits, strict=True)
            if k > 1
        ),
        default=budget.BATCH,
    )
    weights = [
        concentration(k, float(w), run.delta) if k > 1 else 1.0
        for k, w in zip(cells, visits, strict=True)
    ]
    counts = np.zeros((len(targets), problem.vocab), dtype=np.int64)
    generator = torch_generator(f"L3/{problem.name}", batch=1, root=run.root)
    largest = trees_a_call(subject, problem)
    n, value, verdict, reason = 0, 0.0, Verdict.CERTIFIED, Reason.ALL_PASSED
    detail = f"no TV >= {run.delta:g} at a prefix"
    path: list[tuple[int, float]] = []
    while n < needed:
        if time.monotonic() > run.deadline:
            verdict, reason = Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME
            detail = f"{n} of {needed} cycles"
            break
        # A small odd batch first.
        size = min(largest, needed - n) if n else min(largest, 37)
        out = cycles(subject, problem, size, generator)
        n += size
        counts += registered.counts(out, problem.vocab)
        if (found := forbidden(problem, out)) is not None:
            verdict, reason, value = Verdict.BIASED, Reason.FORBIDDEN_TOKEN, inf
            emitted_ = out.tokens[found[0], : found[1] + 1].tolist()
            detail = f"the last token of {emitted_} has probability 0"
            break
        value = combine([log_e(x, p, c) for x, p, c in zip(counts, targets, weights, strict=True)])
        path.append((n, value / log(10)))
        if value >= log(1 / run.alpha):
            verdict, reason = Verdict.BIASED, Reason.EVIDENCE
            detail = f"log10 E = {value / log(10):.1f} after {n} cycles"
            break
    result = CaseResult(
        problem.name,
        "L3",
        verdict,
        reason,
        detail,
        n=n,
        n_required=needed,
        log10_e=value / log(10),
        findings=_findings(registered, targets, counts),
        extra={"prefixes": len(targets), "batches": len(path), "path": _thinned(path)},
    )
    return result if failing(result) else replace(result, findings=result.findings[:SHOWN])


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
    counts, n, value = np.zeros(len(null), dtype=np.int64), 0, 0.0

    def result(verdict: Verdict, reason: Reason, detail: str) -> CaseResult:
        return CaseResult(
            problem.name,
            "wide",
            verdict,
            reason,
            detail,
            n=n,
            n_required=needed,
            log10_e=value / log(10),
            extra={"counts": counts.tolist(), "expected": (null * n).tolist()},
        )

    while n < needed and time.monotonic() < run.deadline:
        drawn = draw(subject, problem, min(budget.WIDE_BATCH, needed - n), generator, renamed)
        out = emitted(problem, drawn, decide(subject, problem, drawn, generator))
        n += len(out.tokens)
        counts += np.bincount(group[out.tokens[:, 0]], minlength=len(null))
        if forbidden(problem, out) is not None:
            value = inf
            detail = "a token of probability 0 was emitted"
            return result(Verdict.BIASED, Reason.FORBIDDEN_TOKEN, detail)
        value = log_e(counts, null, c)
        if value >= log(1 / run.alpha):
            detail = f"log10 E = {value / log(10):.1f} after {n} cycles"
            return result(Verdict.BIASED, Reason.EVIDENCE, detail)
    if n < needed:
        return result(Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, f"{n} of {needed} cycles")
    detail = f"no TV >= {budget.WIDE_DELTA:g} of the first token over {problem.vocab:,} tokens"
    return result(Verdict.CERTIFIED, Reason.ALL_PASSED, detail)


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
