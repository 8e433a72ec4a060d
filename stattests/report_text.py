"""A certification's report for people: a table, the verdict, what it means, how to replay it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.box import ASCII, SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stattests import budget
from stattests.gate import Report
from stattests.printed import Printed
from stattests.verdict import CaseResult, Verdict

COLOURS = {"CERTIFIED": "green", "BIASED": "red", "BROKEN": "red", "INCONCLUSIVE": "yellow"}
COLUMNS = ("layer", "case", "verdict", "n", "log10 E", "TV", "what was seen")
WIDE = 200  # letters a line where there is no terminal
SEEN = 30  # letters a line that the last column takes at least
BESIDE = 3  # letters a column that its borders take at most


def wide_console() -> Console:
    """The terminal, or where there is none, lines long enough for the table."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def show(console: Console, report: Report, replay: str, printed: Printed, log: Path) -> None:
    """Print the report; `log` is where what the verifier printed is kept."""
    shown = [r for r in report.results if r.layer == "L3" or r.verdict is not Verdict.CERTIFIED]
    _table(console, report.subject, shown)
    for line in _lines(report, shown, replay, printed, log):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _table(console: Console, title: str, shown: list[CaseResult]) -> None:
    """The results as a table; where that would break names, one after the other."""
    rows = [_cells(result) for result in shown]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    if sum(widths[:-1]) + BESIDE * len(COLUMNS) + 1 + SEEN > console.width:
        for row in rows:
            numbers = zip(COLUMNS[3:-1], row[3:-1], strict=True)
            words = [" ".join(row[:3]), *(f"{column} {cell}" for column, cell in numbers if cell)]
            console.print(Text(", ".join(words), style=COLOURS[row[2]]))
            console.print(Text(f"  {row[-1]}"))
        return
    table = Table(box=SIMPLE if console.is_terminal else ASCII, title=Text(title))
    for column in COLUMNS:
        right, last = column in ("n", "log10 E", "TV"), column == COLUMNS[-1]
        table.add_column(column, justify="right" if right else "left", no_wrap=not last)
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    console.print(table)


def _cells(result: CaseResult) -> tuple[str, ...]:
    return (
        result.layer,
        result.case,
        result.verdict.name,
        f"{result.n:,}" if result.n else "",
        "" if result.log10_e is None else f"{result.log10_e:.1f}",
        "" if result.tv is None else f"{result.tv:.2g}",
        result.detail,
    )


def _lines(
    report: Report, shown: list[CaseResult], replay: str, printed: Printed, log: Path
) -> Iterator[str]:
    """What stands below the table."""
    quiet = Counter(r.layer for r in report.results if r not in shown)
    layers = ", ".join(f"{layer} {count}" for layer, count in quiet.items())
    yield f"{quiet.total()} further checks passed" + (f" ({layers})" if layers else "")
    yield from [_where(result) for result in report.results if _shows_where(result)][:1]
    for match in report.matches:
        yield (
            f"looks like: {match.name} ({match.says.rstrip('.')}), log likelihood"
            f" {match.margin:+.0f} against no fault"
        )
    if report.verdict is Verdict.BIASED and not report.matches:
        yield "looks like: no fault of the catalogue explains it better than none"
    if report.missing_laws is not None:
        yield f"not compared: {report.missing_laws}"
    if report.pytest is not None:
        yield from ("smallest toy that shows it, as a test:", "", *report.pytest.splitlines(), "")
    yield from [
        f"{result.layer} {result.case}: warning: {result.extra['warning']}"
        for result in report.results
        if "warning" in result.extra
    ][:1]
    yield from (f"note: {note}" for note in report.notes)
    if printed.total:
        cut = ", cut" if printed.cut else ""
        yield f"what the verifier printed: {log} ({printed.total:,} bytes came{cut})"
        if report.verdict is Verdict.BROKEN:
            yield from (f"  its last words: {line}" for line in printed.last_lines())
    yield f"{report.cycles_per_second:,.0f} cycles a second, {report.seconds:.0f} s"
    yield f"verdict: {report.verdict.name} ({report.detail})"
    yield f"what it means: {report.guarantee}"
    yield f"replay: {replay}"


def _shows_where(result: CaseResult) -> bool:
    """Whether its worst prefix is off by more than chance."""
    if result.verdict is not Verdict.BIASED or not result.findings:
        return False
    p_value = result.findings[0].p_value
    return result.log10_e is None or (p_value is not None and p_value < budget.SHOWN_P_VALUE)


def _where(result: CaseResult) -> str:
    worst = result.findings[0]
    tokens = ", ".join(f"{token}: {seen:.4f} for {due:.4f}" for token, seen, due in worst.tokens)
    return f"where: {result.case} after {worst.place}, tokens {tokens}"
