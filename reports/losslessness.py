"""Does the text of real runs follow the target's law? The PIT e-test along the run, and surprisal.

Both judge every token that a verifier wrote (STATS 6). The bets are shared among several sizes,
because the number of tokens was not fixed when they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, log, nan, sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray

from reports.names import LABELS, label, ordered
from reports.runs import rows_of
from reports.summaries import IMPOSSIBLE, LOOKS, Summary
from reports.table import Amount, Table, count
from stattests.budget import ALPHA_RUN, BETA, LENGTH_SIGMAS, PIT_CELLS
from stattests.etest import concentration, detectable_tv, log_e

BET_TOKENS = (64, 256, 1024, 4096, 16384, 65536)  # as gpu_runs bets
UNIFORM = np.full(PIT_CELLS, 1 / PIT_CELLS)


@dataclass(frozen=True)
class Text:
    """The tokens that a verifier wrote in a run.

    run, verifier: whose.
    counts: tokens in each PIT cell, [PIT_CELLS].
    impossible: tokens that their law gives probability 0.
    path: (tokens, log10 E) along the run.
    alpha: false-alarm rate of this test, its share of the report's.
    excess: mean of surprisal less entropy, nats a token.
    sigmas: how many standard errors that is.
    """

    run: str
    verifier: str
    counts: NDArray[np.int64]
    impossible: int
    path: tuple[tuple[int, float], ...]
    alpha: float
    excess: float
    sigmas: float

    @property
    def tokens(self) -> int:
        """How many were judged."""
        return int(self.counts.sum()) + self.impossible

    @property
    def alarm(self) -> float:
        """log10 E from which on the text is called biased."""
        return log(1 / self.alpha) / log(10)

    @property
    def largest(self) -> float:
        """Largest log10 E ever reached."""
        return max((value for _, value in self.path), default=0.0)

    @property
    def reach(self) -> float:
        """The smallest TV that these tokens would have shown, with power 1 - BETA."""
        return detectable_tv(self.tokens, PIT_CELLS, self.alpha / len(BET_TOKENS))

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.largest >= self.alarm or not abs(self.sigmas) <= LENGTH_SIGMAS:
            return "BIASED"
        return "passed" if self.reach < 1 else "too few tokens"


def evidence(counts: NDArray[np.int64]) -> float:
    """log10 E of counts of PIT cells, a bet on each of BET_TOKENS in equal shares."""
    bets = [
        log_e(counts, UNIFORM, concentration(PIT_CELLS, 1.0, detectable_tv(tokens)))
        for tokens in BET_TOKENS
    ]
    return float(np.logaddexp.reduce(bets) - log(len(bets))) / log(10)


def texts(summaries: Sequence[Summary]) -> list[Text]:
    """One judgement a run and verifier; together they have the false-alarm rate ALPHA_RUN."""
    keys = [
        (summary, name)
        for summary in summaries
        for name in ordered(summary.cells["verifier"].to_list(), LABELS)
    ]
    return [_text(summary, name, ALPHA_RUN / len(keys)) for summary, name in keys]


def losslessness_table(found: Sequence[Text], summaries: Sequence[Summary]) -> Table:
    """One row a text."""
    rows = tuple(
        (
            text.run,
            label(text.verifier),
            count(text.tokens),
            Amount(text.largest, digits=1, signed=True, exact=True),
            Amount(text.alarm, digits=1, exact=True),
            f"{text.reach:.2f}" if text.reach < 1 else "nothing yet",
            Amount(text.excess, digits=4, signed=True, exact=True),
            Amount(text.sigmas, digits=1, signed=True, exact=True),
            text.verdict,
        )
        for text in found
    )
    return Table(
        "losslessness",
        "Losslessness of the text that the verifiers wrote",
        (
            "run",
            "written by",
            "tokens",
            "largest log10 E",
            "alarm at",
            "smallest TV it would show",
            "surprisal - entropy, nats a token",
            "in standard errors",
            "verdict",
        ),
        rows,
        "Every emitted token, the next token counted. Randomised PIT (probability integral"
        f" transform) in {PIT_CELLS} cells, e-test: false alarms at most {ALPHA_RUN:g} in the whole"
        f" table, TV (total variation distance) shown with power {1 - BETA:g}. Surprisal less"
        " entropy is 0 on average along a lossless text; the alarm is at"
        f" {LENGTH_SIGMAS:g} standard errors.",
        tuple(rows_of(summary.run) for summary in summaries),
    )


def _text(summary: Summary, name: str, alpha: float) -> Text:
    cells = summary.cells.filter(pl.col("verifier") == name)
    by_look = np.zeros((LOOKS, PIT_CELLS), dtype=np.int64)
    impossible = np.zeros(LOOKS, dtype=np.int64)
    for look, cell, n in cells.select("look", "cell", "count").iter_rows():
        if cell == IMPOSSIBLE:
            impossible[look] += n
        else:
            by_look[look, cell] += n
    so_far, never = by_look.cumsum(0), impossible.cumsum()
    path = [(0, 0.0)]
    for look in range(LOOKS):
        tokens = int(so_far[look].sum() + never[look])
        if tokens > path[-1][0]:
            path.append((tokens, inf if never[look] else evidence(so_far[look])))
    row = summary.surprise.filter(pl.col("verifier") == name).row(0, named=True)
    excess, error = row["excess"], sqrt(max(row["variance"], 0.0))
    # Text without chance (temperature 0) has no error: what is left is rounding.
    sigmas = (excess / error if error > 0 else 0.0) if isfinite(excess) else inf
    return Text(
        summary.run.name,
        name,
        so_far[-1],
        int(never[-1]),
        tuple(path),
        alpha,
        excess / row["tokens"] if row["tokens"] else nan,
        sigmas,
    )
