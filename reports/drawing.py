"""What all figures share: names, colours, dots with intervals, saving; nothing is global."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.estimates import LEVEL, Estimate
from reports.names import label, slug
from reports.runs import rows_of
from reports.summaries import Summary

STYLE = Path(__file__).with_name("style.mplstyle")
# Okabe and Ito's colours, told apart by colour-blind readers; markers for print without colour.
COLOURS = {
    "rrsw": "#CC79A7",
    "traversal": "#E69F00",
    "greedy": "#009E73",
    "univer": "#0072B2",
    "plain": "#555555",
}
MARKERS = {"rrsw": "o", "traversal": "s", "greedy": "^", "univer": "D", "plain": "x"}
OTHER_COLOURS, OTHER_MARKERS = ("#D55E00", "#56B4E9", "#000000"), ("v", "P", "*", "X")
LENGTH = "acceptance length\n(tokens a cycle, next one counted)"
INTERVALS = (
    f"Bars: {LEVEL:.0%} intervals, clustered by prompt, cut off where no value can be; none where"
    " there is one prompt, or where all prompts are alike."
)
ANY, LENGTHS, SHARES = (-inf, inf), (1.0, inf), (0.0, 1.0)  # what a number can be
COLUMN, WIDE = 3.5, 7.0  # inches
CROWD = 8  # names of this number stand side by side on an axis
Series = dict[str, list[Estimate]]  # verifier -> one estimate a place


@dataclass(frozen=True)
class Drawn:
    """A figure of the report.

    name: of its files.
    title: what it shows, in a line.
    alt: what can be seen, for those who cannot see it; with its numbers.
    note: how to read it.
    draw: makes it, inside the style.
    sources: the files that the numbers come from.
    wide: whether it needs two columns.
    """

    name: str
    title: str
    alt: str
    note: str
    draw: Callable[[], Figure]
    sources: tuple[str, ...]
    wide: bool = False


def drawn(
    summary: Summary,
    name: str,
    title: str,
    alt: str,
    draw: Callable[[], Figure],
    note: str = INTERVALS,
    *,
    wide: bool = False,
) -> Drawn:
    """A figure of a run, which its name and title say."""
    run = summary.run
    title = f"{title} ({run.name})"
    return Drawn(f"{slug(run.name)}-{name}", title, alt, note, draw, (rows_of(run),), wide)


def save(figure: Drawn, folder: Path) -> None:
    """Write the figure as SVG and PNG; the same input gives the same bytes."""
    with mpl.rc_context(fname=STYLE), warnings.catch_warnings():
        # A name may have signs that the font lacks: the tables have it whole.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        made = figure.draw()
        made.savefig(folder / f"{figure.name}.svg", metadata={"Date": None})
        made.savefig(folder / f"{figure.name}.png", metadata={"Software": None})


def axes(width: float = COLUMN, height: float = 2.6) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def brief(text: str, most: int = 20) -> str:
    """A name that fits into a figure and that a legend, which hides a leading "_", shows.

    Example:
        >>> brief("a_module_of_mine:its_long_attribute"), brief("_mine")
        ('a_module_o…attribute', ' _mine')
    """
    half = most // 2
    short = text if len(text) <= most else f"{text[:half]}…{text[1 - half :]}"
    return f" {short}" if short.startswith("_") else short


def colour(verifier: str, others: Sequence[str] = ()) -> str:
    """The verifier's colour, the same in all figures of its run."""
    return COLOURS.get(verifier) or OTHER_COLOURS[_place(verifier, others) % len(OTHER_COLOURS)]


def marker(verifier: str, others: Sequence[str] = ()) -> str:
    """The verifier's marker, the same in all figures of its run."""
    return MARKERS.get(verifier) or OTHER_MARKERS[_place(verifier, others) % len(OTHER_MARKERS)]


