"""What the figures of runs share: names, numbers as a sentence, dots beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.drawing import INTERVALS, Drawn, bars, colour, marker
from reports.estimates import Estimate
from reports.names import label, slug
from reports.runs import rows_of
from reports.summaries import Summary

DODGE = 0.16  # between verifiers at one place of an axis
Series = dict[str, list[Estimate]]  # verifier -> one estimate a place


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
    return Drawn(slug(f"{run.name}-{name}"), title, alt, note, draw, (rows_of(run),), wide)


def said(series: Series, places: Sequence[str], digits: int = 2) -> str:
    """The numbers of a figure as a sentence."""
    return "; ".join(
        f"{label(name)}: "
        + ", ".join(
            f"{place} {e.value:.{digits}f}" for place, e in zip(places, row, strict=True) if e.n
        )
        for name, row in series.items()
    )


def dodged(
    ax: Axes,
    series: Series,
    at: Sequence[float],
    width: float = DODGE,
    *,
    line: bool = False,
) -> None:
    """Dots with intervals, one a verifier and place, side by side so that none covers another."""
    for number, (name, row) in enumerate(series.items()):
        off = (number - (len(series) - 1) / 2) * width
        here = [k for k, estimate in enumerate(row) if estimate.n]
        values, halves = bars([row[k] for k in here])
        x = [at[k] + off for k in here]
        ax.errorbar(
            x,
            values,
            yerr=halves,
            fmt=marker(name, list(series)) + ("-" if line else ""),
            color=colour(name, list(series)),
            label=label(name),
        )
