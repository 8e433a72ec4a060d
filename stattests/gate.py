"""Certify a subject: plan by its speed, run the layers cheapest first, give one verdict.

The first layer that fails gives the verdict; the later ones on toys still run, for the report. A
broken contract ends the run at once: nothing else would mean anything.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch

from stattests import (
    budget,
    independence,
    layers,
    purity,
    rao_blackwell,
    sequential,
    small_batches,
)
from stattests.cases import Cases, cases_for, problems, users_own
from stattests.conclusion import Conclusion, concluded
from stattests.diagnosis import (
    Match,
    as_pytest,
    best_matches,
    missing_laws,
    smallest_problem,
)
from stattests.engine import Emitted, cycles, trees_a_call
from stattests.etest import required_n
from stattests.problems import Problem
from stattests.streams import seed_globals, torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, ContractError, Reason, Run, Verdict
from stattests.wide import wide
from univer import InputError
from univer import __version__ as version

# Where accepting and where drawing the next token shows most that numbers were used before.
LAG_FAMILIES = ("sharp", "disjoint")

LATE = (
    "wide",
    "small",
    "pairs",
    "lags",
    "length",
)  # left out once something failed: they would add nothing

Progress = Callable[[str, float], None]  # what is done next, share of the whole that is done


def _silent(step: str, share: float) -> None:
    del step, share


@dataclass(frozen=True)
class Report:
    """What a certification found.

    verdict, reason, detail: of the first layer that failed, or that all passed.
    guarantee: what a pass means, in one sentence.
    budget, asked: the budget that ran, and the one asked for.
    results: one a case and layer, in the order in which they ran.
    cycles_per_second: of the sampling layer, drawing and counting included.
    matches, smallest, pytest: of a bias, the known faults that explain it best, the smallest toy
        that shows it, and a ready-to-paste test on that toy.
    missing_laws: what a bias could not be compared with, in a sentence.
    also: what else was found that would be a verdict of another kind by itself.
    notes: what a reader of the results may stumble over, a sentence each.
    """

    subject: str
    verdict: Verdict
    reason: Reason
    detail: str
    guarantee: str
    budget: str
    asked: str
    seed: int
    results: tuple[CaseResult, ...]
    cycles_per_second: float
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    matches: tuple[Match, ...] = ()
    smallest: dict[str, Any] | None = None
    pytest: str | None = None
    missing_laws: str | None = None
    also: tuple[CaseResult, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "verifier": self.subject,
            "verdict": self.verdict.name,
            "exit_code": self.verdict.value,
            "reason": self.reason.name,
            "detail": self.detail,
            "also": [
                {"layer": found.layer, "case": found.case, **found.words()} for found in self.also
            ],
            "guarantee": self.guarantee,
            "notes": list(self.notes),
            "budget": self.budget,
            "asked": self.asked,
            "seed": self.seed,
            "cycles_per_second": self.cycles_per_second,
            "seconds": self.seconds,
            "versions": self.versions,
            "matches": [asdict(match) for match in self.matches],
            "missing_laws": self.missing_laws,
            "smallest_problem": self.smallest,
            "pytest": self.pytest,
            "results": [result.to_json() for result in self.results],
        }


@dataclass
class Speed:
    """Cycles of the sampling layer and the seconds that they took."""

    cycles: int = 0
    seconds: float = 0.0

    def rate(self) -> float:
        """Cycles a second; 0 before any."""
        return self.cycles / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Plan:
    """What will run: the sampled problems with their pilots, and the budget that fits."""

    sampled: tuple[tuple[Problem, list[Emitted]], ...]
    exact: tuple[Problem, ...]
    integrated: tuple[Problem, ...]
    probed: tuple[Problem, ...]
    wide: tuple[Problem, ...]
    budget: str
    rate: float


def certify(
    subject: Subject,
    *,
    asked: str = "pr",
    seed: int = budget.ROOT_SEED,
    max_minutes: float = budget.DEFAULT_MINUTES,
    topology: str | None = None,
    vocab: int | None = None,
    diagnose: bool = True,
    progress: Progress = _silent,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Certify a subject.

    Args:
        subject: what to certify.
        asked: a name in BUDGETS.
        seed: the root of all random streams; the same seed gives the same verdict, bit for bit.
        max_minutes: if the budget would take longer, the largest that fits runs instead, and the
            verdict is INCONCLUSIVE at best.
        topology: adds problems on this topology.
        vocab: adds problems of this vocabulary.
        diagnose: look for known faults and for the smallest toy after a bias (about a minute).
        progress: called before each step.
        clock: gives the seconds so far.

    Raises:
        InputError: an unknown budget, topology or a vocabulary that is too small.
    """
    if asked not in budget.BUDGETS:
        raise InputError(
            f"budget: {asked!r} is unknown; choose one of {', '.join(budget.BUDGETS)}."
        )
    if not max_minutes > 0:
        raise InputError(f"max-minutes: expected a number > 0, got {max_minutes:g}.")
    start = clock()
    cases = cases_for(subject.max_arity, subject.full_trees)
    own = users_own(topology, vocab, subject.max_arity, subject.full_trees)
    results: list[CaseResult] = []
    plan: Plan | None = None
    speed = Speed()
    try:
        progress("contract", 0.0)
        _seed(subject, "contract", seed)
        first = problems(cases.sampled[:4])
        run = Run(budget.ALPHA_RUN, budget.BUDGETS[asked], seed, start + 60 * max_minutes, clock)
        before = purity.answers(subject, first[0], run)
        results += [purity.contract(subject, problem, run) for problem in first]
        plan = _plan(subject, cases, asked, own, run, max_minutes)
        # Tests that bet: L3, wide, L2 and its L1, pairs of rows and of calls, lags.
        count = len(plan.sampled) + len(plan.wide) + 2 * len(plan.integrated) + 2
        count += len(LAG_FAMILIES) + len(small_batches.SIZES)
        run = replace(run, alpha=budget.ALPHA_RUN / count, delta=budget.BUDGETS[plan.budget])
        for step, share, found in _layers(subject, plan, run, speed):
            progress(step, share)
            results += [] if found is None else [found]
        after = purity.lifetime(subject, first[0], run, before)
        results += [after] if after is not None else []
    except ContractError as error:
        results.append(CaseResult("contract", "contract", Verdict.BROKEN, error.reason, error.seen))
    ran = plan.budget if plan else asked
    end = concluded(results, ran, asked)
    detail = end.detail
    matches: list[Match] = []
    smallest = missing = None
    if end.verdict is Verdict.BIASED and diagnose:
        progress("diagnosis", 1.0)
        missing = missing_laws(subject)
        try:
            matches, smallest = best_matches(subject, seed), smallest_problem(subject)
        except ContractError as error:  # the verdict stands; only its explanation is missing
            detail += f"; no diagnosis: {error.seen}"
    return Report(
        subject.name,
        end.verdict,
        end.reason,
        detail,
        _guarantee(end, results, ran, plan),
        ran,
        asked,
        seed,
        tuple(results),
        speed.rate(),
        clock() - start,
        {
            "univer": version,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
        },
        tuple(matches),
        smallest.to_json() if smallest else None,
        as_pytest(subject.name, smallest) if smallest else None,
        missing,
        end.also,
        end.notes,
    )


