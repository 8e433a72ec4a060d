"""What a check found: one row of a table and of its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import ASCII, SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

LINE = 160  # characters


@dataclass(frozen=True)
class Finding:
    """One checked statement.

    claim: what was checked.
    found: the number that decides, with its name and error, for people.
    bound: what it has to be, for people.
    value: that number.
    n: how many were looked at.
    unit: of n, in the plural.
    holds: whether the statement held.
    note: what else is to be known, or "".
    undecided: that it does not hold because too little was looked at.
    """

    claim: str
    found: str
    bound: str
    value: float
    n: int
    unit: str
    holds: bool
    note: str = ""
    undecided: bool = False

    @property
    def verdict(self) -> str:
        """In one word."""
        return "yes" if self.holds else "open" if self.undecided else "NO"


def at_most(claim: str, what: str, value: float, limit: float, n: int, unit: str) -> Finding:
    """A deviation that must not exceed a limit; nan does not hold."""
    return Finding(
        claim,
        f"{what} {value:.1e}" if limit else f"{what}: {value:g}",
        f"<= {limit:.0e}" if limit else "0",
        value,
        n,
        unit,
        value <= limit,
    )


def findings_table(findings: Sequence[Finding], *, title: str, ascii_only: bool) -> Table:
    """One row a finding, and whether it holds; its text is no markup."""
    table = Table(box=ASCII if ascii_only else SIMPLE, title=title)
    for header in ("claim", "found", "must be"):
        table.add_column(header, overflow="fold")
    table.add_column("looked at", justify="right")
    table.add_column("holds")
    for row in findings:
        cells = (row.claim, row.found, row.bound, f"{row.n:,} {row.unit}", row.verdict)
        table.add_row(*map(escape, cells))
    return table


def wide_console() -> Console:
    """The terminal, or where there is none, lines long enough for the table."""
    console = Console()
    return console if console.is_terminal else Console(width=LINE)
