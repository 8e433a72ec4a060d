"""Two sets of runs, before and after a change: what is longer, shorter or faster, with intervals.

Runs are compared by name (or, with one on each side, as they are); settings and verifiers by what
they are. Differences are paired by prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from matplotlib.figure import Figure

from reports.drawing import COLUMN, INTERVALS, WIDE, Drawn, dots
from reports.estimates import LEVEL, ROUNDING, Estimate, difference, quotient
from reports.measures import ERRORS, acceptance_length, speed
from reports.names import label
from reports.runs import ReportError, rows_of
from reports.summaries import Setting, Summary
from reports.table import Cell, Table, amount, count

FREE = ("folder", "write_seconds", "threads", "settings", "seeds", "questions")


@dataclass(frozen=True)
class Change:
    """One verifier in one setting, before and after.

    run, setting, verifier: where.
    before, after: acceptance lengths.
    speedup: tokens a second, after over before; None in a paired run.
    """

    run: str
    setting: Setting
    verifier: str
    before: Estimate
    after: Estimate
    speedup: Estimate | None

    @property
    def change(self) -> Estimate:
        """After less before, paired by prompt."""
        return difference(self.after, self.before)


def pairs(now: Sequence[Summary], then: Sequence[Summary]) -> list[tuple[Summary, Summary]]:
    """The runs to compare, (before, after).

    Raises:
        ReportError: no run of one side is on the other.
    """
    if len(now) == len(then) == 1:
        found = [(then[0], now[0])]
    else:
        before = {summary.run.name: summary for summary in then}
        found = [(before[s.run.name], s) for s in now if s.run.name in before]
    if not found:
        raise ReportError(
            "nothing to compare: no run has the same name on both sides"
            f" ({', '.join(s.run.name for s in now)}; {', '.join(s.run.name for s in then)})."
        )
    for before_, after in found:
        if before_.run.paired != after.run.paired:
            raise ReportError(
                f"{after.run.folder} and {before_.run.folder} cannot be compared: one is paired,"
                " the other is decoding."
            )
    return found


def changes(matched: Sequence[tuple[Summary, Summary]]) -> list[Change]:
    """Every setting and verifier that both sides have."""
    found = []
    for before, after in matched:
        for setting in (s for s in after.settings if s in before.settings):
            for name in (v for v in after.verifiers if v in before.verifiers):
                old = acceptance_length(before, name, setting)
                new = acceptance_length(after, name, setting)
                if not (old.n and new.n):
                    continue
                faster = None
                if not after.run.paired:
                    faster = quotient(speed(after, name, setting), speed(before, name, setting))
                found.append(Change(after.run.name, setting, name, old, new, faster))
    return found


def notes(matched: Sequence[tuple[Summary, Summary]]) -> Iterator[str]:
    """What differs between two runs beside their rows, and what only one has."""
    for before, after in matched:
        name = after.run.name
        for key in sorted(set(before.run.config) | set(after.run.config)):
            was, now = before.run.config.get(key), after.run.config.get(key)
            if was != now and key not in FREE:
                yield f"{name}: {key} was {was!r} and is {now!r}: not the same experiment."
        if before.run.device != after.run.device:
            yield f"{name}: the devices differ; times do not compare."
        for key, what in (("prompts", "texts behind prompts"), ("fingerprints", "weights of")):
            if other := _others(before.run.record.get(key), after.run.record.get(key)):
                yield f"{name}: other {what} {', '.join(other)}: not the same experiment."
        old, new = set(before.settings), set(after.settings)
        for words, only in (("gone", old - new), ("new", new - old)):
            if only:
                yield f"{name}: {words}: {'; '.join(map(str, sorted(only)))}."
        gone = set(before.verifiers) ^ set(after.verifiers)
        if gone:
            yield f"{name}: only one side has {', '.join(map(label, sorted(gone)))}."
        mine, theirs = _prompts(after), _prompts(before)
        if mine != theirs:
            shared = len(mine & theirs)
            yield f"{name}: {shared} prompts are shared, {len(mine ^ theirs)} are on one side only."


def change_table(found: Sequence[Change], matched: Sequence[tuple[Summary, Summary]]) -> Table:
    """One row a setting and verifier."""
    level = 1 - (1 - LEVEL) / max(len(found), 1)
    timed = any(change.speedup for change in found)
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        times: list[Cell] = []
        if timed:
            times = [amount(one.speedup, digits=2, suffix="x") if one.speedup else ""]
        rows.append(
            (
                one.run,
                str(one.setting),
                label(one.verifier),
                amount(one.before),
                amount(one.after),
                amount(one.change, signed=True),
                one.change.span(),
                *times,
                count(one.change.prompts),
                verdict(one.change, level),
            )
        )
    return Table(
        "comparison",
        "What changed",
        (
            "run",
            "setting",
            "verifier",
            "before",
            "after",
            "change",
            f"{LEVEL:.0%} interval",
            *(("tokens a second, after / before",) if timed else ()),
            "prompts",
            "verdict",
        ),
        tuple(rows),
        f"Tokens a cycle, the next token counted; {ERRORS}. The verdict is at {LEVEL:.0%} for all"
        f" {len(found)} rows together.",
        tuple(rows_of(summary.run) for pair in matched for summary in pair),
    )


def verdict(change: Estimate, level: float) -> str:
    """What an interval of this level says.

    Example:
        >>> verdict(Estimate(1.0, {"a": 0.01, "b": -0.01, "c": 0.0}, 9), 0.95)
        'longer'
    """
    if abs(change.value) < ROUNDING and change.error < ROUNDING:
        return "the same"
    low, high = change.interval(level)
    if not isfinite(low):
        return "one prompt"
    return "longer" if low > 0 else "shorter" if high < 0 else "no change seen"


def change_figure(found: Sequence[Change], table: Table) -> Drawn:
    """The changes with their intervals."""
    several = len({one.run for one in found}) > 1
    places = [
        f"{label(one.verifier)}, {one.setting}" + (f" ({one.run})" if several else "")
        for one in found
    ]

    def draw() -> Figure:
        rows = [(place, one.verifier, one.change) for place, one in zip(places, found, strict=True)]
        label_ = "after - before, tokens a cycle\n(the next token counted in both)"
        return dots(rows, label_, width=WIDE if several else COLUMN + 0.8)[0]

    words = "; ".join(
        f"{place} {one.change.value:+.3f}" for place, one in zip(places, found, strict=True)
    )
    return Drawn(
        "comparison",
        "What changed in acceptance length",
        f"Dots with intervals around a line at zero. {words}.",
        f"{INTERVALS} Differences are paired by prompt.",
        draw,
        table.sources,
        wide=several,
    )


def improved(found: Sequence[Change]) -> str:
    """The comparison in a sentence."""
    level = 1 - (1 - LEVEL) / max(len(found), 1)
    words = [verdict(one.change, level) for one in found]
    kinds = ("longer", "shorter", "no change seen", "the same", "one prompt")
    seen = ", ".join(f"{words.count(kind)} {kind}" for kind in kinds if kind in words)
    return f"Against the runs before: {seen or 'nothing to compare'}, of {len(found)} comparisons."


def _others(was: Any, now: Any) -> list[str]:
    """The names that stand for something else on the other side."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return []
    return sorted(name for name in was.keys() & now.keys() if was[name] != now[name])


def _prompts(summary: Summary) -> set[str]:
    return set(summary.prompts["prompt_id"].to_list())
