"""Cycles in batches of 1 to 8 trees: for subjects whose numbers are their own.

With given numbers `purity.contract` compares a small batch with a large one bit by bit. Who draws
in secret can only be counted, and a fault that a batch of one has alone would drown among batches
of thousands: so each size has counts and an e-value of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from stattests import budget
from stattests.engine import Emitted
from stattests.problems import Problem
from stattests.sequential import l3
from stattests.subject import Subject
from stattests.verdict import CaseResult, Run

SIZES = (1, 2, 3, 8)  # alone, even, odd, and as many as a small server runs


def small(
    subject: Subject, problem: Problem, run: Run, pilot: list[Emitted]
) -> Iterator[CaseResult]:
    """Each size against the target's law, with the bias that so many calls can show."""
    delta = sqrt(budget.SMALL_BATCH_COST * run.delta)
    for size in SIZES:
        found = l3(subject, problem, replace(run, delta=delta), pilot, name="small", batch=size)
        yield replace(found, case=f"{found.case}/batches of {size}")
