"""Rows into small sums: one pass a question, streamed, so that memory does not grow with the run.

All that later steps need are sums a prompt (see `estimates`), counts of accepted tokens, and counts
of PIT cells along the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from reports.errors import ReportError
from reports.names import CATEGORIES, LABELS, PLAIN, ordered, shape
from reports.runs import LISTS, Run, broken_part, unreadable
from stattests.budget import PIT_CELLS

LOOKS = 64  # points along the run at which the e-test is looked at
KEY = ["verifier", "topology", "temperature", "category", "prompt_id"]
TIMES = ("draft_ms", "target_ms", "verify_ms", "keep_ms")
IMPOSSIBLE = -1  # the cell of a token that its law gives probability 0


@dataclass(frozen=True, order=True)
class Setting:
    """A shape of trees at a temperature."""

    topology: str
    temperature: float

    def __str__(self) -> str:
        return f"{self.topology}, T = {self.temperature:g}"


@dataclass(frozen=True)
class Summary:
    """A run in sums.

    run: what was summed.
    prompts: one row a verifier, setting and prompt: cycles, sums of lengths, tokens and times.
    accepted: the same key and num_accepted -> how many decisions.
    cells: verifier, look, cell -> tokens.
    surprise: verifier -> tokens, sum of surprisal less entropy, its variance.
    """

    run: Run
    prompts: pl.DataFrame
    accepted: pl.DataFrame
    cells: pl.DataFrame
    surprise: pl.DataFrame

    @property
    def settings(self) -> list[Setting]:
        """The settings with trees: most prompts first, then by size and temperature."""
        trees = self.prompts.filter(pl.col("verifier") != PLAIN)
        counted = trees.group_by("topology", "temperature").agg(pl.col("prompt_id").n_unique())
        counts = {Setting(t, float(c)): int(n) for t, c, n in counted.iter_rows()}

        def place(setting: Setting) -> tuple[float, ...]:
            nodes, depth = shape(setting.topology) or (1 << 30, 0)
            return -counts[setting], nodes, depth, -setting.temperature

        return sorted(counts, key=lambda s: (*place(s), s.topology))

    @property
    def verifiers(self) -> list[str]:
        """Those with trees, in the usual order."""
        names = set(self.prompts["verifier"].to_list()) - {PLAIN}
        return ordered(names, LABELS)

    @property
    def categories(self) -> list[str]:
        """In the usual order."""
        return ordered(self.prompts["category"].to_list(), CATEGORIES)


def summarise(run: Run) -> Summary:
    """All sums of a run.

    Raises:
        ReportError: a part that is cut off in the middle, rows that are doubled or lost, or numbers
            that cannot be.
    """
    try:
        rows = run.lazy()
        texts = _texts(rows)
        accepted = (
            rows.filter(pl.col("num_accepted").is_not_null())
            .group_by(*KEY, "num_accepted")
            .agg(pl.len().alias("count"))
            .collect(engine="streaming")
        )
        cells, surprise = _cells(rows, run.rows), _surprise(rows)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(broken_part(run), error) from error
    _check(run, texts, cells)
    sums = [name for name in texts.columns if name not in (*KEY, "unit", "first", "last")]
    prompts = texts.group_by(KEY).agg(pl.col(sums).sum(), pl.len().alias("texts")).sort(KEY)
    return Summary(run, prompts, accepted.sort(*KEY, "num_accepted"), cells, surprise)


def _texts(rows: pl.LazyFrame) -> pl.DataFrame:
    """One row a verifier and text."""
    return (
        rows.group_by(*KEY, "unit")
        .agg(
            pl.len().alias("cycles"),
            pl.col("cycle").min().alias("first"),
            pl.col("cycle").max().alias("last"),
            pl.col("expected_accepted").sum().alias("expected"),
            pl.col("expected_accepted").is_finite().fill_null(False).sum().alias("finite"),
            pl.col("num_accepted").count().alias("decided"),
            pl.col("num_accepted").sum().alias("accepted"),
            pl.col("pit").list.len().sum().alias("tokens"),
            *(pl.col(name).sum() for name in TIMES),
        )
        .collect(engine="streaming")
    )


def _cells(rows: pl.LazyFrame, total: int) -> pl.DataFrame:
    cell = (pl.col("pit") * PIT_CELLS).floor()
    number = pl.when(pl.col("pit").is_infinite()).then(IMPOSSIBLE).otherwise(cell)
    return (
        rows.filter("drives_text")
        .select("verifier", (pl.col("row").cast(pl.Int64) * LOOKS // total).alias("look"), "pit")
        .explode("pit")
        .drop_nulls("pit")
        .with_columns(number.cast(pl.Int32, strict=False).alias("cell"))
        .group_by("verifier", "look", "cell")
        .agg(pl.len().alias("count"))
        .collect(engine="streaming")
        .sort("verifier", "look", "cell")
    )


def _surprise(rows: pl.LazyFrame) -> pl.DataFrame:
    return (
        rows.filter("drives_text")
        .select("verifier", *LISTS)
        .explode(list(LISTS))
        .drop_nulls("pit")
        .group_by("verifier")
        .agg(
            pl.len().alias("tokens"),
            (-pl.col("log_prob") - pl.col("entropy")).sum().alias("excess"),
            pl.col("log_prob_variance").sum().alias("variance"),
        )
        .collect(engine="streaming")
        .sort("verifier")
    )


def _check(run: Run, texts: pl.DataFrame, cells: pl.DataFrame) -> None:
    wrong = texts.filter((pl.col("first") != 0) | (pl.col("last") + 1 != pl.col("cycles")))
    if len(wrong):
        text, verifier = wrong.row(0, named=True)["unit"], wrong.row(0, named=True)["verifier"]
        raise ReportError(
            f"{run.folder}: the cycles of {text} ({verifier}) are not 0, 1, 2, ... once each; rows"
            " are doubled or lost, so no table is made from them."
        )
    wrong = texts.filter(pl.col("finite") != pl.col("cycles"))
    if len(wrong):
        raise ReportError(
            f"{run.folder}: expected_accepted of {wrong['unit'][0]} is not a number everywhere."
        )
    legal = pl.col("cell").is_between(IMPOSSIBLE, PIT_CELLS - 1)
    if len(cells.filter(~legal.fill_null(False))):
        raise ReportError(f"{run.folder}: a PIT value is neither in [0, 1) nor infinite.")


def prompt_sums(
    frame: pl.DataFrame, above: str, below: str, **where: object
) -> Mapping[str, tuple[float, float]]:
    """Prompt -> the sums of two columns, where other columns have these values."""
    for name, value in where.items():
        frame = frame.filter(pl.col(name) == value)
    rows: Iterable[tuple[str, str, float, float]] = (
        frame.group_by("category", "prompt_id")
        .agg(pl.col(above).sum().alias("above"), pl.col(below).sum().alias("below"))
        .sort("category", "prompt_id")
        .iter_rows()
    )
    return {f"{c}/{p}": (float(y), float(n)) for c, p, y, n in rows if n}
