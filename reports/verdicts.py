"""The lines at the page's top: what the files say, in a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from reports.document_tables import finding_verdict
from reports.documents import Documents, Fault
from reports.estimates import ROUNDING, quotient
from reports.losslessness import Text
from reports.measures import acceptance_change, speed
from reports.names import PLAIN, label, slug
from reports.runs import Run
from reports.summaries import Summary
from stattests.budget import BETA


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
        span = f"{low:+.3f} to {high:+.3f}" if isfinite(low) else "unknown: one prompt"
        yield Verdict(
            f"{label(ours)} - {label(theirs)}, {setting}: {change.value:+.3f} tokens a cycle"
            f" (95% interval {span}; {seen}; {change.prompts} prompts, {summary.run.name}).",
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
        seen = ", ".join(
            f"{label(name)} {quotient(speed(summary, name, setting), plain).value:.2f}x"
            for name in summary.verifiers
        )
        yield Verdict(
            f"Tokens a second against plain decoding, {setting}, on {summary.run.device}: {seen}"
            f" ({summary.run.name}).",
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


def document_verdicts(documents: Documents, faults: Sequence[Fault]) -> Iterator[Verdict]:
    """What theorem reports, certifications and the fault catalogue say."""
    for document in documents.theorems:
        words = [finding_verdict(row) for row in document.content["findings"]]
        counts = ", ".join(f"{words.count(w)} {w}" for w in ("yes", "open", "NO") if w in words)
        good = False if "NO" in words else None if "open" in words else True
        yield Verdict(f"Theorems ({document.path.name}): {counts}.", "theorems", good)
    for gate in documents.gates:
        verdict, name = gate.content["verdict"], label(str(gate.content["verifier"]))
        yield Verdict(f"{name}: {verdict} on toys.", "gate", verdict == "CERTIFIED")
    bad = [f for f in faults if (f.kind == "look-alike") != (f.verdict == "CERTIFIED")]
    if bad:
        what = f"{len(bad)} rows of the fault catalogue are wrong, first {bad[0].name}."
        yield Verdict(what, "faults", False)
    else:
        names = len({f.name for f in faults if f.kind != "look-alike"})
        what = f"The certification noticed {names} planted faults of {names}."
        yield Verdict(what, "faults", True)