def bars(
    estimates: Sequence[Estimate], within: tuple[float, float] = ANY
) -> tuple[list[float], list[list[float]]]:
    """Values and the two ends of their intervals, as lengths; 0 where there is none.

    Args:
        estimates: what is shown.
        within: the least and the most that a value can be.
    """
    values = [estimate.value for estimate in estimates]
    halves = [half if isfinite(half := estimate.half()) else 0.0 for estimate in estimates]
    below = [min(half, max(x - within[0], 0)) for x, half in zip(values, halves, strict=True)]
    above = [min(half, max(within[1] - x, 0)) for x, half in zip(values, halves, strict=True)]
    return values, [below, above]


def dots(
    rows: Sequence[tuple[str, str, Estimate]],
    xlabel: str,
    within: tuple[float, float] = ANY,
    width: float = COLUMN,
) -> tuple[Figure, Axes]:
    """A figure with one dot and interval a line.

    Args:
        rows: (name, verifier, estimate) of each line, downwards.
        xlabel: what the estimates are.
        within: the least and the most that they can be; without, a line at zero is drawn.
        width: of the figure.
    """
    figure, ax = axes(width, 0.85 + max(0.19, 0.32 - 0.02 * len(rows)) * len(rows))
    if within == ANY:
        ax.axvline(0, color="black", linewidth=0.8)
    verifiers = list(dict.fromkeys(verifier for _, verifier, _ in rows))
    for place, (_, name, estimate) in enumerate(rows):
        value, ends = bars([estimate], within)
        look, hue = marker(name, verifiers), colour(name, verifiers)
        ax.errorbar(value, [place], xerr=ends, fmt=look, color=hue)
    ax.set_yticks(range(len(rows)), [brief(name, int(6.5 * width)) for name, _, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(xlabel)
    return figure, ax


def dodged(
    ax: Axes,
    series: Series,
    at: Sequence[float],
    width: float,
    within: tuple[float, float] = ANY,
    *,
    line: bool = False,
) -> None:
    """Dots with intervals, one a verifier and place, side by side so that none covers another.

    Args:
        ax: where.
        series: what.
        at: the places.
        width: between two verifiers.
        within: the least and the most that a value can be.
        line: whether a line joins a verifier's dots.
    """
    for name, off, row in spread(series, width):
        here = [k for k, estimate in enumerate(row) if estimate.n]
        values, ends = bars([row[k] for k in here], within)
        ax.errorbar(
            [at[k] + off for k in here],
            values,
            yerr=ends,
            fmt=marker(name, list(series)) + ("-" if line else ""),
            color=colour(name, list(series)),
            label=brief(label(name)),
        )


def spread(series: Series, width: float) -> list[tuple[str, float, list[Estimate]]]:
    """(verifier, how far from the place, estimates) of each."""
    middle = (len(series) - 1) / 2
    return [(name, (k - middle) * width, row) for k, (name, row) in enumerate(series.items())]


def names_on(ax: Axes, at: Sequence[float], names: Sequence[str]) -> None:
    """Names along the x axis, aslant where they would not fit side by side."""
    ax.set_xticks(at, [brief(name) for name in names])
    ax.minorticks_off()
    if len(names) > CROWD:
        ax.tick_params(axis="x", rotation=60)


def beside(figure: Figure, columns: int) -> None:
    """The legend above the axes, where it covers nothing, in so many columns if they fit."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    each = 0.45 + 0.065 * max(map(len, names), default=0)  # inches of a handle and of a sign
    columns = max(1, min(columns, int(figure.get_figwidth() / each)))
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * max(rows - 2, 0))
    figure.legend(
        handles, names, loc="outside upper center", ncols=columns, columnspacing=1, handlelength=1.5
    )


def said(series: Series, places: Sequence[str], digits: int = 2) -> str:
    """The numbers of a figure as a sentence."""
    return "; ".join(
        f"{label(name)}: "
        + ", ".join(
            f"{place} {e.value:.{digits}f}".strip()
            for place, e in zip(places, row, strict=True)
            if e.n
        )
        for name, row in series.items()
    )


def _place(verifier: str, others: Sequence[str]) -> int:
    unknown = [name for name in others if name not in COLOURS]
    return unknown.index(verifier) if verifier in unknown else 0
