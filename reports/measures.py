"""The numbers that tables and figures show, each one function of a run's sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import polars as pl

from reports.estimates import Estimate, difference, ratio
from reports.names import PLAIN, label
from reports.runs import TIMES
from reports.summaries import Setting, Summary, prompt_sums

NEXT_TOKEN = 1.0
ERRORS = "± is the standard error, clustered by prompt (n/a: a single prompt has none)"


def acceptance_length(
    summary: Summary,
    verifier: str,
    setting: Setting,
    category: str | None = None,
    prompts: Collection[str] | None = None,
) -> Estimate:
    """Tokens a cycle, the next token counted, over all cycles of the setting.

    In a paired run it is each tree's exact mean, in decoding what was accepted.

    Args:
        summary: of the run.
        verifier: whose length.
        setting: where.
        category: only this one.
        prompts: only these, as `shared_prompts` names them.
    """
    above, below = ("expected", "cycles") if summary.run.paired else ("accepted", "decided")
    where = {} if category is None else {"category": category}
    sums = prompt_sums(_of(summary, verifier, setting).filter(**where), above, below)
    kept = {name: pair for name, pair in sums.items() if prompts is None or name in prompts}
    return ratio(kept, NEXT_TOKEN)


def shared_prompts(summary: Summary, settings: Sequence[Setting]) -> frozenset[str]:
    """The prompts that all these settings have, of every verifier."""
    found = [
        frozenset(acceptance_length(summary, name, setting).influence)
        for setting in settings
        for name in summary.verifiers
    ]
    return (
        frozenset.intersection(*(names for names in found if names)) if any(found) else frozenset()
    )


def acceptance_change(
    summary: Summary, ours: str, theirs: str, setting: Setting, category: str | None = None
) -> Estimate:
    """Difference of acceptance lengths, paired by prompt."""
    return difference(
        acceptance_length(summary, ours, setting, category),
        acceptance_length(summary, theirs, setting, category),
    )


def speed(summary: Summary, verifier: str, setting: Setting) -> Estimate:
    """Tokens a second: prompt, drafts, target, decision and compaction of the caches counted."""
    frame = _of(summary, verifier, setting)
    frame = frame.with_columns(
        pl.sum_horizontal(TIMES).alias("ms"), (1e3 * pl.col("tokens")).alias("milli")
    )
    return ratio(prompt_sums(frame, "milli", "ms"))


def milliseconds(summary: Summary, verifier: str, setting: Setting, part: str) -> Estimate:
    """Milliseconds a token of one part of the work."""
    return ratio(prompt_sums(_of(summary, verifier, setting), part, "tokens"))


def accepted_share(summary: Summary, verifier: str, setting: Setting, number: int) -> Estimate:
    """Share of decisions that accepted exactly this many drafted tokens."""
    return _share(summary, verifier, setting, pl.col("num_accepted") == number, pl.lit(True))


def acceptance_rate(summary: Summary, verifier: str, setting: Setting, depth: int) -> Estimate:
    """Of the decisions that accepted depth - 1 tokens or more, the share that accepted depth."""
    accepted = pl.col("num_accepted")
    return _share(summary, verifier, setting, accepted >= depth, accepted >= depth - 1)


def unpaired(summary: Summary) -> list[str]:
    """Notes on settings in which the verifiers were not judged alike.

    In a paired run that is in the same number of cycles of each prompt; in decoding, where cycles
    are their own, in as many texts of it.
    """
    what, same = ("cycles", "contexts") if summary.run.paired else ("texts", "texts")
    notes = []
    for setting in summary.settings:
        counts = {
            name: tuple(sorted(prompt_sums(_of(summary, name, setting), what, what).items()))
            for name in summary.verifiers
        }
        if len(set(counts.values())) > 1:
            missing = [label(name) for name, rows in counts.items() if not rows]
            why = f"{', '.join(missing)} missing" if missing else f"other {same} for each"
            notes.append(
                f"{summary.run.name}, {setting}: the verifiers were not judged in the same {same}"
                f" ({why}); their differences are not fully paired there."
            )
    return notes


def _share(
    summary: Summary, verifier: str, setting: Setting, among: pl.Expr, all_: pl.Expr
) -> Estimate:
    counted = summary.accepted.filter(**_where(verifier, setting)).with_columns(
        pl.when(among & all_).then("count").otherwise(0).alias("above"),
        pl.when(all_).then("count").otherwise(0).alias("below"),
    )
    return ratio(prompt_sums(counted, "above", "below"))


def _of(summary: Summary, verifier: str, setting: Setting) -> pl.DataFrame:
    return summary.prompts.filter(**_where(verifier, setting))


def _where(verifier: str, setting: Setting) -> dict[str, Any]:
    topology = "none" if verifier == PLAIN else setting.topology
    return {"verifier": verifier, "topology": topology, "temperature": setting.temperature}
