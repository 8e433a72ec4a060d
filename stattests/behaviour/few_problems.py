"""A handful of the gate's problems, for tests of what does not depend on how many there are.

Every layer still runs. A whole certification is in test_gate.py, of a right verifier and of a
biased one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stattests.cases import Cases, cases_for
from stattests.gate import LAG_FAMILIES
from stattests.problems import EARLY

SAMPLED = (*LAG_FAMILIES, "small-support")  # the last for children that are absent


def few(*arguments: Any, **named: Any) -> Cases:
    """The first problem or two of each kind that `cases_for` gives."""
    cases = cases_for(*arguments, **named)
    firsts = [[row for row in cases.sampled if row[0] == family][:1] for family in SAMPLED]
    early = [row for row in cases.sampled if row[1].endswith(EARLY)][:1]
    return replace(
        cases,
        sampled=tuple(row for rows in (*firsts, early) for row in rows),
        exact=cases.exact[:2],
        integrated=cases.integrated[:1],
        probed=cases.probed[:2],
        probed_batched=cases.probed_batched[:1],
        wide=cases.wide[:1],
    )
