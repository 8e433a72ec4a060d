"""The page's sentences: verdicts, what must be known about the runs, what is not shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from reports.documents import Documents, finding_verdict
from reports.estimates import ROUNDING, quotient
from reports.losslessness import Text
from reports.measures import acceptance_change, speed, unpaired
from reports.names import BASELINE, PLAIN, label, slug
from reports.runs import Run
from reports.summaries import Setting, Summary
from stattests.budget import BETA

KINDS = {  # end of a figure's name -> why it may be missing
    "by-depth": "against depth: no run has two depths of one branching and temperature",
    "by-size": "against tree size: no run has two sizes at one temperature",
    "by-temperature": "against temperature: no run has two temperatures of one topology",
    "by-category": "by category: no run has two categories",
    "univer-less-greedy": "of UniVer - Greedy: no run has both",
    "times": "of the time split: there is no decoding run",
}


@dataclass(frozen=True)
class Verdict:
    """A sentence of the summary.

    text: the sentence.
    anchor: of the section that shows it, with its files and commands.
    good: whether it is good news; None for neither.
    """

    text: str
    anchor: str
    good: bool | None = None


def anchor(run: Run) -> str:
    """Of a run's section."""
    return slug(f"run-{run.name}")


def length_verdicts(summary: Summary | None) -> Iterator[Verdict]:
    """UniVer against the others in a run's first setting."""
    if summary is None:
        yield Verdict("No row has a tree: no acceptance length is shown.", "losslessness")
        return
    setting = summary.head
    for ours, theirs in (("univer", "greedy"), ("univer", "rrsw")):
        if not {ours, theirs} <= set(summary.verifiers):
            continue
        change = acceptance_change(summary, ours, theirs, setting)
        low, high = change.interval()
        same = low <= 0 <= high or abs(change.value) < ROUNDING
        seen = "no difference seen" if same else "a difference"
        yield Verdict(
            f"{label(ours)} - {label(theirs)}, {setting}: {change.value:+.3f} tokens a cycle (95%"
            f" interval {change.span()}; {seen}; {change.prompts} prompts, {summary.run.name}).",
            anchor(summary.run),
        )


def speed_verdicts(summaries: Sequence[Summary]) -> Iterator[Verdict]:
    """Tokens a second against plain decoding, in each decoding run's first setting."""
    for summary in summaries:
        if summary.run.paired or not summary.verifiers:
            continue
        setting = summary.head
        plain = speed(summary, PLAIN, setting)
        if not plain.n:
            continue
        gains = {name: quotient(speed(summary, name, setting), plain) for name in summary.verifiers}
        seen = ", ".join(
            f"{label(name)} {gain.value:.2f}x ({gain.span('.2f')})"
            for name, gain in gains.items()
            if gain.n
        )
        yield Verdict(
            f"Tokens a second against plain decoding, {setting}, on {summary.run.device}: {seen};"
            f" 95% intervals; below 1x is slower ({summary.run.name}).",
            anchor(summary.run),
        )


def text_verdicts(found: Sequence[Text]) -> Iterator[Verdict]:
    """Whether the runs' text is the target's."""
    where = "losslessness"
    biased = [f"{label(t.verifier)} in {t.run}" for t in found if t.verdict == "BIASED"]
    passed = [text for text in found if text.verdict == "passed"]
    if not found:
        yield Verdict("No row drove a text: losslessness was not looked at.", where)
    elif biased:
        names = ", ".join(biased)
        yield Verdict(f"NOT LOSSLESS: the text of {names} is not the target's.", where, False)
    elif not passed:
        yield Verdict("Losslessness of the text: too few tokens to see anything.", where)
    else:
        reach = max(text.reach for text in passed)
        few = len(found) - len(passed)
        yield Verdict(
            f"Losslessness of the text: {len(passed)} of {len(found)} tests passed (one a verifier"
            " and run)"
            + (f", {few} have too few tokens" if few else "")
            + f"; a TV of {reach:.2f} or more would have shown in each of those with power"
            f" {1 - BETA:g}.",
            where,
            True,
        )


