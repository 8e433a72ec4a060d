"""The figures of a run's acceptance lengths: by verifier, category, shape and temperature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from reports.cycle_figures import difference_figure, distribution_figure, rate_figure, time_figure
from reports.drawing import (
    INTERVALS,
    LENGTH,
    LENGTHS,
    WIDE,
    Drawn,
    Series,
    axes,
    beside,
    dodged,
    dots,
    drawn,
    names_on,
    said,
)
from reports.measures import acceptance_length, shared_prompts
from reports.names import branching, category_label, label, shape
from reports.summaries import Setting, Summary

EDGE = LENGTHS[0] - 0.05  # where an axis of lengths may begin: none is shorter than the next token
SHARED = (
    " The verifiers were judged in the same contexts: whether two differ is seen in their paired"
    " difference, not in bars that overlap."
)


@dataclass(frozen=True)
class Axis:
    """What lengths are drawn against.

    name, label: of the figure, and at the axis with its unit.
    alike: what the settings of one figure have in common; None for one that has no place.
    place: where a setting stands.
    in_order: whether the settings stand in their order, by name: sizes of trees crowd together.
    """

    name: str
    label: str
    alike: Callable[[Setting], str | None]
    place: Callable[[Setting], float]
    in_order: bool = False


def _children(setting: Setting) -> str | None:
    arity, known = branching(setting.topology), shape(setting.topology)
    return f"{arity} children a node, T = {setting.temperature:g}" if arity and known else None


AXES = (
    Axis("depth", "depth of the tree", _children, lambda s: (shape(s.topology) or (0, 0))[1]),
    Axis(
        "size",
        "topology, drafted nodes",
        lambda s: f"T = {s.temperature:g}" if shape(s.topology) else None,
        lambda s: (shape(s.topology) or (0, 0))[0],
        in_order=True,
    ),
    Axis("temperature", "temperature", lambda s: s.topology, lambda s: s.temperature),
)


def run_figures(summary: Summary) -> Iterator[Drawn]:
    """All figures that a run has the rows for."""
    yield _by_verifier(summary)
    yield from _by_category(summary)
    for axis in AXES:
        yield from _by_setting(summary, axis)
    yield from difference_figure(summary)
    if len(summary.accepted):
        yield distribution_figure(summary)
        yield rate_figure(summary)
    if not summary.run.paired:
        yield time_figure(summary)


def _by_verifier(summary: Summary) -> Drawn:
    found = {name: acceptance_length(summary, name, summary.head) for name in summary.verifiers}
    rows = [(label(name), name, length) for name, length in found.items() if length.n]

    def draw() -> Figure:
        figure, ax = dots(rows, LENGTH, LENGTHS)
        ax.set_xlim(left=max(ax.get_xlim()[0], EDGE))
        return figure

    return drawn(
        summary,
        "by-verifier",
        f"Acceptance length by verifier, {summary.head}",
        f"Dots with intervals. {said({name: [e] for name, e in found.items()}, [''])}.",
        draw,
        _note(summary),
    )


def _by_category(summary: Summary) -> Iterator[Drawn]:
    places = [category_label(category) for category in summary.categories]
    if len(places) < 2:
        return
    series = {
        name: [acceptance_length(summary, name, summary.head, c) for c in summary.categories]
        for name in summary.verifiers
    }

    def draw() -> Figure:
        figure, ax = axes(WIDE)
        dodged(ax, series, range(len(places)), min(0.16, 0.8 / len(series)), LENGTHS)
        names_on(ax, range(len(places)), places)
        ax.grid(False, axis="x")
        ax.set_ylabel(LENGTH)
        ax.set_ylim(bottom=max(ax.get_ylim()[0], EDGE))
        beside(figure, 4)
        return figure

    yield drawn(
        summary,
        "by-category",
        f"Acceptance length by category, {summary.head}",
        f"Dots with intervals. {said(series, places)}.",
        draw,
        _note(summary),
        wide=True,
    )


def _by_setting(summary: Summary, axis: Axis) -> Iterator[Drawn]:
    """A line a verifier, on the prompts that all of its settings have.

    Of settings that are alike but for the axis, those with most places on it are drawn.
    """
    groups: dict[str, list[Setting]] = {}
    for setting in summary.settings:
        if (key := axis.alike(setting)) is not None:
            groups.setdefault(key, []).append(setting)
    if not groups:
        return
    key = max(groups, key=lambda key: len(set(map(axis.place, groups[key]))))
    settings = sorted(groups[key], key=lambda s: (axis.place(s), s.topology))
    prompts = shared_prompts(summary, settings)
    values = [axis.place(setting) for setting in settings]
    if len(set(values)) < 2 or not prompts:
        return
    series: Series = {
        name: [acceptance_length(summary, name, s, prompts=prompts) for s in settings]
        for name in summary.verifiers
    }
    at: Sequence[float] = range(len(values)) if axis.in_order else values
    names = [
        s.topology if axis.in_order else f"{x:g}" for s, x in zip(settings, values, strict=True)
    ]

    def draw() -> Figure:
        figure, ax = axes(height=2.9)
        width = min(0.02, 0.08 / len(series)) * (max(at) - min(at))
        dodged(ax, series, at, width, LENGTHS, line=True)
        count = "\n{:g}" if axis.in_order else ""
        names_on(ax, at, [n + count.format(x) for n, x in zip(names, values, strict=True)])
        ax.set_xlabel(axis.label)
        ax.set_ylabel(LENGTH)
        ax.set_ylim(bottom=max(ax.get_ylim()[0], EDGE))
        beside(figure, 2)
        return figure

    yield drawn(
        summary,
        f"by-{axis.name}",
        f"Acceptance length against {axis.name}, {key}, {len(prompts)} prompts that all points"
        " share",
        f"A line a verifier. {said(series, names)}.",
        draw,
        _note(summary),
    )


def _note(summary: Summary) -> str:
    return INTERVALS + (SHARED if summary.run.paired and len(summary.verifiers) > 1 else "")
