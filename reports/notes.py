"""What a reader must know: unfinished, unpaired and mixed runs, and what is not shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reports.losslessness import Text
from reports.measures import unpaired
from reports.names import BASELINE, label
from reports.runs import Run
from reports.summaries import Summary

KINDS = {  # end of a figure's name -> why it may be missing
    "by-depth": "against depth: no run has two depths of one branching and temperature",
    "by-size": "against tree size: no run has two sizes at one temperature",
    "by-temperature": "against temperature: no run has two temperatures of one topology",
    "by-category": "by category: no run has two categories",
    "univer-less-greedy": "of UniVer - Greedy: no run has both",
    "times": "of the time split: there is no decoding run",
}


def notes(summaries: Sequence[Summary], figures: Iterable[str]) -> Iterator[str]:
    """All notes on these runs and on figures that are not there."""
    names = list(figures)
    for summary in summaries:
        yield from unpaired(summary)
        yield from _shortfall(summary)
        if summary.verifiers and BASELINE not in summary.verifiers:
            yield (
                f"{summary.run.name} has no {label(BASELINE)} rows: no change against it is shown."
            )
    if len({str((s.run.config["target"], s.run.config["drafter"])) for s in summaries}) > 1:
        yield "The runs have different targets or drafters: they are shown apart, never pooled."
    for kind, why in KINDS.items():
        if not any(name.endswith(kind) for name in names):
            yield f"No figure {why}."


def _shortfall(summary: Summary) -> Iterator[str]:
    """A note on settings that have fewer prompts than the run asked for."""
    config, categories = summary.run.config, len(summary.categories)
    there: dict[tuple[str, float], set[str]] = {}
    for key in summary.prompts.select("topology", "temperature", "prompt_id").iter_rows():
        there.setdefault((key[0], float(key[1])), set()).add(key[2])
    behind = []
    for setting in config["settings"]:
        key = (setting["topology"], float(setting["temperature"]))
        has, wanted = len(there.get(key, ())), setting["prompts"] * categories
        if has < wanted:
            behind.append(f"{key[0]}, T = {key[1]:g}: {has} of {wanted} prompts")
    if behind:
        yield f"{summary.run.name} is not finished: {'; '.join(behind)}."


def not_shown(found: Sequence[Text], runs: Sequence[Run]) -> list[str]:
    """What these files cannot say."""
    devices = sorted({run.device for run in runs})
    reach = min((text.reach for text in found), default=1.0)
    return [
        f"Biases of real text below a TV of {reach:.2f}: these runs have too few tokens for that;"
        " certification on toys sees smaller ones.",
        f"Other models, drafters and machines: times are of {', '.join(devices)}.",
        "That a longer acceptance length is faster: it depends on the machine; see tokens a second"
        " where a decoding run is shown.",
        "Differences between settings: they have different prompts, except in the figures that say"
        " which prompts all points share.",
    ]
