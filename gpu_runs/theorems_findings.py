"""What a check of a theorem found: one row of the table and of the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import ASCII, SIMPLE
from rich.table import Table


@dataclass(frozen=True)
class Finding:
    """One checked statement.

    claim: the theorem, or what was tested.
    found: the number that decides, with its name and error, for people.
    bound: what it has to be, for people.
    value: that number.
    n: how many were looked at.
    unit: of n, in the plural.
    holds: whether the statement held.
    note: what a passing check would have noticed, or "".
    """

    claim: str
    found: str
    bound: str
    value: float
    n: int
    unit: str
    holds: bool
    note: str = ""


def at_most(claim: str, what: str, value: float, limit: float, n: int, unit: str) -> Finding:
    """A deviation that must not exceed a limit; nan does not hold."""
    return Finding(claim, f"{what} {value:.1e}", f"<= {limit:.0e}", value, n, unit, value <= limit)


def findings_table(findings: Sequence[Finding], *, ascii_only: bool) -> Table:
    """One row a finding, and which ones do not hold."""
    table = Table(box=ASCII if ascii_only else SIMPLE, title="Theorems on real nodes and real text")
    for header in ("claim", "found", "must be"):
        table.add_column(header, overflow="fold")
    table.add_column("looked at", justify="right")
    table.add_column("holds")
    for row in findings:
        holds = "yes" if row.holds else "NO"
        table.add_row(row.claim, row.found, row.bound, f"{row.n:,} {row.unit}", holds)
    return table
