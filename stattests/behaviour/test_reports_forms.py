"""Names of any kind stay what they are in Markdown, CSV, LaTeX, HTML and figures of the reports."""

from __future__ import annotations

import csv
import io
import re
from math import inf, nan
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib", reason="the extra `reports` is not installed")
pytest.importorskip("jinja2", reason="the extra `reports` is not installed")

from markdown_it import MarkdownIt

from reports.__main__ import main
from reports.forms import FORMS, TEX
from reports.table import Amount, Table, count
from stattests.behaviour.synthetic_runs import SETTINGS, rows, write_run

NAMES = (
    "<script>alert(1)</script>",
    "a_b$x^2$%&#{}~\\",
    "|`*_[x](y)|&lt;",
    "$\\foo$",
    "_hidden",
    '[[0],[1]] --seed "1"',
    "\u202eevil\x01\n",
    "\u6a21",
    "a" * 300,
    "RRSw",
    "",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on verifiers of these names."""
    folder = tmp_path_factory.mktemp("strange")
    names = ("rrsw", *NAMES)
    gain = {name: 0.01 * k for k, name in enumerate(names)}
    frame = rows(settings=SETTINGS[:1], prompts=len(names), cycles=2, verifiers=names, gain=gain)
    frame = frame.with_columns(pl.format("{}$_|<b>", "category").alias("category"))
    done = CliRunner().invoke(
        main, [str(write_run(folder / "$run_&<i>", frame)), "-o", str(folder / "out")]
    )
    assert done.exit_code == 0, done.output
    return folder / "out"


def one(made: Path, pattern: str) -> str:
    (path,) = (made / "tables").glob(pattern)
    return path.read_text(encoding="utf-8")


def test_strange_names_are_the_same_in_markdown_as_in_csv(made: Path) -> None:
    table = list(csv.reader(io.StringIO(one(made, "lengths*.csv"))))
    page = MarkdownIt("commonmark").enable("table").render(one(made, "lengths*.md"))
    assert "<script" not in page
    assert "<b>" not in page
    shown = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in page.split("<tr>")[2:]]
    assert len(shown) == len(NAMES) + 1 == len(table) - 1
    for line, row in zip(table[1:], shown, strict=True):
        text = row[0].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
        assert text.replace("&amp;", "&") == line[0]
        assert "<em>" not in row[0]
        assert len(row) == len(shown[0])


def test_every_special_sign_is_escaped_in_latex(made: Path) -> None:
    """What LaTeX would read as a command is only what the form itself writes."""
    for path in (made / "tables").glob("*.tex"):
        text = path.read_text(encoding="utf-8")
        assert text.isascii()
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        assert not re.search(r"(?<!\\)[#%]|(?<!\\)~|\|", text), path.name
        body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
        for row in body.split(r"\tabularnewline")[:-1]:
            row = re.sub(r"\\midrule|\\addlinespace\[2pt\]", "", row)
            assert not row.strip().startswith("[")
            assert "--" not in row
            outside = re.sub(r"(?<!\\)\$.*?(?<!\\)\$", "", row)  # numbers are in mathematics
            assert not re.search(r"(?<!\\)[_^$]", outside), row


def test_columns_of_latex_are_those_of_its_head(made: Path) -> None:
    for path in (made / "tables").glob("*.tex"):
        text = path.read_text(encoding="utf-8")
        columns = re.sub(
            r"p\{[^}]*\}", "p", text.split(r"\begin{tabular}{")[1].split("}\n\\toprule")[0]
        )
        rows_ = re.split(r"\\tabularnewline", text.split(r"\toprule")[1])[:-1]
        for row in rows_:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1, path.name
        shares = re.findall(r"p\{([\d.]+)\\linewidth\}", text)
        assert sum(map(float, shares)) < 1


def test_every_sign_of_latex_is_known_to_its_form() -> None:
    assert set("\\&%$#_{}~^") <= set(TEX)


def test_the_page_shows_strange_names_as_text(made: Path) -> None:
    page = (made / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not re.search(r"[\u202e\x01]", page)
    assert "&#39;RRSw&#39;" in page  # another one's name, told apart from our RRSw


@pytest.mark.parametrize(
    ("cell", "md", "tex", "values"),
    [
        (Amount(1.5, 0.25), "1.500 ± 0.250", r"$1.500_{\pm 0.250}$", "1.5,0.25"),
        (Amount(1.5), "1.500 ± n/a", r"$1.500_{\pm \mathrm{n/a}}$", "1.5,"),
        (Amount(-1e-9, 0.0, 2, signed=True), "+0.00 ± 0.00", r"$+0.00_{\pm 0.00}$", "-1e-09,0"),
        (Amount(6.0, 2.0, 1, suffix=" %"), "6.0 ± 2.0 %", r"$6.0_{\pm 2.0} \%$", "6,2"),
        (Amount(2.0, suffix="x", exact=True), "2.000x", r"$2.000\times$", "2"),
        (Amount(nan), "-", "-", ","),
        (Amount(inf), "infinite", "infinite", "inf,"),
        (count(12345), "12,345", "$12{,}345$", "12345"),
    ],
    ids=str,
)
def test_a_number_is_written_like_this(cell: Amount, md: str, tex: str, values: str) -> None:
    table = Table("name", "Title", ("a", "b"), (("x", cell),), "Caption.", ("file",))
    assert f"| x | {md} |" in FORMS["md"](table)
    assert f"x & {tex} \\tabularnewline" in FORMS["tex"](table)
    assert FORMS["csv"](table).splitlines()[1] == f"x,{values}"