def _plan(
    subject: Subject,
    cases: Cases,
    asked: str,
    own: list[Problem],
    run: Run,
    max_minutes: float,
) -> Plan:
    """Measure the subject's speed on the pilots and choose the largest budget that fits."""
    size = budget.PILOT_CYCLES if subject.batched else budget.PILOT_CYCLES_SLOW
    chosen = [*own, *problems(cases.sampled)]
    sampled, ran, spent = [], 0, 0.0
    for problem in chosen:
        _seed(subject, f"pilot/{problem.name}", run.root)
        generator = torch_generator(f"L3/{problem.name}", batch=0, root=run.root)
        before = run.clock()
        at_once = trees_a_call(subject, problem, size)
        calls = min(-(-size // at_once), budget.PILOT_CALLS)
        pilot = [cycles(subject, problem, at_once, generator) for _ in range(calls)]
        spent += run.clock() - before
        ran += calls * at_once
        sampled.append((problem, pilot))
    rate = ran / max(spent, 1e-9)
    order = list(budget.BUDGETS)
    fits = order[0]
    for name in order[: order.index(asked) + 1]:
        # Every case needs about what its first prefix needs; pairs add as much again twice.
        needs = sum(
            required_n(problem.vocab, budget.BUDGETS[name], budget.ALPHA_RUN / 100)
            for problem in chosen
        )
        if needs * 1.3 / rate < 0.8 * 60 * max_minutes:
            fits = name
    return Plan(
        sampled=tuple(sampled),
        exact=tuple(problems(cases.exact)),
        integrated=(*own, *problems(cases.integrated)),
        probed=tuple(problems(cases.probed + cases.probed_batched * subject.batched)),
        wide=tuple(problems(cases.wide)),
        budget=fits,
        rate=rate,
    )


def _seed(subject: Subject, case: str, root: int) -> None:
    """Seed what a subject with randomness of its own draws from, so that a seed replays it."""
    if subject.own_randomness:
        seed_globals(case, root)


def _layers(
    subject: Subject, plan: Plan, run: Run, speed: Speed
) -> Iterator[tuple[str, float, CaseResult | None]]:
    """Every step's name, the share done before it, and what the step before found."""
    zeros = [problem for problem, _ in plan.sampled if (problem.target == 0).any()][:6]
    steps: list[tuple[str, float, Callable[[], Iterator[CaseResult | None]]]] = []

    def add(name: str, cost: float, problem: Problem, layer: Callable[..., Any]) -> None:
        def call() -> Iterator[CaseResult | None]:
            _seed(subject, f"{name}/{problem.name}", run.root)
            start = run.clock()
            if start > run.deadline:
                late = (Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, "not begun in time")
                yield CaseResult(problem.name, name, *late)
                return
            given = layer(subject, problem, run)
            for found in given if isinstance(given, Iterator) else [given]:
                if found is not None and found.verdict.failed:
                    found.extra["problem"] = problem.to_json()
                if found is not None and name == "L3":
                    speed.cycles += found.n
                    speed.seconds += run.clock() - start
                yield found

        steps.append((f"{name} {problem.name}", cost, call))

    if not subject.own_randomness:
        for problem in zeros:
            add("edges", 0.1, problem, purity.edges)
    for problem in plan.probed:
        add("Lx", 1.0, problem, layers.lx)
    if subject.stop_law is not None:
        for problem in plan.exact:
            add("L0", 0.3, problem, layers.l0)
        for problem in plan.integrated:
            add("L2", 2.0, problem, rao_blackwell.l2)
    for problem, pilot in plan.sampled:
        cost = required_n(problem.vocab, run.delta, run.alpha) / plan.rate

        def sampled(s: Subject, p: Problem, r: Run, pilot: Any = pilot) -> CaseResult:
            return sequential.l3(s, p, r, pilot)

        add("L3", cost, problem, sampled)
    for problem in plan.wide:
        if not subject.own_randomness:
            add("edges", 0.2, problem, purity.edges)
        add("wide", 5.0, problem, wide)
    if subject.own_randomness and subject.batched:
        # Early stops make a batch of rows of any length. With given numbers `contract` compares.
        early = next((case for case in plan.sampled if case[0].stops), plan.sampled[0])
        add("small", 2.0, early[0], partial(small_batches.small, pilot=early[1]))
    add("pairs", 1.0, plan.sampled[0][0], independence.pairs)
    for problem in _first_of_each(LAG_FAMILIES, plan):
        add("lags", 1.0, problem, independence.lags)
    for problem, _ in plan.sampled[:4]:
        add("length", 0.2, problem, layers.length)
    whole, done = sum(cost for _, cost, _ in steps), 0.0
    failed = False
    for name, cost, call in steps:
        done += cost
        if failed and name.split()[0] in LATE:
            continue
        yield name, (done - cost) / whole, None
        for found in call():
            failed |= found is not None and found.verdict.failed
            yield name, (done - cost) / whole, found


def _first_of_each(families: tuple[str, ...], plan: Plan) -> Iterator[Problem]:
    for family in families:
        yield next(problem for problem, _ in plan.sampled if problem.family == family)


def _guarantee(end: Conclusion, results: list[CaseResult], ran: str, plan: Plan | None) -> str:
    sampled = [r for r in results if r.layer == "L3" and r.verdict is Verdict.CERTIFIED]
    if plan is None or not sampled or end.verdict.failed:
        return end.nothing_certified
    largest = max(r.log10_e or 0.0 for r in sampled)
    total = sum(r.n for r in sampled)
    exact = [r for r in results if r.layer in ("L0", "Lx") and r.verdict is Verdict.CERTIFIED]
    worst = max((r.tv or 0.0 for r in exact), default=0.0)
    also = f"; exact TV <= {worst:.1g} on {len(exact)} toys" if exact else ""
    return (
        f"no TV >= {budget.BUDGETS[ran]:g} at a registered prefix of {len(sampled)} problems with"
        f" {100 * (1 - budget.BETA):g} % power, false alarms <= {budget.ALPHA_RUN:g} a run;"
        f" n = {total:,}, largest log10 E = {largest:.1f}{also}; {_tried(plan)}"
    )


def _tried(plan: Plan) -> str:
    """How far the problems went: beyond that nothing was looked at."""
    given = [*(problem for problem, _ in plan.sampled), *plan.integrated, *plan.wide]
    depth = max(problem.topology.depth for problem in given)
    arity = max(layer.arity for problem in given for layer in problem.topology.layers)
    vocab = max(problem.vocab for problem in given)
    early = any(problem.stops for problem in given)
    stops = "drafts that stop early" if early else "on full trees only, no draft stopped early"
    return f"tried to depth {depth}, {arity} children a node, {vocab:,} tokens, {stops}"
