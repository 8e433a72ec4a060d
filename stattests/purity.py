"""The first layers: purity, answers that are answers, and scripted uniforms.

A verifier is a function: the same inputs and uniforms give the same answer, whatever was asked
before and whatever else is in the batch; and no uniform, however near its ends, lets a token out
that the target forbids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stattests import budget
from stattests.answers import Decisions
from stattests.engine import decide, draw, emitted, forbidden, rename
from stattests.probing import LARGEST
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, ContractError, Reason, Run, Verdict, passed

LARGE = 16_411  # rows of the batch whose answers all others must repeat
SIZES = (1, 1, 2, 3, 5, 8, 31, 63, 64, 95, 257, 1_024, 1_055, 4_095, 8_192)
EDGES = (0.0, 2.0**-24, LARGEST)


def contract(subject: Subject, problem: Problem, run: Run) -> CaseResult:
    """Same inputs, same answer: again, after other calls, in another order, alone."""
    generator = torch_generator(f"contract/{problem.name}", root=run.root)
    size = LARGE if subject.batched else 8
    drawn = draw(subject, problem, size, generator, rename(problem, generator))
    slots = problem.topology.num_nodes + 1
    uniforms = torch.rand(size, slots, dtype=torch.float64, generator=generator)

    def ask(order: Tensor, numbers: Tensor = uniforms) -> Decisions:
        parts = (drawn.tokens, drawn.target, drawn.draft, numbers)
        return subject.decide(problem.topology, *(part[order] for part in parts))

    everyone = torch.arange(size)
    first = ask(everyone)

    def interferes(seen: str) -> ContractError:
        """Rows see each other, unless the very first question now gets another answer as well."""
        if _same(first, ask(everyone)):
            return ContractError(Reason.ROWS_INTERFERE, seen)
        return ContractError(Reason.NOT_DETERMINISTIC, f"{seen}; by now the first batch as well")

    if not subject.own_randomness:
        if not _same(first, ask(everyone)):
            raise ContractError(Reason.NOT_DETERMINISTIC, "two calls in a row gave two answers")
        other = torch.randperm(size, generator=generator)
        if not _same(_rows(first, other), ask(other)):
            raise interferes("rows in another order gave other answers")
        ask(everyone[: size // 2])
        if not _same(first, ask(everyone)):
            raise ContractError(Reason.NOT_DETERMINISTIC, "a call in between changed the answer")
        for count in SIZES if subject.batched else (1,):
            some = torch.randperm(size, generator=generator)[:count]
            if not _same(_rows(first, some), ask(some)):
                raise interferes(
                    f"a batch of {count} gives its rows other answers than one of {size}"
                )
        shifted = uniforms.roll(1, 0)  # trees that it has seen, with other numbers
        second, again = ask(everyone, shifted), torch.randperm(size, generator=generator)
        if not _same(_rows(second, again), ask(again, shifted)):
            raise ContractError(
                Reason.NOT_DETERMINISTIC, "trees seen before got another answer in another order"
            )
    return passed(problem.name, "contract", "pure: calls repeat, rows do not interfere", n=size)


def answers(subject: Subject, problem: Problem, run: Run) -> Decisions:
    """The subject's decisions on trees and uniforms that are the same at every call."""
    generator = torch_generator(f"answers/{problem.name}", root=run.root)
    drawn = draw(subject, problem, 64, generator, rename(problem, generator))
    return decide(subject, problem, drawn, generator)


def lifetime(subject: Subject, problem: Problem, run: Run, before: Decisions) -> CaseResult | None:
    """The same question at the end of a run as at its start (`before`): the same answer."""
    if subject.own_randomness:
        return None
    if not _same(before, answers(subject, problem, run)):
        raise ContractError(
            Reason.NOT_DETERMINISTIC,
            f"after {subject.calls:,} calls the same inputs got another answer",
        )
    return passed(problem.name, "contract", f"{subject.calls:,} calls changed nothing")


def _same(ours: Decisions, theirs: Decisions) -> bool:
    return torch.equal(ours.stop, theirs.stop) and torch.equal(ours.next_token, theirs.next_token)


def _rows(decisions: Decisions, order: Tensor) -> Decisions:
    return Decisions(decisions.stop[order], decisions.next_token[order])


def edges(subject: Subject, problem: Problem, run: Run) -> CaseResult:
    """Uniforms at 0, 2^-24 and the largest float below 1: no forbidden token."""
    generator = torch_generator(f"edges/{problem.name}", root=run.root)
    slots = problem.topology.num_nodes + 1
    few = max(2, budget.WIDE_CALL // (slots * problem.vocab))
    size = min(few, 512 if subject.batched else 32)
    drawn = draw(subject, problem, size, generator, rename(problem, generator))
    scripts = [torch.full((size, slots), edge, dtype=torch.float64) for edge in EDGES]
    picks = torch.randint(len(EDGES), (size, slots), generator=generator)
    scripts.append(torch.tensor(EDGES, dtype=torch.float64)[picks])
    for uniforms in scripts:
        decisions = subject.decide(
            problem.topology, drawn.tokens, drawn.target, drawn.draft, uniforms
        )
        found = forbidden(problem, emitted(problem, drawn, decisions))
        if found is not None:
            given = ", ".join(f"{value:.17g}" for value in uniforms[found[0]].tolist())
            return CaseResult(
                problem.name,
                "edges",
                Verdict.BIASED,
                Reason.FORBIDDEN_TOKEN,
                f"a token of probability 0 was emitted with uniforms [{given}]",
            )
    return passed(problem.name, "edges", "no forbidden token at scripted uniforms", n=4 * size)
