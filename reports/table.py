"""A table as values: its cells, and how a number is shown with its error."""

from __future__ import annotations

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

    def text(self, form: str = "{} ± {}") -> str:
        """The amount for people; `form` joins number and error."""
        if not isfinite(self.value):
            return NOTHING if isnan(self.value) else "infinite"
        sign = "+" if self.signed else ""
        number = f"{self.value:{sign}z,.{self.digits}f}"
        if self.exact:
            return f"{number}{self.suffix}"
        error = "n/a" if isnan(self.error) else f"{self.error:.{self.digits}f}"
        return form.format(number, error) + self.suffix


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


def numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers, which are set to the right."""
    return any(isinstance(row[column], Amount) for row in table.rows)
