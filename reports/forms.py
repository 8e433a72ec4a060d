"""The forms in which a table is written: Markdown, CSV, LaTeX. Text stays as it is in each."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from math import isfinite, isnan, sqrt
from textwrap import wrap

from reports.table import Amount, Cell, Table, numeric, shown

# Of LaTeX: signs in a line of \scriptsize, in a line of a column's head, in a cell left unbroken.
LINE, HEAD, LONG = 115, 12, 24
TEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]"},  # behind the end of a row, a bracket is an argument
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    '"': r"\char34{}",
    "|": r"\textbar{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
}
MARKDOWN = re.compile(
    r"[\\`*|~$]|<(?=[A-Za-z/!?])|&(?=[#\w]+;)|\](?=\()|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
)


def markdown(table: Table) -> str:
    """The table in GitHub's form, with its title and caption."""
    align = ["---", *("---:" if numeric(table, k) else "---" for k in range(1, len(table.columns)))]
    cells = [[_md(shown(cell)) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in ([*map(_md, table.columns)], align, *cells)]
    ticks = "``" if "`" in "".join(table.sources) else "`"
    sources = ", ".join(f"{ticks}{source}{ticks}" for source in table.sources)
    return "\n".join(
        (f"**{_md(table.title)}**", "", *lines, "", _md(table.caption), f"From {sources}.", "")
    )


def comma_separated(table: Table) -> str:
    """The table for programmes: full precision, an error in a column of its own."""
    columns: list[list[str]] = []
    for name, *cells in zip(table.columns, *table.rows, strict=True):
        columns.append([name, *(_full(c.value) if isinstance(c, Amount) else c for c in cells)])
        if any(isinstance(cell, Amount) and not cell.exact for cell in cells):
            errors = (_full(c.error) if isinstance(c, Amount) else "" for c in cells)
            columns.append([f"{name} (standard error)", *errors])
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(zip(*columns, strict=True))
    return buffer.getvalue()


def latex(table: Table) -> str:
    r"""The table for a paper, across both its columns; it needs \usepackage{booktabs}."""
    kinds, heads = [], []
    for k, (name, width) in enumerate(zip(table.columns, _widths(table), strict=True)):
        side = "r" if numeric(table, k) else "l"
        kinds.append(rf"p{{{width:.2f}\linewidth}}" if width else side)
        lines = r"\\".join(map(_tex, wrap(name, LINE if width else HEAD, break_long_words=False)))
        heads.append(rf"\shortstack[{side}]{{{lines}}}")
    rows = [
        [_tex_cell(cell, broken=kind[0] == "p") for cell, kind in zip(row, kinds, strict=True)]
        for row in table.rows
    ]
    # Rows of several lines stand apart.
    end = r" \tabularnewline" + (r"\addlinespace[2pt]" if any(_widths(table)) else "")
    return "\n".join(
        (
            r"\begin{table*}",
            r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}",
            rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}\smallskip",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{''.join(kinds)}}}",
            r"\toprule",
            " & ".join(heads) + r" \tabularnewline",
            r"\midrule",
            *(" & ".join(row) + end for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        )
    )


FORMS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
}


def _md(text: str) -> str:
    r"""Text that GitHub shows as it is.

    Example:
        >>> print(_md("a|b <i> smollm2_paired *x* n < 3"))
        a\|b \<i> smollm2_paired \*x\* n < 3
    """
    return MARKDOWN.sub(r"\\\g<0>", text.replace("\n", " "))


def _full(number: float) -> str:
    return "" if isnan(number) else f"{number:.12g}"


def _tex(text: str) -> str:
    r"""Text that LaTeX shows as it is; a sign that its fonts may lack is named.

    Example:
        >>> print(_tex("a_b --seed [1] \N{GREEK SMALL LETTER ALPHA}"))
        a\_b -{}-seed {[}1{]} U+03B1
    """
    signs = (TEX.get(s) or (s if s.isascii() else f"U+{ord(s):04X}") for s in text)
    return re.sub("-(?=-)", "-{}", "".join(signs))


def _tex_cell(cell: Cell, *, broken: bool) -> str:
    if isinstance(cell, str) or not isfinite(cell.value):
        return (r"\raggedright " if broken else "") + _tex(shown(cell))
    text = cell.text(r"{}_{{\pm {}}}")
    for sign, set_as in ((",", "{,}"), ("%", r"\%"), ("x", r"\times"), ("n/a", r"\mathrm{n/a}")):
        text = text.replace(sign, set_as)
    return f"${text}$"


def _widths(table: Table) -> list[float]:
    """Each column's share of the line; 0 for as wide as it needs. Long text is broken."""
    longest = [
        max((len(shown(row[k])) for row in table.rows), default=0)
        for k in range(len(table.columns))
    ]
    parts = [sqrt(n) if n > LONG and not numeric(table, k) else 0.0 for k, n in enumerate(longest)]
    short = sum(max(n, HEAD) + 1 for n, part in zip(longest, parts, strict=True) if not part)
    left = max(LINE - short - 2 * len(parts), LONG) / LINE
    return [left * part / (sum(parts) or 1.0) for part in parts]
