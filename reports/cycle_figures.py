"""The figures of a run's cycles: paired differences, numbers of accepted tokens, times."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.drawing import COLUMN, INTERVALS, Drawn, axes, bars, beside, colour
from reports.measures import acceptance_change, acceptance_rate, accepted_share, milliseconds
from reports.names import PLAIN, category_label, label, shape
from reports.run_drawing import dodged, drawn, said
from reports.summaries import Setting, Summary
from reports.tables import PARTS

PART_COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#999999")


def difference_figure(summary: Summary) -> Iterator[Drawn]:
    """UniVer less Greedy, by setting and, in the first one, by category."""
    if not {"univer", "greedy"} <= set(summary.verifiers):
        return
    head, settings = summary.settings[0], summary.settings
    rows = [(str(s), acceptance_change(summary, "univer", "greedy", s)) for s in settings]
    rows += [
        (
            f"{head}: {category_label(category)}",
            acceptance_change(summary, "univer", "greedy", head, category),
        )
        for category in summary.categories
    ]
    rows = [(text, estimate) for text, estimate in rows if estimate.n]

    def draw() -> Figure:
        figure, ax = axes(COLUMN + 0.6, 0.8 + 0.19 * len(rows))
        values, halves = bars([estimate for _, estimate in rows])
        ax.axvline(0, color="black", linewidth=0.8)
        ax.errorbar(values, range(len(rows)), xerr=halves, fmt="D", color=colour("univer"))
        ax.axhline(len(settings) - 0.5, color="#999999", linewidth=0.8, linestyle=":")
        ax.set_yticks(range(len(rows)), [text for text, _ in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel("UniVer - Greedy, tokens a cycle\n(the next token counted in both)")
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


def _decisions(summary: Summary) -> str:
    """How to read what is known of decisions only."""
    if not summary.run.paired:
        return INTERVALS
    return f"{INTERVALS} Only the verifier that wrote a text decided there: prompts differ."


def _depths(setting: Setting) -> range:
    return range((shape(setting.topology) or (0, 8))[1] + 1)


def distribution_figure(summary: Summary, setting: Setting) -> Drawn:
    """The share of cycles that accept 0, 1, 2, ... drafted tokens."""
    places = _depths(setting)
    series = {
        name: [accepted_share(summary, name, setting, k) for k in places]
        for name in summary.verifiers
    }

    def draw() -> Figure:
        figure, ax = axes(height=2.8)
        for number, (name, row) in enumerate(series.items()):
            values, halves = bars(row)
            off = (number - (len(series) - 1) / 2) * 0.2
            ax.bar(
                [k + off for k in places],
                values,
                0.2,
                label=label(name),
                color=colour(name, summary.verifiers),
                yerr=halves,
                error_kw={"linewidth": 0.6, "capsize": 1},
            )
        ax.set_xticks(places)
        ax.set_ylim(bottom=0)
        ax.grid(False, axis="x")
        ax.set_xlabel("accepted drafted tokens\n(the next token comes on top)")
        ax.set_ylabel("share of cycles")
        beside(figure, ncols=2)
        return figure

    return drawn(
        summary,
        "accepted",
        f"How many drafted tokens a cycle accepts, {setting}",
        f"Bars. {said(series, [str(k) for k in places])}.",
        draw,
        _decisions(summary),
    )


def rate_figure(summary: Summary, setting: Setting) -> Drawn:
    """Of the cycles that came as far as a depth, the share that goes beyond it."""
    places = _depths(setting)[1:]
    series = {
        name: [acceptance_rate(summary, name, setting, depth) for depth in places]
        for name in summary.verifiers
    }

    def draw() -> Figure:
        figure, ax = axes()
        dodged(ax, series, places, width=0.1, line=True)
        ax.set_xticks(places)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("depth d")
        ax.set_ylabel("share that accepts d tokens or more\nof those that accept d - 1 or more")
        beside(figure, ncols=2)
        return figure

    return drawn(
        summary,
        "acceptance-rate",
        f"Acceptance rate by depth, {setting}",
        f"A line a verifier. {said(series, [str(k) for k in places])}.",
        draw,
        _decisions(summary),
    )


def time_figure(summary: Summary, setting: Setting) -> Drawn:
    """Milliseconds a token of each part of the work."""
    names = [*summary.verifiers, PLAIN]
    parts = {name: [milliseconds(summary, name, setting, part) for part in PARTS] for name in names}
    parts = {name: row for name, row in parts.items() if row[0].n}

    def draw() -> Figure:
        figure, ax = axes(height=0.9 + 0.35 * len(parts))
        left = [0.0] * len(parts)
        for number, part in enumerate(PARTS.values()):
            values = [row[number].value for row in parts.values()]
            ax.barh(range(len(parts)), values, 0.6, left, label=part, color=PART_COLOURS[number])
            left = [a + b for a, b in zip(left, values, strict=True)]
        ax.set_yticks(range(len(parts)), [label(name) for name in parts])
        ax.set_ylim(len(parts) - 0.5, -0.5)
        ax.grid(False, axis="y")
        ax.set_xlabel("milliseconds a token")
        beside(figure, ncols=4, columnspacing=0.8, handlelength=1.0)
        return figure

    words = "; ".join(
        f"{label(name)}: "
        + ", ".join(f"{p} {e.value:.1f}" for p, e in zip(PARTS.values(), row, strict=True))
        for name, row in parts.items()
    )
    return drawn(
        summary,
        "times",
        f"Where the time goes, {setting}, {summary.run.record.get('device', 'device not said')}",
        f"Stacked bars, milliseconds a token. {words}.",
        draw,
        "The prompt's own forward is counted; times are of this machine under this load.",
    )
