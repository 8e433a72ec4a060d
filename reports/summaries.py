"""Rows into small sums: one pass a question, streamed, so that memory does not grow with the run.

All that later steps need are sums a prompt (see `estimates`), counts of accepted tokens, and counts
of PIT cells along the run. Before that every row is held against what a row must be: one number
that cannot be spoils every sum that it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import polars as pl

from reports.estimates import ROUNDING
from reports.names import CATEGORIES, LABELS, PLAIN, ordered, shape, visible
from reports.runs import LISTS, TIMES, ReportError, Run, unreadable
from stattests.budget import PIT_CELLS

MOST = 1e300  # a larger number is none: sums of it would not be finite
LOOKS = 64  # points along the run at which the e-test is looked at
KEY = ["verifier", "topology", "temperature", "category", "prompt_id"]
CHECKED = ("first", "last", "numbers", "longest")  # of a text, for checks alone
IMPOSSIBLE = -1  # the cell of a token that its law gives probability 0
GIVEN = (*KEY, "unit", "seed", "cycle")
_tokens, _driven = pl.col("pit").list.len(), pl.col("drives_text")
_accepted, _times = pl.col("num_accepted"), pl.col(TIMES)
_not_driven = ~_driven & _accepted.is_null()
RULES = {  # the sentence for a row that breaks it -> the rule; null breaks it
    f"one of {', '.join(GIVEN)} is not given": pl.col(GIVEN).is_not_null(),
    "temperature is not a number of 0 or more": pl.col("temperature").is_between(0, MOST),
    "expected_accepted is not a number of 0 or more": (
        pl.col("expected_accepted").is_between(0, MOST)
    ),
    "num_accepted is not 0 or more where drives_text is set, and null elsewhere": (
        pl.when(_driven).then(_accepted >= 0).otherwise(_not_driven)
    ),
    f"one of {', '.join(TIMES)} is not a number of 0 or more": (
        _times.is_null() | _times.is_between(0, MOST)
    ),
    f"{', '.join(LISTS)} do not hold one number a token": (
        pl.col(LISTS).list.drop_nulls().list.len() == _tokens
    ),
    "more tokens are emitted than num_accepted and the next one": (
        _tokens <= _accepted.fill_null(-1) + 1
    ),
    # Sums see a NaN or an infinity among their terms. An impossible token's log_prob is -infinity.
    "log_prob is neither a number nor -infinity": pl.col("log_prob").list.sum() <= MOST,
    "entropy or log_prob_variance is not a number": (
        pl.col("entropy", "log_prob_variance").list.sum().is_finite()
    ),
}


@dataclass(frozen=True, order=True)
class Setting:
    """A shape of trees at a temperature."""

    topology: str
    temperature: float

    def __str__(self) -> str:
        return f"{visible(self.topology)}, T = {self.temperature:g}"


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
        """The settings with trees, by size and from hot to cold."""

        def place(setting: Setting) -> tuple[object, ...]:
            nodes, depth = shape(setting.topology) or (inf, 0)
            return nodes, depth, setting.topology, -setting.temperature

        return sorted(self.counts, key=place)

    @property
    def head(self) -> Setting:
        """The setting to look at first: that with most prompts."""
        return max(self.settings, key=self.counts.__getitem__)

    @cached_property
    def counts(self) -> dict[Setting, int]:
        """Setting with trees -> number of prompts."""
        trees = self.prompts.filter(pl.col("verifier") != PLAIN)
        counted = trees.group_by("topology", "temperature").agg(pl.col("prompt_id").n_unique())
        return {Setting(t, float(c)): int(n) for t, c, n in counted.iter_rows()}

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
        _check_rows(run, rows)
        texts = _texts(rows)
        accepted = (
            rows.filter(pl.col("num_accepted").is_not_null())
            .group_by(*KEY, "num_accepted")
            .agg(pl.len().alias("count"))
            .collect(engine="streaming")
        )
        cells, surprise = _cells(rows, run.rows), _surprise(rows)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(run, error) from error
    _check_texts(run, texts)
    if len(cells.filter(~pl.col("cell").is_between(IMPOSSIBLE, PIT_CELLS - 1).fill_null(False))):
        raise ReportError(f"{run.folder}: a PIT value is neither in [0, 1) nor infinite.")
    sums = texts.select(pl.exclude(*KEY, "unit", *CHECKED)).columns
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
            pl.col("cycle").n_unique().alias("numbers"),
            pl.max_horizontal("expected_accepted", "num_accepted").max().alias("longest"),
            pl.col("expected_accepted").sum().alias("expected"),
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


def _check_rows(run: Run, rows: pl.LazyFrame) -> None:
    taken = TIMES[:2] if run.paired else TIMES
    given = {f"one of {', '.join(taken)} is not given": pl.col(taken).is_not_null()}
    rules = {words: pl.all_horizontal(r).fill_null(False) for words, r in (RULES | given).items()}
    kept = rows.select(rule.all().alias(words) for words, rule in rules.items())
    for words, everywhere in kept.collect(engine="streaming").row(0, named=True).items():
        if not everywhere:
            wrong = rows.filter(~rules[words]).select("unit", "verifier", "cycle").head(1).collect()
            raise ReportError(
                f"{run.folder}: in cycle {wrong['cycle'][0]} of {_text_of(wrong)} {words}, so no"
                " table is made from these rows."
            )


def _text_of(frame: pl.DataFrame) -> str:
    """Which text the first row is of, in a few words."""
    unit, verifier = (visible(str(frame[name][0]))[:80] for name in ("unit", "verifier"))
    return f"{unit} ({verifier})"


def _check_texts(run: Run, texts: pl.DataFrame) -> None:
    whole = (pl.col("first") == 0) & (pl.col("last") + 1 == pl.col("cycles"))
    whole &= (pl.col("numbers") == pl.col("cycles")) & pl.struct("unit", "verifier").is_unique()
    if len(wrong := texts.filter(~whole)):
        raise ReportError(
            f"{run.folder}: the cycles of {_text_of(wrong)} are not 0, 1, 2, ... once each; rows"
            " are doubled or lost, so no table is made from them."
        )
    for topology, longest in texts.group_by("topology").agg(pl.max("longest")).iter_rows():
        known = shape(topology)
        if known is not None and longest > known[1] + ROUNDING:
            raise ReportError(
                f"{run.folder}: {longest:g} tokens are accepted in a tree of"
                f" {visible(topology)[:80]}, which is {known[1]} deep."
            )


def prompt_sums(frame: pl.DataFrame, above: str, below: str) -> Mapping[str, tuple[float, float]]:
    """Prompt -> the sums of two columns."""
    sums = (pl.col(above).sum().alias("above"), pl.col(below).sum().alias("below"))
    grouped = frame.group_by("category", "prompt_id").agg(sums).sort("category", "prompt_id")
    rows: Iterable[tuple[str, str, float, float]] = grouped.iter_rows()
    return {f"{c!r}, {p!r}": (float(y), float(n)) for c, p, y, n in rows if n}
