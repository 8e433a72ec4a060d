"""After a bias is found: which known fault it looks like, and the smallest problem that shows it.

- `best_matches`: cycles of the subject on a few small toys, counted, and their likelihood under the
  kept exact law of every fault of the catalogue with the same draft law, and of no fault.
- `missing_laws`: what it could not be compared with.
- `smallest_problem`: toys of growing size, exactly probed, until one shows the bias.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from math import inf, log
from typing import Any

import numpy as np

from stattests import budget
from stattests.cases import cases_for, problem
from stattests.engine import cycles
from stattests.exact import Prefix
from stattests.faults import FAULTS
from stattests.faults.laws import NO_FAULT, TOYS, Known, Outputs, known, missing
from stattests.probing import ProbeError, probe
from stattests.problems import SHARP_PAIRS, Problem, normalised, parse_shape
from stattests.streams import torch_generator
from stattests.subject import Subject
from univer import VERIFIERS

CYCLES, CYCLES_SLOW = 60_000, 4_000
SLACK = 1e-3  # share of outputs left unexplained: a fault may be a variant of a known one
LEAST_MARGIN = 10.0  # nats over no fault before a match is worth a word


@dataclass(frozen=True)
class Match:
    """A known fault and how well it explains what was seen.

    log_likelihood: of the counted outputs, natural log; margin: how much better than no fault.
    """

    name: str
    says: str
    log_likelihood: float
    margin: float


def count_outputs(subject: Subject, toy: Problem, seed: int) -> Counter[Prefix]:
    """How often each output came."""
    generator = torch_generator(f"diagnosis/{toy.name}", root=seed)
    total = CYCLES if subject.batched else CYCLES_SLOW
    size = min(total, budget.BATCH if subject.batched else budget.BATCH_SLOW)
    counts: Counter[Prefix] = Counter()
    for _ in range(total // size):
        out = cycles(subject, toy, size, generator)
        rows, seen = np.unique(out.tokens.numpy(), axis=0, return_counts=True)
        for row, times in zip(rows.tolist(), seen.tolist(), strict=True):
            counts[tuple(token for token in row if token >= 0)] += times
    return counts


def _log_likelihood(counts: Counter[Prefix], law: Outputs) -> float:
    anything = SLACK / len(counts)
    return sum(x * log((1 - SLACK) * law.get(o, 0.0) + anything) for o, x in counts.items())


def best_matches(subject: Subject, seed: int, most: int = 3) -> list[Match]:
    """The faults of the catalogue that explain the subject's outputs best, best first.

    Empty if none explains them better than no fault does, or the subject has its own drafter.
    """
    drafting = subject.drafting_name
    if drafting is None:
        return []
    toys = [problem(*toy) for toy in TOYS]
    counts = {
        at: count_outputs(subject, toy, seed)
        for at, toy in enumerate(toys)
        if (subject.max_arity is None or toy.topology.max_arity <= subject.max_arity)
        and (toy.full or not subject.full_trees)
    }

    def explained(laws: Known) -> float:
        """The log likelihood; what takes only narrower trees than were counted explains nothing."""
        likelihood = 0.0
        for at, counted in counts.items():
            law = laws[at]
            likelihood += -inf if law is None else _log_likelihood(counted, law)
        return likelihood

    kept = {name: known(name) for name, row in VERIFIERS.items() if row.drafting == drafting}
    whole = [explained(laws[NO_FAULT]) for laws in kept.values() if laws]
    baseline, faults = max(whole, default=-inf), {fault.name: fault for fault in FAULTS}
    scored = []
    for verifier, laws in kept.items():
        for name in laws.keys() & faults.keys():
            fault, likelihood = faults[name], explained(laws[name])
            # Another verifier's fault must explain clearly more than the fault where it is known.
            there = verifier != fault.base
            score = likelihood - (LEAST_MARGIN if there else 0.0)
            says = fault.says + (f" (there: in {fault.base})" if there else "")
            scored.append((score, Match(name, says, likelihood, likelihood - baseline)))
    best: dict[str, Match] = {}
    for score, match in sorted(scored, key=lambda pair: (-pair[0], pair[1].name)):
        if score - baseline >= LEAST_MARGIN:
            best.setdefault(match.name, match)
    return list(best.values())[:most]


def missing_laws(subject: Subject) -> str | None:
    """Which laws `best_matches` went without, and the command that writes them; None if none."""
    return None if subject.drafting_name is None else missing(subject.drafting_name)


def smallest_problem(subject: Subject) -> Problem | None:
    """The smallest toy of simple fractions on which exact probing shows the bias, or None."""
    if subject.drafting_name is None or subject.own_randomness:
        return None
    limit = None if subject.batched else budget.PROBE_CALLS_SLOW // 4
    for topology in cases_for(subject.max_arity, subject.full_trees).small:
        for size in (1, 2):
            for rows in combinations(range(len(SHARP_PAIRS)), size):
                toy = _simple(topology, rows)
                try:
                    found = probe(subject, toy, max_calls=limit)
                except (ProbeError, TimeoutError):
                    continue
                if found.law.joint_tv() > budget.PROBE_TOLERANCE:
                    return toy
    return None


def _simple(topology: str, rows: tuple[int, ...]) -> Problem:
    """A toy of three tokens with these sharp pairs."""
    target, draft = zip(*(SHARP_PAIRS[row] for row in rows), strict=True)
    name = f"simple/{topology}/{'+'.join(map(str, rows))}"
    shape, stops = parse_shape(topology)
    return Problem(name, shape, normalised(target), normalised(draft), stops=stops)


def as_pytest(spec: str, toy: Problem) -> str:
    """A ready-to-paste test that fails while the bias is there."""
    laws = "\n".join(
        f"    # pair {k}: target {_short(p)}, draft {_short(q)}"
        for k, (p, q) in enumerate(zip(toy.target, toy.draft, strict=True))
    )
    return f"""from stattests.probing import probe
from stattests.problems import Problem
from stattests.subject import load


def test_output_law_is_the_targets():
{laws}
    problem = Problem.from_json({toy.to_json()!r})
    assert probe(load({spec!r}), problem).law.joint_tv() < {budget.PROBE_TOLERANCE!r}
"""


def _short(law: Any) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in law) + ")"
