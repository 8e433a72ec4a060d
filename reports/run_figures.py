"""The figures of a run: what was accepted, by verifier, shape, temperature, category and depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure

from reports.cycle_figures import difference_figure, distribution_figure, rate_figure, time_figure
from reports.drawing import (
    LENGTH,
    WIDE,
    Drawn,
    axes,
    bars,
    beside,
    colour,
    marker,
)
from reports.measures import (
    acceptance_length,
    shared_prompts,
)
from reports.names import branching, category_label, label, shape
from reports.run_drawing import Series, dodged, drawn, said
from reports.summaries import Setting, Summary

SHORTEST = 0.95  # where an axis of lengths may begin: none is below 1, whatever an interval says


def run_figures(summary: Summary) -> Iterator[Drawn]:
    """All figures that a run has the rows for."""
    head = summary.settings[0]
    yield _by_verifier(summary, head)
    yield from _by_category(summary, head)
    for make in (_by_depth, _by_size, _by_temperature):
        yield from make(summary)
    yield from difference_figure(summary)
    if len(summary.accepted):
        yield distribution_figure(summary, head)
        yield rate_figure(summary, head)
    if not summary.run.paired:
        yield time_figure(summary, head)


def _lengths(
    summary: Summary, settings: Sequence[Setting], prompts: frozenset[str] | None = None
) -> Series:
    return {
        name: [acceptance_length(summary, name, setting, prompts=prompts) for setting in settings]
        for name in summary.verifiers
    }


def _by_verifier(summary: Summary, setting: Setting) -> Drawn:
    series = _lengths(summary, [setting])

    def draw() -> Figure:
        figure, ax = axes(height=0.9 + 0.32 * len(series))
        for place, (name, (estimate,)) in enumerate(series.items()):
            value, half = bars([estimate])
            ax.errorbar(
                value,
                [place],
                xerr=half,
                fmt=marker(name, summary.verifiers),
                color=colour(name, summary.verifiers),
            )
        ax.set_yticks(range(len(series)), [label(name) for name in series])
        ax.set_ylim(len(series) - 0.5, -0.5)
        ax.set_xlim(left=max(ax.get_xlim()[0], SHORTEST))
        ax.set_xlabel(LENGTH)
        return figure

    return drawn(
        summary,
        "by-verifier",
        f"Acceptance length by verifier, {setting}",
        f"Dots with intervals. {said(series, [''])}.",
        draw,
    )


def _by_category(summary: Summary, setting: Setting) -> Iterator[Drawn]:
    places = [category_label(category) for category in summary.categories]
    if len(places) < 2:
        return
    series = {
        name: [acceptance_length(summary, name, setting, c) for c in summary.categories]
        for name in summary.verifiers
    }

    def draw() -> Figure:
        figure, ax = axes(WIDE)
        dodged(ax, series, range(len(places)))
        ax.set_xticks(range(len(places)), places)
        ax.grid(False, axis="x")
        ax.set_ylabel(LENGTH)
        ax.set_ylim(bottom=max(ax.get_ylim()[0], SHORTEST))
        beside(figure, ncols=len(series))
        return figure

    yield drawn(
        summary,
        "by-category",
        f"Acceptance length by category, {setting}",
        f"Dots with intervals. {said(series, places)}.",
        draw,
        wide=True,
    )


def _by_depth(summary: Summary) -> Iterator[Drawn]:
    def group(setting: Setting) -> str | None:
        arity = branching(setting.topology)
        return None if arity is None else f"{arity} children a node, T = {setting.temperature:g}"

    yield from _line(summary, group, "depth", "depth of the tree", _depth)


def _by_size(summary: Summary) -> Iterator[Drawn]:
    def group(setting: Setting) -> str | None:
        return f"T = {setting.temperature:g}" if shape(setting.topology) else None

    yield from _line(summary, group, "size", "topology, drafted nodes", _nodes)


def _by_temperature(summary: Summary) -> Iterator[Drawn]:
    def group(setting: Setting) -> str | None:
        return setting.topology

    yield from _line(summary, group, "temperature", "temperature", _temperature)


def _depth(setting: Setting) -> float:
    return (shape(setting.topology) or (0, 0))[1]


def _nodes(setting: Setting) -> float:
    return (shape(setting.topology) or (0, 0))[0]


def _temperature(setting: Setting) -> float:
    return setting.temperature


def _line(
    summary: Summary,
    group: Callable[[Setting], str | None],
    name: str,
    xlabel: str,
    place: Callable[[Setting], float],
) -> Iterator[Drawn]:
    """A line a verifier, on the prompts that all of its settings have.

    Args:
        summary: of the run.
        group: what the settings of a figure have in common; None for one that is not shown. The
            group with most places on the axis is drawn.
        name: of what is on the axis.
        xlabel: the same with its unit.
        place: where a setting stands.
    """
    groups: dict[str, list[Setting]] = {}
    for setting in summary.settings:
        if (key := group(setting)) is not None:
            groups.setdefault(key, []).append(setting)
    if not groups:
        return
    key = max(groups, key=lambda key: len({place(setting) for setting in groups[key]}))
    settings = sorted(groups[key], key=lambda s: (place(s), s.topology))
    prompts = shared_prompts(summary, settings)
    if len({place(setting) for setting in settings}) < 2 or not prompts:
        return
    series = _lengths(summary, settings, prompts)
    values = [place(setting) for setting in settings]
    # Sizes of trees crowd together: they stand in their order, each with its number of nodes.
    by_name = place is _nodes
    at = list(range(len(values))) if by_name else values
    ticks = [s.topology if by_name else f"{x:g}" for s, x in zip(settings, values, strict=True)]

    def draw() -> Figure:
        figure, ax = axes(height=2.9)
        dodged(ax, series, at, width=0.012 * (max(at) - min(at)), line=True)
        words = [f"{t}\n{x:g}" if by_name else t for x, t in zip(values, ticks, strict=True)]
        ax.set_xticks(at, words)
        ax.minorticks_off()
        ax.set_xlabel(xlabel)
        ax.set_ylabel(LENGTH)
        ax.set_ylim(bottom=max(ax.get_ylim()[0], SHORTEST))
        beside(figure, ncols=2)
        return figure

    yield drawn(
        summary,
        f"by-{name}",
        f"Acceptance length against {name}, {key}, {len(prompts)} prompts that all points share",
        f"A line a verifier. {said(series, ticks)}.",
        draw,
    )
