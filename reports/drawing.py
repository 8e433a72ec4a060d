"""What all figures share: colours, markers, how one is made and saved, without global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.estimates import LEVEL, Estimate

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
OTHER_COLOURS, OTHER_MARKERS = ("#D55E00", "#56B4E9", "#000000"), ("v", "P", "*")
LENGTH = "acceptance length\n(tokens a cycle, next one counted)"
LENGTH_LINE = "acceptance length (tokens a cycle, next one counted)"
INTERVALS = f"Bars: {LEVEL:.0%} intervals, clustered by prompt; none where there is one prompt."
COLUMN, WIDE = 3.5, 7.0  # inches


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


def save(drawn: Drawn, folder: Path) -> None:
    """Write the figure as SVG and PNG; the same input gives the same bytes."""
    with mpl.rc_context(fname=STYLE):
        figure = drawn.draw()
        figure.savefig(folder / f"{drawn.name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{drawn.name}.png", metadata={"Software": None})


def axes(width: float = COLUMN, height: float = 2.6) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def colour(verifier: str, others: Sequence[str] = ()) -> str:
    """The verifier's colour, the same in all figures."""
    return COLOURS.get(verifier) or OTHER_COLOURS[_place(verifier, others) % len(OTHER_COLOURS)]


def marker(verifier: str, others: Sequence[str] = ()) -> str:
    """The verifier's marker, the same in all figures."""
    return MARKERS.get(verifier) or OTHER_MARKERS[_place(verifier, others) % len(OTHER_MARKERS)]


def bars(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Values, and half the lengths of their intervals; 0 where there is none."""
    halves = [estimate.half() for estimate in estimates]
    return [e.value for e in estimates], [half if isfinite(half) else 0.0 for half in halves]


def beside(figure: Figure, **options: Any) -> None:
    """The legend above the axes, where it covers nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", **options)


def _place(verifier: str, others: Sequence[str]) -> int:
    unknown = [name for name in others if name not in COLOURS]
    return unknown.index(verifier) if verifier in unknown else 0