def document_verdicts(documents: Documents, faults: pl.DataFrame) -> Iterator[Verdict]:
    """What theorem reports, certifications and the fault catalogue say."""
    for document in documents.theorems:
        words = [finding_verdict(row) for row in document.content["findings"]]
        counts = ", ".join(f"{words.count(w)} {w}" for w in ("yes", "open", "NO") if w in words)
        good = False if "NO" in words else None if "open" in words else True
        yield Verdict(f"Theorems ({document.path.name}): {counts}.", "theorems", good)
    for gate in documents.gates:
        verdict, name = gate.content["verdict"], label(str(gate.content["verifier"]))
        yield Verdict(f"{name}: {verdict} on toys.", "gate", verdict == "CERTIFIED")
    alike = pl.col("kind") == "look-alike"
    bad = faults.filter(alike != (pl.col("verdict") == "CERTIFIED"))["name"]
    if len(bad):
        what = f"{len(bad)} rows of the fault catalogue are wrong, first {bad[0]}."
    else:
        names = faults.filter(~alike)["name"].n_unique()
        what = f"The certification noticed {names} planted faults of {names}."
    yield Verdict(what, "faults", not len(bad))


def notes(summaries: Sequence[Summary], figures: Iterable[str]) -> Iterator[str]:
    """All notes on these runs and on figures that are not there."""
    names = list(figures)
    for summary in summaries:
        yield from unpaired(summary)
        yield from _against_configuration(summary)
        yield from _starts(summary.run)
        if summary.verifiers and BASELINE not in summary.verifiers:
            yield (
                f"{summary.run.name} has no {label(BASELINE)} rows: no change against it is shown."
            )
    if len({str((s.run.config["target"], s.run.config["drafter"])) for s in summaries}) > 1:
        yield "The runs have different targets or drafters: they are shown apart, never pooled."
    for kind, why in KINDS.items():
        if not any(name.endswith(kind) for name in names):
            yield f"No figure {why}."


def _against_configuration(summary: Summary) -> Iterator[str]:
    """Notes on settings with fewer prompts than the run asked for, or that it did not ask for."""
    name, categories = summary.run.name, len(summary.categories)
    asked = {
        Setting(setting["topology"], float(setting["temperature"])): int(setting["prompts"])
        * categories
        for setting in summary.run.config["settings"]
    }
    behind = [
        f"{setting}: {has} of {wanted} prompts"
        for setting, wanted in asked.items()
        if (has := summary.counts.get(setting, 0)) < wanted
    ]
    if behind:
        yield f"{name} is not finished: {'; '.join(behind)}."
    if others := [str(setting) for setting in summary.settings if setting not in asked]:
        yield f"{name}: its configuration does not name {'; '.join(others)}."


def _starts(run: Run) -> Iterator[str]:
    """A note on a run that went on elsewhere."""
    earlier = run.record.get("earlier")
    starts = [*(earlier if isinstance(earlier, list) else []), run.record]
    for key, what in (("device", "devices"), ("git_revision", "versions of the code")):
        seen = dict.fromkeys(str(start.get(key)) for start in starts if isinstance(start, dict))
        if len(seen) > 1:
            yield f"{run.name} was computed on several {what}: {', '.join(seen)}."


def not_shown(found: Sequence[Text], runs: Sequence[Run]) -> list[str]:
    """What these files cannot say."""
    devices = sorted({run.device for run in runs})
    reach = max((text.reach for text in found if text.verdict == "passed"), default=1.0)
    return [
        f"Biases of real text below a TV of {reach:.2f}: these runs have too few tokens for that;"
        " certification on toys sees smaller ones.",
        f"Other models, drafters and machines: times are of {', '.join(devices)}.",
        "That a longer acceptance length is faster: it depends on the machine; see tokens a second"
        " where a decoding run is shown.",
        "Differences between settings: they have different prompts, except in the figures that say"
        " which prompts all points share.",
    ]
