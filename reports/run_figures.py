"""The figures of a run: what was accepted, by verifier, shape, temperature, category and depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure

from reports.cycle_figures import difference_figure, distribution_figure, rate_figure, time_figure
from reports.drawing import (
    INTERVALS,
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


def run_figures(summary: Summary) -> Iterator[Drawn]:
    """All figures that a run has the rows for."""
    head = summary.settings[0]
    yield _by_verifier(summary, head)
    yield from _by_category(summary, head)
    for make in (_by_depth, _by_size, _by_temperature):
        yield from make(summary, head)
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
        ax.set_xlabel(LENGTH)
        return figure

    return drawn(
        summary,
        "by-verifier",
        f"Acceptance length by verifier, {setting}",
        f"Dots with intervals. {said(series, [''])}. {INTERVALS}",
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
        beside(figure, ncols=len(series))
        return figure

    yield drawn(
        summary,
        "by-category",
        f"Acceptance length by category, {setting}",
        f"Dots with intervals. {said(series, places)}. {INTERVALS}",
        draw,
    )


def _by_depth(summary: Summary, head: Setting) -> Iterator[Drawn]:
    arity = branching(head.topology)
    same = [
        setting
        for setting in summary.settings
        if arity
        and branching(setting.topology) == arity
        and setting.temperature == head.temperature
    ]
    where = f"{arity} children a node, T = {head.temperature:g}"
    yield from _line(
        summary, same, "by-depth", f"against depth, {where}", "depth of the tree", _depth
    )


def _by_size(summary: Summary, head: Setting) -> Iterator[Drawn]:
    known = [s for s in summary.settings if s.temperature == head.temperature and shape(s.topology)]
    what = f"against tree size, T = {head.temperature:g}"
    yield from _line(
        summary, known, "by-size", what, "drafted nodes (log scale)", _nodes, scale="log"
    )


def _by_temperature(summary: Summary, head: Setting) -> Iterator[Drawn]:
    same = [setting for setting in summary.settings if setting.topology == head.topology]
    what = f"against temperature, {head.topology}"
    yield from _line(summary, same, "by-temperature", what, "temperature", _temperature)


def _depth(setting: Setting) -> float:
    return (shape(setting.topology) or (0, 0))[1]


def _nodes(setting: Setting) -> float:
    return (shape(setting.topology) or (0, 0))[0]


def _temperature(setting: Setting) -> float:
    return setting.temperature


def _line(
    summary: Summary,
    settings: Sequence[Setting],
    name: str,
    what: str,
    xlabel: str,
    place: Callable[[Setting], float],
    scale: str = "linear",
) -> Iterator[Drawn]:
    """A line a verifier over settings, on the prompts that all of them have."""
    settings = sorted(settings, key=lambda s: (place(s), s.topology))
    if len({place(setting) for setting in settings}) < 2:
        return
    prompts = shared_prompts(summary, settings)
    if not prompts:
        return
    series = _lengths(summary, settings, prompts)
    at = [place(setting) for setting in settings]
    by_name = place is _nodes
    ticks = [s.topology if by_name else f"{x:g}" for s, x in zip(settings, at, strict=True)]

    def draw() -> Figure:
        figure, ax = axes(height=2.9)
        ax.set_xscale(scale)
        span = max(at) / max(min(at), 1e-9) if scale == "log" else max(at) - min(at)
        dodged(
            ax,
            series,
            at,
            width=span * 0.012 if scale == "linear" else 0.02,
            line=True,
            log=scale == "log",
        )
        words = [f"{x:g}\n{t}" if by_name else t for x, t in zip(at, ticks, strict=True)]
        ax.set_xticks(at, words)
        ax.minorticks_off()
        ax.set_xlabel(xlabel)
        ax.set_ylabel(LENGTH)
        beside(figure, ncols=2)
        return figure

    yield drawn(
        summary,
        name,
        f"Acceptance length {what}, {len(prompts)} prompts that all points share",
        f"A line a verifier. {said(series, ticks)}. {INTERVALS}",
        draw,
    )
