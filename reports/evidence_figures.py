"""The figures of correctness: PIT values, the e-test's path, toys' optima, planted faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, sqrt
from statistics import mean, stdev

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import binom

from reports.document_tables import by_topology
from reports.documents import Document, Fault
from reports.drawing import WIDE, Drawn, axes, beside, colour, marker
from reports.losslessness import Text
from reports.names import label, slug
from reports.runs import shown_path
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

    def draw() -> Figure:
        figure = Figure(figsize=(WIDE, 0.5 + 1.45 * rows))
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        edges = np.linspace(0, 1, PIT_CELLS + 1)
        for ax in grid.flat[len(texts) :]:
            ax.remove()
        for ax, text in zip(grid.flat, texts, strict=False):
            n = int(text.counts.sum())
            tail = (1 - BAND) / (2 * PIT_CELLS)
            low, high = binom.ppf([tail, 1 - tail], n, 1 / PIT_CELLS)
            ax.axhspan(low, high, color="#dddddd", linewidth=0)
            ax.axhline(n / PIT_CELLS, color="black", linewidth=0.6, linestyle=":")
            ax.stairs(text.counts, edges, fill=True, color=colour(text.verifier), alpha=0.85)
            ax.set_title(f"{label(text.verifier)}, {text.tokens:,} tokens")
            ax.set_xlim(0, 1)
            ax.set_ylim(bottom=0)
            ax.grid(False)
        figure.supxlabel("PIT value", fontsize=8)
        figure.supylabel("tokens in a cell", fontsize=8)
        return figure

    outside = "; ".join(f"{label(t.verifier)}: {_outside(t)} of {PIT_CELLS}" for t in texts)
    return Drawn(
        slug(f"{run}-pit"),
        f"PIT values of the text ({run})",
        f"Histograms with a band. Cells outside the band: {outside}.",
        f"Grey: where all {PIT_CELLS} cells of {BAND:.1%} of lossless texts of this length lie."
        " Over- and under-accepted tokens would show at the two ends.",
        draw,
        (source,),
        wide=True,
    )


def _outside(text: Text) -> int:
    n, tail = int(text.counts.sum()), (1 - BAND) / (2 * PIT_CELLS)
    low, high = binom.ppf([tail, 1 - tail], n, 1 / PIT_CELLS)
    return int(((text.counts < low) | (text.counts > high)).sum())


def _paths(run: str, texts: Sequence[Text], source: str) -> Drawn:
    def draw() -> Figure:
        figure, ax = axes()
        for text in texts:
            points = [(n, value) for n, value in text.path if isfinite(value)]
            ax.plot(
                *zip(*points, strict=True), color=colour(text.verifier), label=label(text.verifier)
            )
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
        beside(figure, ncols=2 if len(texts) in (2, 4) else 3)
        return figure

    ends = "; ".join(f"{label(t.verifier)} largest {t.largest:+.1f}" for t in texts)
    return Drawn(
        slug(f"{run}-log-e"),
        f"The e-test along the run ({run})",
        f"Lines of log10 E over tokens, alarm at {texts[0].alarm:.1f}. {ends}.",
        "E bets against losslessness: it must not reach the alarm, whenever one looks.",
        draw,
        (source,),
    )


def optimum_figure(document: Document) -> Drawn:
    """Greedy, UniVer and the optimum of the linear programme, by topology."""
    toys = by_topology(document)
    names = ("greedy", "univer")

    def draw() -> Figure:
        figure, ax = axes(WIDE, 2.9)
        for number, name in enumerate(names):
            at = [k + (number - 0.5) * 0.18 for k in range(len(toys))]
            rows = [[toy["optimum"] - toy[name] for toy in group] for group in toys.values()]
            ax.errorbar(
                at,
                [mean(row) for row in rows],
                yerr=[1.96 * stdev(row) / sqrt(len(row)) for row in rows],
                fmt=marker(name),
                color=colour(name),
                label=f"{label(name)}, mean",
            )
            ax.plot(
                at,
                [max(row) for row in rows],
                marker="_",
                linestyle="",
                markersize=8,
                color=colour(name),
                label=f"{label(name)}, largest of {len(rows[0])} toys",
            )
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xticks(range(len(toys)), [text.replace("],[0,0]", "],\n[0,0]") for text in toys])
        ax.grid(False, axis="x")
        ax.set_ylabel("optimum - verifier,\ntokens a cycle")
        beside(figure, ncols=2)
        return figure

    said = "; ".join(
        f"{topology}: Greedy {mean(t['optimum'] - t['greedy'] for t in group):.3f}, UniVer"
        f" {max(0.0, mean(t['optimum'] - t['univer'] for t in group)):.3f}"
        for topology, group in toys.items()
    )
    return Drawn(
        "toy-optima",
        "Distance to the whole-tree optimum on toys",
        f"Mean distance in tokens a cycle. {said}.",
        "The optimum is that of the linear programme over whole trees. Bars: 95% intervals over"
        " toys; dashes: the largest distance.",
        draw,
        (shown_path(document.path),),
        wide=True,
    )


def fault_figure(faults: Sequence[Fault], path: str) -> Drawn:
    """Cycles at which planted faults were caught, against the cycles they were allowed."""
    caught = [f for f in faults if f.verdict == "BIASED" and f.layer == "L3" and f.used]

    def draw() -> Figure:
        figure, ax = axes(height=2.9)
        used = [fault.used or 1 for fault in caught]
        allowed = [fault.allowed or 1 for fault in caught]
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
        ax.minorticks_off()
        ax.set_xlabel("cycles allowed (from the exact TV)")
        ax.set_ylabel("cycles until it was caught")
        beside(figure, ncols=2)
        return figure

    late = sum((fault.used or 0) > (fault.allowed or 0) for fault in caught)
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
