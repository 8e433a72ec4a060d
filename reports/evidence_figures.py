"""The figures of correctness: PIT values, the e-test's path, planted faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from scipy.stats import binom

from reports.drawing import WIDE, Drawn, axes, beside, brief, colour
from reports.losslessness import Text
from reports.names import label, slug
from stattests.budget import PIT_CELLS

BAND = 0.999  # share of lossless texts whose every cell is inside the band


def text_figures(texts: Sequence[Text], sources: dict[str, str]) -> Iterator[Drawn]:
    """PIT histograms and paths of log E, a figure a run."""
    for run in dict.fromkeys(text.run for text in texts):
        own = [text for text in texts if text.run == run and text.tokens]
        if own:
            yield _histograms(run, own, sources[run])
            yield _paths(run, own, sources[run])


def _histograms(run: str, texts: Sequence[Text], source: str) -> Drawn:
    columns = 2 if len(texts) in (2, 4) else min(3, len(texts))
    rows = -(-len(texts) // columns)
    names = [text.verifier for text in texts]

    def draw() -> Figure:
        figure = Figure(figsize=(WIDE, 0.5 + 1.45 * rows))
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        for ax in grid.flat[len(texts) :]:
            ax.remove()
        for ax in grid.flat[max(len(texts) - columns, 0) : len(texts)]:
            ax.tick_params(labelbottom=True)
        for ax, text in zip(grid.flat, texts, strict=False):
            edges = np.linspace(0, 1, PIT_CELLS + 1)
            ax.stairs(text.counts, edges, fill=True, color=colour(text.verifier, names), alpha=0.75)
            low, high = _band(text)
            for level, line in ((low, "--"), (high, "--"), (sum(text.counts) / PIT_CELLS, ":")):
                ax.axhline(level, color="black", linewidth=0.8, linestyle=line)
            ax.set_title(f"{brief(label(text.verifier), 18)}, {text.tokens:,} tokens")
            ax.set_xlim(0, 1)
            ax.set_ylim(0, 1.12 * max(high, *text.counts, 1))
            ax.grid(False)
        figure.supxlabel("PIT value", fontsize=8)
        figure.supylabel("tokens in a cell", fontsize=8)
        return figure

    counts = {text.verifier: text.counts for text in texts}
    bands = {text.verifier: _band(text) for text in texts}
    outside = "; ".join(
        f"{label(name)}: {sum((counts[name] < low) | (counts[name] > high))} of {PIT_CELLS}"
        for name, (low, high) in bands.items()
    )
    return Drawn(
        f"{slug(run)}-pit",
        f"PIT values of the text ({run})",
        f"Histograms with a band. Cells outside the band: {outside}.",
        "PIT (probability integral transform): where a token lies in its law, uniform if the text"
        f" is lossless. Dotted: the mean. Dashed: all {PIT_CELLS} cells of {BAND:.1%} of lossless"
        " texts of this length lie between the two lines. Tokens accepted too often or too seldom"
        " show at the two ends.",
        draw,
        (source,),
        wide=True,
    )


def _band(text: Text) -> tuple[float, float]:
    """The least and the most tokens in a cell."""
    tail = (1 - BAND) / (2 * PIT_CELLS)
    low, high = binom.ppf([tail, 1 - tail], int(text.counts.sum()), 1 / PIT_CELLS)
    return float(low), float(high)


def _paths(run: str, texts: Sequence[Text], source: str) -> Drawn:
    names = [text.verifier for text in texts]

    def draw() -> Figure:
        figure, ax = axes()
        for text in texts:
            points = [(n, value) for n, value in text.path if isfinite(value)]
            look = colour(text.verifier, names)
            ax.plot(*zip(*points, strict=True), color=look, label=brief(label(text.verifier)))
        alarm = texts[0].alarm
        ax.axhline(alarm, color="#B00000", linestyle="--", linewidth=1)
        ax.annotate(
            "alarm", (0, alarm), (2, 2), textcoords="offset points", color="#B00000", fontsize=7.5
        )
        ax.axhline(0, color="black", linewidth=0.6)
        highest = max(value for text in texts for _, value in text.path if isfinite(value))
        ax.set_ylim(top=1.25 * max(alarm, highest))
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.set_xlim(left=0)
        ax.set_xlabel("tokens judged")
        ax.set_ylabel("log10 E")
        beside(figure, 2 if len(texts) in (2, 4) else 3)
        return figure

    ends = "; ".join(f"{label(t.verifier)} largest {t.largest:+.1f}" for t in texts)
    return Drawn(
        f"{slug(run)}-log-e",
        f"The e-test along the run ({run})",
        f"Lines of log10 E over tokens, alarm at {texts[0].alarm:.1f}. {ends}.",
        "E is what a bet against losslessness has made of 1: it must not reach the alarm, whenever"
        " one looks. A line breaks off where E is infinite: the law rules a token out.",
        draw,
        (source,),
    )


def fault_figure(faults: pl.DataFrame, path: str) -> Drawn:
    """Cycles at which planted faults were caught, against the cycles they were allowed."""
    sampled = faults.drop_nulls(["n used", "n allowed"])
    caught = sampled.filter(verdict="BIASED", layer="L3")
    used, allowed = caught["n used"].to_list(), caught["n allowed"].to_list()

    def draw() -> Figure:
        figure, ax = axes(height=2.9)
        ends = [min(used) / 2, max(allowed) * 2]
        ax.plot(ends, ends, color="black", linewidth=0.8, label="all that was allowed")
        ax.plot(
            allowed,
            used,
            "o",
            color="#0072B2",
            markerfacecolor="none",
            markersize=4,
            label="planted fault",
        )
        ax.set_xscale("log")
        ax.set_yscale("log")
        for side in (ax.xaxis, ax.yaxis):
            side.set_major_formatter(EngFormatter(sep=""))
        ax.minorticks_off()
        ax.set_xlabel("cycles allowed (from the exact TV)")
        ax.set_ylabel("cycles until it was caught")
        beside(figure, 2)
        return figure

    late = sum(n > most for n, most in zip(used, allowed, strict=True))
    return Drawn(
        "faults",
        "Planted faults: caught at n against predicted n",
        f"Points on log scales: {len(caught)} sampled faults, {late} above the line of what was"
        " allowed.",
        "E is looked at after 37 cycles and then after large batches: faults that are allowed less"
        " than a batch lie on the line.",
        draw,
        (path,),
    )
