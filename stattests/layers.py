"""The layers of STATS 2 that judge laws and lengths; each gives one CaseResult a problem.

L0: the exact law from a
stop law. Lx: the exact law by probing. L3: sampled cycles, sequential e-test. pairs: cycles that
must be independent. length: the length that a verifier claims.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from math import inf, log
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from stattests import budget
from stattests.engine import (
    Emitted,
    Register,
    cycles,
    decide,
    draw,
    forbidden,
    register,
    rename,
)
from stattests.etest import combine, concentration, log_e, required_n
from stattests.exact import MAX_TREES, ExactLaw, count_trees, exact_law
from stattests.probing import ProbeError, probe
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, PrefixFinding, Reason, Run, Verdict, passed
from univer import VERIFIERS, stop_law
from univer.indices import indices

TINY = 1e-15  # a probability below it is rounding


def _exact_findings(law: ExactLaw) -> tuple[PrefixFinding, ...]:
    found = []
    for prefix, row in law.masses.items():
        visits = float(row.sum())
        if visits > TINY:
            share, target = row / visits, law.problem.target_law(prefix)
            worst = np.argsort(-np.abs(share - target))[:4]
            tokens = tuple((int(t), float(share[t]), float(target[t])) for t in worst)
            found.append(PrefixFinding(prefix, visits, law.conditional_tv(prefix), None, tokens))
    found.sort(key=lambda finding: -finding.visits * finding.tv)
    return tuple(found[:5])


def _judge_law(
    law: ExactLaw, layer: str, tolerance: float, reason: Reason, subject: Subject, calls: int
) -> CaseResult:
    """A verdict on an exact law: its TV, and the length that the subject claims."""
    problem, tv = law.problem, law.joint_tv()
    numbers: dict[str, Any] = {"tv": tv, "n": calls}
    if tv > tolerance or abs(law.total - 1) > tolerance:
        return CaseResult(
            problem.name,
            layer,
            Verdict.BIASED,
            reason,
            f"joint TV {tv:.3g} (tolerance {tolerance:.1g})",
            findings=_exact_findings(law),
            **numbers,
        )
    if subject.claims is not None:
        drafting = VERIFIERS[subject.claims].drafting
        if drafting == subject.drafting:
            promised = exact_law(
                problem, drafting, partial(stop_law, subject.claims)
            ).expected_accepted
            if law.expected_accepted < promised - budget.LENGTH_TOLERANCE:
                return CaseResult(
                    problem.name,
                    layer,
                    Verdict.BROKEN,
                    Reason.SHORTER,
                    f"accepts {law.expected_accepted:.6f} tokens a cycle;"
                    f" {subject.claims} accepts {promised:.6f}",
                    **numbers,
                )
    return passed(problem.name, layer, f"joint TV {tv:.2g}", **numbers)


def l0(subject: Subject, problem: Problem, run: Run) -> CaseResult | None:
    """The exact law from the subject's stop law; None if there are too many trees."""
    del run
    drafting, own = subject.drafting_name, subject.stop_law
    if own is None or drafting is None or count_trees(problem, drafting) > MAX_TREES:
        return None
    dtype = [np.dtype(np.float64)]

    def law(*arguments: Any) -> Any:
        found = subject.call(own, *arguments)
        dtype[0] = np.asarray(found.stop_probs).dtype
        return found

    exact = exact_law(problem, drafting, law)
    tolerance = budget.EXACT_ULPS * float(np.finfo(dtype[0]).eps)
    return _judge_law(exact, "L0", tolerance, Reason.EXACT_BIAS, subject, 0)


