"""The figures of a run's cycles: paired differences, numbers of accepted tokens, times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.drawing import (
    COLUMN,
    INTERVALS,
    SHARES,
    Drawn,
    axes,
    bars,
    beside,
    brief,
    colour,
    dodged,
    dots,
    drawn,
    said,
    spread,
)
from reports.measures import acceptance_change, acceptance_rate, accepted_share, milliseconds
from reports.names import PLAIN, category_label, label
from reports.summaries import Setting, Summary
from reports.tables import PARTS

PART_COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#999999")
FEWEST = 10  # decisions behind a rate: with less, its interval says nothing


def difference_figure(summary: Summary) -> Iterator[Drawn]:
    """UniVer less Greedy, by setting and, in the first one, by category."""
    if not {"univer", "greedy"} <= set(summary.verifiers):
        return
    head, settings = summary.head, summary.settings
    rows = [(str(s), acceptance_change(summary, "univer", "greedy", s)) for s in settings]
    rows += [
        (f"{head}: {category_label(c)}", acceptance_change(summary, "univer", "greedy", head, c))
        for c in summary.categories
    ]
    rows = [(text, estimate) for text, estimate in rows if estimate.n]

    def draw() -> Figure:
        figure, ax = dots(
            [(text, "univer", estimate) for text, estimate in rows],
            "UniVer - Greedy, tokens a cycle\n(the next token counted in both)",
            width=COLUMN + 0.6,
        )
        ax.axhline(len(settings) - 0.5, color="#999999", linewidth=0.8, linestyle=":")
        return figure

    paired = "in the same contexts" if summary.run.paired else "in texts of the same prompts"
    words = ", ".join(f"{text} {estimate.value:+.3f}" for text, estimate in rows)
    yield drawn(
        summary,
        "univer-less-greedy",
        f"Paired difference UniVer - Greedy, {paired}",
        f"Dots with intervals around a line at zero. {words}.",
        draw,
    )


def distribution_figure(summary: Summary) -> Drawn:
    """The share of cycles that accept 0, 1, 2, ... drafted tokens."""
    places = range(_deepest(summary, summary.head) + 1)
    series = {
        name: [accepted_share(summary, name, summary.head, k) for k in places]
        for name in summary.verifiers
    }

    def draw() -> Figure:
        figure, ax = axes(height=2.8)
        width = 0.8 / len(series)
        for name, off, row in spread(series, width):
            values, ends = bars(row, SHARES)
            ax.bar(
                [k + off for k in places],
                values,
                width,
                label=brief(label(name)),
                color=colour(name, summary.verifiers),
                yerr=ends,
                error_kw={"linewidth": 0.6, "capsize": 1},
            )
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(bottom=0)
        ax.grid(False, axis="x")
        ax.set_xlabel("accepted drafted tokens\n(the next token comes on top)")
        ax.set_ylabel("share of cycles")
        beside(figure, 2)
        return figure

    return drawn(
        summary,
        "accepted",
        f"How many drafted tokens a cycle accepts, {summary.head}",
        f"Bars. {said(series, [str(k) for k in places])}.",
        draw,
        f"Thin lines: {_decisions(summary).removeprefix('Bars: ')}",
    )


def rate_figure(summary: Summary) -> Drawn:
    """Of the cycles that came as far as a depth, the share that goes beyond it."""
    places = range(1, max(_deepest(summary, summary.head), 1) + 1)
    series = {
        name: [acceptance_rate(summary, name, summary.head, depth) for depth in places]
        for name in summary.verifiers
    }
    series = {
        name: [e if e.n >= FEWEST else replace(e, n=0) for e in row] for name, row in series.items()
    }

    def draw() -> Figure:
        figure, ax = axes(height=2.8)
        dodged(ax, series, places, min(0.1, 0.5 / len(series)), SHARES, line=True)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel("depth d")
        ax.set_ylabel("of cycles that accept d - 1 or\nmore, share that accepts d")
        beside(figure, 2)
        return figure

    return drawn(
        summary,
        "acceptance-rate",
        f"Acceptance rate by depth, {summary.head}",
        f"A line a verifier. {said(series, [str(k) for k in places])}.",
        draw,
        f"{_decisions(summary)} Not drawn: depths that fewer than {FEWEST} decisions reached.",
    )


def time_figure(summary: Summary) -> Drawn:
    """Milliseconds a token of each part of the work."""
    parts = {
        name: [milliseconds(summary, name, summary.head, part) for part in PARTS]
        for name in (*summary.verifiers, PLAIN)
    }
    parts = {name: row for name, row in parts.items() if row[0].n}

    def draw() -> Figure:
        figure, ax = axes(height=0.9 + 0.35 * len(parts))
        left = [0.0] * len(parts)
        for number, part in enumerate(PARTS.values()):
            values = [row[number].value for row in parts.values()]
            ax.barh(range(len(parts)), values, 0.6, left, label=part, color=PART_COLOURS[number])
            left = [a + b for a, b in zip(left, values, strict=True)]
        ax.set_yticks(range(len(parts)), [brief(label(name)) for name in parts])
        ax.set_ylim(len(parts) - 0.5, -0.5)
        ax.grid(False, axis="y")
        ax.set_xlabel("milliseconds a token")
        beside(figure, 4)
        return figure

    return drawn(
        summary,
        "times",
        f"Where the time goes, {summary.head}, {summary.run.device}",
        f"Stacked bars, milliseconds a token. {said(parts, list(PARTS.values()), 1)}.",
        draw,
        "Means; the table of speeds has their errors. The prompt's own forward is counted; times"
        " are of this machine under this load.",
    )


def _decisions(summary: Summary) -> str:
    """How to read what is known of decisions only."""
    if not summary.run.paired:
        return INTERVALS
    return f"{INTERVALS} Only the verifier that wrote a text decided there: prompts differ."


def _deepest(summary: Summary, setting: Setting) -> int:
    """Most tokens that a decision accepted there."""
    here = summary.accepted.filter(topology=setting.topology, temperature=setting.temperature)
    return int(here["num_accepted"].max() or 0)  # type: ignore[arg-type]
