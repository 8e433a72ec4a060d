"""A table as values, and the forms in which it is written: Markdown, CSV, LaTeX (booktabs)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan

from reports.estimates import Estimate

NOTHING = "-"


@dataclass(frozen=True)
class Amount:
    """A number of a table with its standard error.

    value, error: nan for none; an error that cannot be known is shown as "n/a".
    digits: behind the point.
    signed: whether a plus is shown.
    suffix: a unit directly behind it, such as "x".
    exact: that the number has no error to be shown.
    """

    value: float
    error: float = nan
    digits: int = 3
    signed: bool = False
    suffix: str = ""
    exact: bool = False

    def text(self, plus_minus: str = "±") -> str:
        """The amount for people."""
        if not isfinite(self.value):
            return NOTHING if isnan(self.value) else "infinite"
        sign = "+" if self.signed else ""
        number = f"{self.value:{sign},.{self.digits}f}"
        if self.exact:
            return f"{number}{self.suffix}"
        error = "n/a" if isnan(self.error) else f"{self.error:.{self.digits}f}"
        return f"{number} {plus_minus} {error}{self.suffix}"


Cell = str | Amount


@dataclass(frozen=True)
class Table:
    """A table of the report.

    name: of its files.
    title: what it shows.
    columns, rows: the first column names the row.
    caption: what the numbers are, and that the next token is counted.
    sources: the files that the numbers come from.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    sources: tuple[str, ...]


def amount(estimate: Estimate, *, scale: float = 1.0, **form: object) -> Amount:
    """An estimate as a cell.

    Example:
        >>> amount(Estimate(2.0, {"a": 0.5, "b": -0.5}, 8), signed=True).text()
        '+2.000 ± 1.000'
    """
    return Amount(scale * estimate.value, abs(scale) * estimate.error, **form)  # type: ignore[arg-type]


def count(n: int) -> Amount:
    """A whole number as a cell.

    Example:
        >>> count(12345).text()
        '12,345'
    """
    return Amount(float(n), digits=0, exact=True)


def shown(cell: Cell) -> str:
    """A cell for people."""
    return cell.text() if isinstance(cell, Amount) else cell or NOTHING


def markdown(table: Table) -> str:
    """The table in GitHub's form, with its title and caption."""
    align = ["---", *("---:" if numeric(table, k) else "---" for k in range(1, len(table.columns)))]
    lines = [table.columns, align, *([shown(cell) for cell in row] for row in table.rows)]
    body = "\n".join("| " + " | ".join(_escaped_bar(c) for c in line) + " |" for line in lines)
    sources = ", ".join(f"`{source}`" for source in table.sources)
    return f"**{table.title}**\n\n{body}\n\n{table.caption}\nFrom {sources}.\n"


def comma_separated(table: Table) -> str:
    """The table for programmes: full precision, an error in a column of its own."""
    with_error = [
        any(isinstance(row[k], Amount) and not row[k].exact for row in table.rows)  # type: ignore[union-attr]
        for k in range(len(table.columns))
    ]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    header: list[str] = []
    for name, error in zip(table.columns, with_error, strict=True):
        header += [name, f"{name} (standard error)"] if error else [name]
    writer.writerow(header)
    for row in table.rows:
        line: list[str] = []
        for cell, error in zip(row, with_error, strict=True):
            line += _plain(cell, error)
        writer.writerow(line)
    return buffer.getvalue()


def latex(table: Table) -> str:
    r"""The table for a paper; it needs \usepackage{booktabs}."""
    columns = "l" + "".join("r" if numeric(table, k) else "l" for k in range(1, len(table.columns)))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(_tex, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex_cell, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


FORMS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
}


def numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers, which are set to the right."""
    cells: Sequence[Cell] = [row[column] for row in table.rows]
    return any(isinstance(cell, Amount) for cell in cells)


def _plain(cell: Cell, error: bool) -> list[str]:
    if isinstance(cell, str):
        return [cell, ""] if error else [cell]
    numbers = [cell.value, cell.error] if error else [cell.value]
    return ["" if isnan(x) else f"{x:.12g}" for x in numbers]


def _escaped_bar(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


TEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
}


def _tex(text: str) -> str:
    return "".join(TEX.get(sign, sign) for sign in text)


def _tex_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _tex(cell or NOTHING)
    text = cell.text(r"\pm").replace(",", "{,}").replace("%", r"\%")
    if text == NOTHING:
        return text
    if not isfinite(cell.value):
        return text
    return "$" + text.replace("n/a", r"\mathrm{n/a}") + "$"
