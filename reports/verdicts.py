"""The lines at the page's top: what the files say, in a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from reports.document_tables import finding_verdict
from reports.documents import Documents, Fault
from reports.estimates import ROUNDING
from reports.losslessness import Text
from reports.measures import acceptance_change
from reports.names import label
from reports.summaries import Summary
from stattests.budget import BETA

Verdict = tuple[bool | None, str]  # whether it is good news (None: neither), and the sentence


def length_verdicts(summary: Summary | None) -> list[Verdict]:
    """UniVer against the others in a run's first setting."""
    if summary is None:
        return [(None, "No row has a tree: no acceptance length is shown.")]
    setting, lines = summary.settings[0], []
    for ours, theirs in (("univer", "greedy"), ("univer", "rrsw")):
        if {ours, theirs} <= set(summary.verifiers):
            change = acceptance_change(summary, ours, theirs, setting)
            low, high = change.interval()
            same = low <= 0 <= high or abs(change.value) < ROUNDING
            seen = "no difference seen" if same else "a difference"
            span = f"{low:+.3f} to {high:+.3f}" if isfinite(low) else "unknown: one prompt"
            lines.append(
                f"{label(ours)} - {label(theirs)}, {setting}: {change.value:+.3f} tokens a cycle"
                f" (95% interval {span}; {seen}; {change.prompts} prompts, {summary.run.name})."
            )
    return [(None, line) for line in lines]


def text_verdicts(found: Sequence[Text]) -> list[Verdict]:
    """Whether the runs' text is the target's."""
    if not found:
        return [(None, "No row drove a text: losslessness was not looked at.")]
    biased = [f"{label(t.verifier)} in {t.run}" for t in found if t.verdict == "BIASED"]
    if biased:
        return [(False, f"NOT LOSSLESS: the text of {', '.join(biased)} is not the target's.")]
    passed = [text for text in found if text.verdict == "passed"]
    if not passed:
        return [(None, "Losslessness: too few tokens to see anything.")]
    reach = max(text.reach for text in passed)
    open_ = len(found) - len(passed)
    return [
        (
            True,
            f"Losslessness of the text: {len(passed)} of {len(found)} tests passed (one a verifier"
            " and run)"
            + (f", {open_} have too few tokens" if open_ else "")
            + f"; a TV of {reach:.2f} or more would have shown in each of those with power"
            f" {1 - BETA:g}.",
        )
    ]


def document_verdicts(documents: Documents, faults: Sequence[Fault]) -> list[Verdict]:
    """What theorem reports, certifications and the fault catalogue say."""
    lines: list[Verdict] = []
    for document in documents.theorems:
        words = [finding_verdict(row) for row in document.content["findings"]]
        counts = ", ".join(f"{words.count(w)} {w}" for w in ("yes", "open", "NO") if w in words)
        good = False if "NO" in words else None if "open" in words else True
        lines.append((good, f"Theorems ({document.path.name}): {counts}."))
    for gate in documents.gates:
        verdict = gate.content["verdict"]
        lines.append(
            (verdict == "CERTIFIED", f"{label(gate.content['verifier'])}: {verdict} on toys.")
        )
    bad = [f for f in faults if (f.kind == "look-alike") != (f.verdict == "CERTIFIED")]
    names = len({f.name for f in faults if f.kind != "look-alike"})
    lines.append(
        (not bad, f"The certification noticed {names} planted faults of {names}.")
        if not bad
        else (False, f"{len(bad)} rows of the fault catalogue are wrong, first {bad[0].name}.")
    )
    return lines
