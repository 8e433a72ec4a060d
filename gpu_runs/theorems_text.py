"""What the rows of runs say: Theorem 4 of every token that they emitted, Theorem 6 of their trees.

The rows are those of run folders (part-*.parquet). Texts are pooled by verifier, PIT e-test and
surprisal check; rows may be added at any time, and the e-test goes on (STATS 6). Where UniVer and
Greedy were judged on the same trees, their exact lengths are paired by topology and temperature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpu_runs.parts import parts, read_rows
from gpu_runs.tables import BET_TOKENS, LABELS, evidence
from gpu_runs.theorems_findings import Finding
from gpu_runs.theorems_lengths import CONFIDENCE, paired_finding
from stattests.budget import ALPHA_RUN, BETA, LENGTH_SIGMAS, PIT_CELLS
from stattests.etest import detectable_tv
from univer import InputError

LISTS = ("pit", "log_prob", "entropy", "log_prob_variance")
COLUMNS = ("verifier", "drives_text", *LISTS)
LENGTHS = ("verifier", "topology", "temperature", "prompt_id", "tree_id", "expected_accepted")


@dataclass(frozen=True)
class Text:
    """All tokens that a verifier wrote, one number each: PIT value, and three numbers in nats."""

    pit: NDArray[np.float64]
    log_prob: NDArray[np.float64]
    entropy: NDArray[np.float64]
    variance: NDArray[np.float64]

    def surprisal(self) -> tuple[float, float]:
        """Mean of surprisal less entropy, in nats a token, and how many standard errors that is.

        Along a lossless text the differences are a martingale's, of known variance.
        """
        if np.isinf(self.log_prob).any():
            return inf, inf
        off = -self.log_prob - self.entropy
        error = sqrt(float(self.variance.sum()))
        total = float(off.sum())
        # Texts without chance (temperature 0) have no error; what is left of them is rounding.
        return total / len(off), total / error if error > 0 else 0.0


def read_texts(folders: Sequence[Path]) -> dict[str, Text]:
    """The tokens of all rows whose verifier drove the text, by verifier.

    Raises:
        InputError: a folder without parts, or a part that is not a run's.
    """
    rows = _rows(folders, COLUMNS).filter(pl.col("drives_text"))
    if not len(rows):
        raise InputError("runs: no row in these folders drove a text.")
    tokens = rows.explode(list(LISTS)).drop_nulls("pit")
    return {
        str(name): Text(*(part[column].to_numpy().astype(np.float64) for column in LISTS))
        for (name,), part in sorted(tokens.group_by("verifier"), key=lambda group: str(group[0]))
    }


def _rows(folders: Sequence[Path], columns: Sequence[str]) -> pl.DataFrame:
    """These columns of all rows, and `run`, the number of the folder."""
    for folder in folders:
        if not folder.is_dir() or not parts(folder):
            raise InputError(f"runs: {folder} holds no part-*.parquet; give the folder of a run.")
    frames = (read_rows(folder, columns) for folder in folders)
    return pl.concat(frame.with_columns(run=pl.lit(run)) for run, frame in enumerate(frames))


def run_length_findings(folders: Sequence[Path]) -> list[Finding]:
    """Theorem 6 on the trees on which runs judged both verifiers; none without such trees.

    All trees together must show it; those of one topology and temperature, which may be few, must
    not contradict it.

    Raises:
        InputError: as in `read_texts`.
    """
    rows = _rows(folders, LENGTHS)
    ours, theirs = (rows.filter(pl.col("verifier") == name) for name in ("univer", "greedy"))
    both = ours.join(theirs, on=["run", "tree_id"], suffix="_greedy")
    if not len(both):
        return []
    found = [_lengths("all trees of the runs", both)]
    for (topology, temperature), part in sorted(both.group_by("topology", "temperature")):
        row = _lengths(f"{topology} of the runs, temperature {temperature:g}", part)
        bound = f"not shown false ({CONFIDENCE:.1%})"
        found.append(replace(row, bound=bound, holds=row.holds or row.undecided))
    return found


def _lengths(where: str, trees: pl.DataFrame) -> Finding:
    names = ("expected_accepted", "expected_accepted_greedy", "prompt_id")
    ours, theirs, prompts = (trees[name].to_list() for name in names)
    claim = f"Theorem 6, {where}: E[N_UniVer] >= E[N_Greedy]"
    return paired_finding(claim, ours, theirs, prompts)


def text_findings(texts: Mapping[str, Text]) -> list[Finding]:
    """The e-test and the surprisal check of each verifier's text."""
    alpha = ALPHA_RUN / len(texts)
    alarm = log(1 / alpha)
    rows = []
    for name, text in texts.items():
        label, n = LABELS.get(name, name), len(text.pit)
        value = evidence(text.pit.tolist())
        # Several bets share the evidence: the one that fits must make up for all of them.
        reach = detectable_tv(n, PIT_CELLS, alpha / len(BET_TOKENS))
        seen = "nothing yet" if reach >= 1 else f"a TV of {reach:.3f}"
        rows.append(
            Finding(
                f"Theorem 4, text of {label}: PIT e-test, {PIT_CELLS} cells",
                f"log10 E {value / log(10):+.1f}; could have caught {seen}",
                f"< {alarm / log(10):.1f}",
                value / log(10),
                n,
                "tokens",
                value < alarm,
                f"power {1 - BETA:g}, false alarms {ALPHA_RUN:g} over all texts",
            )
        )
        mean, sigmas = text.surprisal()
        rows.append(
            Finding(
                f"Theorem 4, text of {label}: surprisal = entropy on average",
                f"{mean:+.4f} nats a token, {sigmas:+.1f} standard errors",
                f"within {LENGTH_SIGMAS:g} errors",
                sigmas,
                n,
                "tokens",
                abs(sigmas) <= LENGTH_SIGMAS,
            )
        )
    return rows
