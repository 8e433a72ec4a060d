"""Catch a specimen: which layer sees it, after how many cycles, against the prediction."""

from __future__ import annotations

from dataclasses import dataclass

from stattests import budget, independence, layers, purity, sequential
from stattests.cases import TREES, problem
from stattests.engine import cycles
from stattests.exact import ExactLaw
from stattests.faults.catalogue import FAULTS
from stattests.faults.specimen import Fault, LookAlike, Specimen, renamed_law, subject
from stattests.probing import ProbeError
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, ContractError, Reason, Run, Verdict

# What never answers is ended by the parent process of `univer certify`, not by a layer.
ANSWERING = tuple(fault for fault in FAULTS if fault.name != "hangs")
ALPHA = budget.ALPHA_RUN / 1000  # one layer on one specimen, of some hundred
MARGIN = 0.85  # bet on a little less than the true bias: a miss then is far rarer than BETA
SAMPLED_TV = 0.02  # biases from here on are sampled in `make test`; smaller ones are probed
NIGHTLY_TV = 2e-4  # and from here on once a night: below, more than a billion cycles are needed
SEED = budget.ROOT_SEED
EDGE_PROBLEMS = ("sharp", "dirichlet-.3", "disjoint", "top-k")


@dataclass(frozen=True)
class Caught:
    """What a layer found.

    tv: exact TV on the problem that shows it, None where no exact law can be had.
    n, predicted: cycles used and allowed by the sampling layer; 0 elsewhere.
    """

    specimen: Specimen
    layer: str
    verdict: Verdict
    reason: Reason
    tv: float | None
    n: int
    predicted: int
    detail: str


def _exact(fault: Fault) -> ExactLaw | None:
    try:
        return renamed_law(fault)
    except (ContractError, ProbeError, ValueError):
        return None


def _largest_bias(law: ExactLaw) -> float:
    """The most that one prefix adds to the joint law."""
    return max(
        (law.visit_prob(s) * law.conditional_tv(s) for s in law.masses if law.visit_prob(s) > 0),
        default=0.0,
    )


def sample(box: Subject, toy: Problem, delta: float) -> CaseResult:
    """The sampling layer, betting on a bias of this size."""
    size = 4_000 if box.batched else budget.PILOT_CYCLES_SLOW
    pilot = [cycles(box, toy, size, torch_generator(f"pilot/{toy.name}", root=SEED))]
    return sequential.l3(box, toy, Run(ALPHA, delta, SEED), pilot)


def catch(fault: Fault, least: float = SAMPLED_TV) -> list[Caught]:
    """Every layer that must see this fault, in the order of STATS 2, with what it found.

    A bias of less than `least` at every prefix is sampled only if it cannot be probed.
    """
    if fault.kind == "law":
        return _catch_law(fault, least)
    run = Run(ALPHA, 0.05, SEED)
    toys = [fault.problem, *(problem(*row) for row in TREES.sampled if row[0] in EDGE_PROBLEMS)]
    results: list[CaseResult] = []
    box = subject(fault)  # one object throughout: some faults show only after many calls
    for toy in toys:
        try:
            before = purity.answers(box, toy, run)
            results.append(purity.contract(box, toy, run))
            if not box.own_randomness:
                results.append(purity.edges(box, toy, run))
            if fault.kind == "dependence":
                results += independence.pairs(box, toy, run)
                results.append(independence.lags(box, toy, run))
            for found in (
                layers.length(box, toy, run),
                purity.lifetime(box, toy, run, before),
            ):
                results += [found] if found else []
        except ContractError as error:
            results.append(
                CaseResult(toy.name, "contract", Verdict.BROKEN, error.reason, error.seen)
            )
        seen = [r for r in results if r.verdict.failed]
        if seen:
            return [_caught(fault, seen[0], None)]
    return [_caught(fault, results[-1], None)]


def _catch_law(fault: Fault, least: float) -> list[Caught]:
    caught = []
    law, toy = _exact(fault), fault.problem
    tv = law.joint_tv() if law else None
    probed = list(layers.lx(subject(fault), toy, Run(ALPHA, 0.05, SEED)))
    caught += [_caught(fault, r, tv) for r in probed if r.verdict is not Verdict.INCONCLUSIVE]
    delta = MARGIN * _largest_bias(law) if law else 0.05
    if not caught or delta >= least:
        caught.append(_caught(fault, sample(subject(fault), toy, delta), tv))
    return caught


def _caught(specimen: Specimen, result: CaseResult, tv: float | None) -> Caught:
    return Caught(
        specimen,
        result.layer,
        result.verdict,
        result.reason,
        tv,
        result.n if result.layer == "L3" else 0,
        result.n_required,
        result.detail,
    )


def let_pass(specimen: LookAlike) -> list[Caught]:
    """What the layers say of a correct verifier: all of them must find nothing."""
    run = Run(ALPHA, 0.05, SEED)
    found: list[Caught] = []
    for row in (("sharp", "2x1", 4), ("small-support", "2x1", 4), ("near", "chain:2", 4)):
        toy, box = problem(*row), subject(specimen)
        results = [purity.contract(box, toy, run)]
        if not box.own_randomness:
            results.append(purity.edges(box, toy, run))
        results += layers.lx(box, toy, run)
        results.append(sample(box, toy, 0.05))
        found += [_caught(specimen, result, result.tv) for result in results]
    return found
