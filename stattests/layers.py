"""The layers of STATS 2 that judge laws and lengths; each gives one CaseResult a problem.

L0: the exact law from a
stop law. Lx: the exact law by probing. L3: sampled cycles, sequential e-test. pairs: cycles that
must be independent. length: the length that a verifier claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stattests import budget, purity
from stattests.engine import (
    decide,
    draw,
    rename,
    trees_a_call,
)
from stattests.exact import (
    MAX_TREES,
    ExactLaw,
    count_trees,
    exact_law,
    node_hashes,
    tree_rows,
)
from stattests.probing import Probe, ProbeError, probe
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject, builtin
from stattests.verdict import CaseResult, PrefixFinding, Reason, Run, Verdict, passed
from univer import VERIFIERS, DraftTree, StopLaw, stop_law
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
    if subject.measure is not None:
        drafting, claimed = VERIFIERS[subject.measure].drafting, partial(stop_law, subject.measure)
        promised = exact_law(problem, drafting, claimed).expected_accepted
        if law.expected_accepted < promised - budget.LENGTH_TOLERANCE:
            return CaseResult(
                problem.name,
                layer,
                Verdict.BROKEN,
                Reason.SHORTER,
                f"accepts {law.expected_accepted:.6f} tokens a cycle;"
                f" {subject.measure} accepts {promised:.6f}",
                **numbers,
            )
    return passed(problem.name, layer, f"joint TV {tv:.2g}", **numbers)


def l0(subject: Subject, problem: Problem, run: Run) -> CaseResult | None:
    """The exact law from the subject's stop law; None if there are too many trees."""
    del run
    drafting = subject.drafting_name
    if subject.stop_law is None or drafting is None:
        return None
    if count_trees(problem, drafting) > (MAX_TREES if subject.batched else budget.TREES_SLOW):
        return None
    dtype = torch.float64

    def law(tree: DraftTree, target: Tensor, draft: Tensor) -> StopLaw:
        nonlocal dtype
        found = subject.law(tree.topology, tree.tokens, target, draft)
        dtype = found.stop_probs.dtype
        return found

    exact = exact_law(problem, drafting, law)
    tolerance = budget.EXACT_ULPS * torch.finfo(dtype).eps
    return _judge_law(exact, "L0", tolerance, Reason.EXACT_BIAS, subject, 0)


def _agree(subject: Subject, found: Probe) -> CaseResult:
    """L1: two witnesses of one verifier, the law found by probing and its own stop law."""
    problem = found.law.problem
    rows = tree_rows(problem, node_hashes(problem.topology, found.tokens))
    own = subject.law(problem.topology, found.tokens, *rows)
    joint = own.stop_probs[..., None] * own.next_token_probs()
    gap = float(np.abs(joint.double().numpy() - found.joint).max())
    detail = f"verify and stop_law differ by {gap:.2g} at the most on {len(found.tokens)} trees"
    rounding = budget.EXACT_ULPS * torch.finfo(own.stop_probs.dtype).eps
    if gap > max(budget.PROBE_TOLERANCE, rounding):
        return CaseResult(
            problem.name, "L1", Verdict.BROKEN, Reason.ANOTHER_LAW, detail, found.calls, tv=gap
        )
    return passed(problem.name, "L1", detail, n=found.calls)


def lx(subject: Subject, problem: Problem, run: Run) -> Iterator[CaseResult]:
    """The exact law by probing, nothing where a black box cannot be probed; then L1."""
    if subject.drafting_name is None or subject.own_randomness:
        return
    if count_trees(problem, subject.drafting_name) > MAX_TREES:
        return
    limit = None if subject.batched else budget.PROBE_CALLS_SLOW
    try:
        found = probe(subject, problem, max_calls=limit, seed=run.root)
    except ProbeError as error:
        purity.contract(subject, problem, run)  # do rows of a batch see each other?
        # Not a verdict: sampling gives it (STATS 2).
        yield CaseResult(problem.name, "Lx", Verdict.INCONCLUSIVE, Reason.NOT_BOXES, f"{error}")
        return
    except TimeoutError as error:
        yield CaseResult(problem.name, "Lx", Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, f"{error}")
        return
    result = _judge_law(
        found.law, "Lx", budget.PROBE_TOLERANCE, Reason.PROBED_BIAS, subject, found.calls
    )
    reused = sorted(found.reused_slots(problem.topology.num_nodes + 1))
    if reused:
        result.extra["reused_slots"] = reused
        result.extra["warning"] = (
            f"the number in slot {', '.join(map(str, reused))} decides a node and the next token"
        )
    yield result
    if subject.stop_law is not None:
        yield _agree(subject, found)


def length(subject: Subject, problem: Problem, run: Run) -> CaseResult | None:
    """Accepted tokens against the claimed verifier's exact expectation.

    On the very same trees if both draw by one law, else on trees of the claimed verifier's own.
    """
    if subject.claims is None or (subject.measure is None and problem.stops):
        return None  # two draft laws may be cut in two ways
    claimed = builtin(subject.claims)
    generator = torch_generator(f"length/{problem.name}", root=run.root)
    size = trees_a_call(subject, problem)
    depths = indices(problem.topology, torch.device("cpu")).depths
    accepted, promised = [], []
    for _ in range(8):
        drawn = draw(subject, problem, size, generator, rename(problem, generator))
        accepted.append(depths[decide(subject, problem, drawn, generator).stop].double())
        if subject.measure is None:
            drawn = draw(claimed, problem, size, generator, rename(problem, generator))
        law = stop_law(subject.claims, drawn.as_tree(problem), drawn.target, drawn.draft)
        promised.append(law.expected_accepted)
    ours, theirs = torch.cat(accepted), torch.cat(promised)
    n, mean = len(ours), float((theirs - ours).mean())
    paired = subject.measure is not None
    variance = (theirs - ours).var() if paired else theirs.var() + ours.var()
    error = float(variance / n) ** 0.5 + TINY
    detail = f"{-mean:+.5f} +- {error:.5f} accepted tokens a cycle against {subject.claims}"
    if mean > budget.LENGTH_SIGMAS * error:
        return CaseResult(problem.name, "length", Verdict.BROKEN, Reason.SHORTER, detail, n=n)
    return passed(problem.name, "length", detail, n=n)