def lx(subject: Subject, problem: Problem, run: Run) -> CaseResult | None:
    """The exact law by probing; None where a black box cannot be probed."""
    if subject.drafting_name is None or subject.own_randomness:
        return None
    limit = None if subject.batched else budget.PROBE_CALLS_SLOW
    try:
        found = probe(subject, problem, max_calls=limit, seed=run.root)
    except ProbeError as error:
        # Not a verdict: sampling gives it (STATS 2).
        return CaseResult(problem.name, "Lx", Verdict.INCONCLUSIVE, Reason.NOT_BOXES, f"{error}")
    except TimeoutError as error:
        return CaseResult(problem.name, "Lx", Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, f"{error}")
    result = _judge_law(
        found.law, "Lx", budget.PROBE_TOLERANCE, Reason.PROBED_BIAS, subject, found.calls
    )
    reused = sorted(found.reused_slots(problem.topology.num_nodes + 1))
    if reused:
        result.extra["reused_slots"] = reused
        result.extra["warning"] = (
            f"the number in slot {', '.join(map(str, reused))} decides a node and the next token"
        )
    return result


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
    largest = budget.BATCH if subject.batched else budget.BATCH_SLOW
    n, value, verdict, reason = 0, 0.0, Verdict.CERTIFIED, Reason.ALL_PASSED
    detail = ""
    while n < needed:
        if time.monotonic() > run.deadline:
            verdict, reason = Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME
            detail = f"{n} of {needed} cycles"
            break
        size = min(largest, needed - n) if n else 37  # a small odd batch now and then
        out = cycles(subject, problem, size, generator)
        n += size
        counts += registered.counts(out, problem.vocab)
        if (found := forbidden(problem, out)) is not None:
            verdict, reason, value = Verdict.BIASED, Reason.FORBIDDEN_TOKEN, inf
            emitted_ = out.tokens[found[0], : found[1] + 1].tolist()
            detail = f"the last token of {emitted_} has probability 0"
            break
        value = combine([log_e(x, p, c) for x, p, c in zip(counts, targets, weights, strict=True)])
        if value >= log(1 / run.alpha):
            verdict, reason = Verdict.BIASED, Reason.EVIDENCE
            detail = f"log10 E = {value / log(10):.1f} after {n} cycles"
            break
    findings = _sampled_findings(registered, targets, counts)
    return CaseResult(
        problem.name,
        "L3",
        verdict,
        reason,
        detail or f"no TV >= {run.delta:g} at a prefix",
        n=n,
        n_required=needed,
        log10_e=value / log(10),
        findings=findings,
        extra={"prefixes": len(targets), "counts_sha": int(counts.sum())},
    )


def _sampled_findings(
    registered: Register, targets: list[Any], counts: Any
) -> tuple[PrefixFinding, ...]:
    """The worst prefixes by chi-square, Holm-corrected, where each cell expects enough."""
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
        rows.append(PrefixFinding(prefix, float(n), tv, p_value, tokens))
    rows.sort(key=lambda row: (2.0 if row.p_value is None else row.p_value, -row.tv))
    holm = [
        PrefixFinding(
            row.prefix,
            row.visits,
            row.tv,
            None if row.p_value is None else min(1.0, row.p_value * (len(rows) - i)),
            row.tokens,
        )
        for i, row in enumerate(rows)
    ]
    return tuple(holm[:5])


def pairs(subject: Subject, problem: Problem, run: Run) -> Iterator[CaseResult]:
    """First tokens of neighbouring rows, and of successive calls, are independent."""
    law = problem.target_law(())
    null = np.outer(law, law).ravel()
    cells = int((null > 0).sum())
    needed = required_n(cells, run.delta, run.alpha, budget.BETA)
    weight = concentration(cells, 1.0, run.delta)
    counts = {"rows": np.zeros(len(null)), "calls": np.zeros(len(null))}
    generator = torch_generator(f"pairs/{problem.name}", root=run.root)
    size = budget.BATCH if subject.batched else budget.BATCH_SLOW
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


def length(subject: Subject, problem: Problem, run: Run) -> CaseResult | None:
    """Accepted tokens against the claimed verifier's exact expectation on the very same trees."""
    if subject.claims is None:
        return None
    if VERIFIERS[subject.claims].drafting != subject.drafting:
        return None
    generator = torch_generator(f"length/{problem.name}", root=run.root)
    size = budget.BATCH if subject.batched else budget.BATCH_SLOW
    depths = indices(problem.topology, torch.device("cpu")).depths
    shortfalls: list[Tensor] = []
    for _ in range(8):
        drawn = draw(subject, problem, size, generator, rename(problem, generator))
        accepted = depths[decide(subject, problem, drawn, generator).stop]
        tree_law = stop_law(subject.claims, drawn.as_tree(problem), drawn.target, drawn.draft)
        shortfalls.append(tree_law.expected_accepted - accepted)
    gap = torch.cat(shortfalls)
    mean, error = float(gap.mean()), float(gap.std() / len(gap) ** 0.5) + TINY
    detail = f"{-mean:+.5f} +- {error:.5f} accepted tokens a cycle against {subject.claims}"
    if mean > budget.LENGTH_SIGMAS * error:
        return CaseResult(
            problem.name, "length", Verdict.BROKEN, Reason.SHORTER, detail, n=len(gap)
        )
    return passed(problem.name, "length", detail, n=len(gap))
