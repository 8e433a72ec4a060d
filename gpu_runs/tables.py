"""What the demonstration prints: the table, the paired differences, the line on losslessness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

import numpy as np
from rich.box import ASCII, SIMPLE
from rich.table import Table

from gpu_runs.paired import Context, clustered_mean
from gpu_runs.separate import PLAIN, Decoded
from stattests.budget import ALPHA_RUN, BETA, PIT_CELLS
from stattests.etest import detectable_tv, pit_log_e
from univer import PAPER

LABELS = {"rrsw": "RRSw", "traversal": "Traversal", "greedy": "Greedy", "univer": "UniVer"}
BASELINE = "rrsw"
# Numbers of tokens for which the e-test bets. How many there will be depends on the time and the
# text, and a bet must not; having six of them costs at most log10 6 = 0.8 of the evidence.
BET_TOKENS = (64, 256, 1024, 4096, 16384, 65536)


def difference(contexts: Sequence[Context], ours: str, theirs: str) -> tuple[float, float]:
    """Mean paired difference of acceptance lengths and its standard error, clustered by prompt."""
    return clustered_mean(
        [context.lengths[ours] - context.lengths[theirs] for context in contexts],
        [context.prompt_id for context in contexts],
    )


def lengths_table(
    contexts: Sequence[Context], decoded: Mapping[str, Decoded], *, ascii_only: bool
) -> Table:
    """One row a verifier: acceptance length, paired change against RRSw, speed."""
    prompts = [context.prompt_id for context in contexts]
    table = Table(
        box=ASCII if ascii_only else SIMPLE,
        title=f"{len(contexts)} contexts of {len(set(prompts))} prompts in"
        f" {len({context.category for context in contexts})} categories",
        caption="tokens a cycle, the next token counted; +- standard error clustered by prompt",
    )
    table.add_column("verifier")
    for header in ("acceptance length", f"change vs {LABELS[BASELINE]}", "tokens/s", "vs plain"):
        table.add_column(header, justify="right")
    plain = decoded[PLAIN].tokens_per_second
    for name in PAPER:
        length = clustered_mean([context.lengths[name] for context in contexts], prompts)
        change = "" if name == BASELINE else _signed(*difference(contexts, name, BASELINE))
        speed = decoded[name].tokens_per_second
        table.add_row(
            LABELS.get(name, name),
            f"{length[0]:.3f} +- {length[1]:.3f}",
            change,
            f"{speed:.1f}",
            f"{speed / plain:.2f}x",
        )
    table.add_row("plain decoding", "1", "", f"{plain:.1f}", "1.00x", end_section=True)
    return table


def paired_lines(contexts: Sequence[Context]) -> tuple[str, ...]:
    """The paired differences that matter most, one line each."""
    return tuple(
        f"{LABELS[ours]} - {LABELS[theirs]}, paired: {_signed(*difference(contexts, ours, theirs))}"
        f" tokens a cycle ({relation})"
        for ours, theirs, relation in (
            ("univer", "greedy", "on the same tree"),
            ("univer", "rrsw", "in the same context"),
        )
    )


def pooled_values(
    contexts: Sequence[Context], decoded: Mapping[str, Decoded]
) -> dict[str, list[float]]:
    """The PIT values of all tokens that a verifier wrote: as a driver, then on its own."""
    return {
        name: [
            *(value for context in contexts if context.driver == name for value in context.values),
            *decoded[name].values,
        ]
        for name in PAPER
    }


def evidence(values: Sequence[float]) -> float:
    """The log of E for PIT values, a bet on each of BET_TOKENS in equal shares.

    Example:
        >>> evidence([0.25, float("inf")])  # a token that the target never emits
        inf
    """
    bets = [pit_log_e(values, tokens) for tokens in BET_TOKENS]
    return float(np.logaddexp.reduce(bets)) - log(len(bets))


def losslessness(values: Mapping[str, Sequence[float]]) -> tuple[bool, tuple[str, ...]]:
    """Whether each verifier's PIT values look uniform, and the lines that say so."""
    alpha = ALPHA_RUN / len(values)
    log_es = {name: evidence(row) for name, row in values.items()}
    biased = [name for name, value in log_es.items() if value >= log(1 / alpha)]
    fewest = min(len(row) for row in values.values())
    smallest = detectable_tv(fewest, PIT_CELLS, alpha)
    seen = ", ".join(
        f"{LABELS.get(name, name)} {value / log(10):+.1f} ({len(values[name])} tokens)"
        for name, value in log_es.items()
    )
    verdict = (
        f"NOT LOSSLESS: the text of {', '.join(biased)} does not follow the target's law"
        if biased
        else "lossless as far as seen: every verifier's text passed"
    )
    reach = "nothing yet" if smallest >= 1 else f"a TV of {smallest:.2f}"
    return not biased, (
        f"{verdict} (PIT, {PIT_CELLS} cells, {fewest} tokens or more each, false alarms <="
        f" {ALPHA_RUN:g}; could have caught {reach} with power {1 - BETA:g}).",
        f"log10 E, alarm at {log(1 / alpha) / log(10):.1f}: {seen}",
    )


def _signed(mean: float, error: float) -> str:
    return f"{mean:+.3f} +- {error:.3f}"
