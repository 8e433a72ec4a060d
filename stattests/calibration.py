"""`python -m stattests.calibration [FILE]`: does the e-test keep its two promises? A table.

- Under the null the share of runs whose E ever reaches 1 / alpha is at most alpha, however often
  one looks (Ville). Shown at alpha = .05, where crossings can be counted.
- A bias of the stated TV is missed in at most BETA of all runs of the required size, at the false
  alarm rate of a real run. The bias is spread evenly over the cells, which is the hardest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy.stats import binomtest

from stattests.budget import ALPHA_RUN, BETA
from stattests.cases import problem
from stattests.engine import cycles, register
from stattests.etest import concentration, log_e, required_n
from stattests.sequential import prefix_test
from stattests.streams import numpy_generator, torch_generator
from stattests.subject import builtin

LEVEL = 0.05  # where false alarms are frequent enough to be counted
LOOKS = 50


@dataclass(frozen=True)
class Calibration:
    """One row: in how many of `runs` something happened, against what was promised."""

    what: str
    runs: int
    promised: float
    seen: int

    @property
    def share(self) -> float:
        """Share of runs."""
        return self.seen / self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share (Clopper and Pearson)."""
        found = binomtest(self.seen, self.runs).proportion_ci(0.95)
        return float(found.low), float(found.high)


def crossings(null: NDArray[np.float64], delta: float, step: int, runs: int) -> Calibration:
    """Honest counts at one prefix, looked at after every `step` draws."""
    c = concentration(len(null), 1.0, delta)
    name = f"null/{len(null)}/{delta}"
    draws = numpy_generator(name).multinomial(step, null, size=(runs, LOOKS)).cumsum(1)
    crossed = sum(any(log_e(x, null, c) >= log(1 / LEVEL) for x in run) for run in draws)
    what = f"null, K = {len(null)}, bet on TV {delta:g}, {LOOKS} looks every {step} draws"
    return Calibration(what, runs, LEVEL, crossed)


def crossings_of_cycles(verifier: str, step: int, runs: int, delta: float = 0.05) -> Calibration:
    """Honest cycles of a verifier, all registered prefixes combined, as the gate does it."""
    subject, toy = builtin(verifier), problem("near", "2x2", 6)
    pilot = cycles(subject, toy, 20_000, torch_generator("calibration/pilot"))
    registered = register([pilot], delta)
    test = prefix_test(toy, registered, delta)
    prefixes = len(registered.prefixes)
    counts = np.zeros((runs, prefixes * toy.vocab + 1), dtype=np.int64)  # the last: not registered
    crossed = np.zeros(runs, dtype=bool)
    for look in range(LOOKS):
        out = cycles(subject, toy, runs * step, torch_generator("calibration/cycles", look))
        run = (torch.arange(runs * step) // step)[:, None]
        cells = (run * counts.shape[1] + registered.cells(out, toy.vocab)).flatten().numpy()
        counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
        for i in np.flatnonzero(~crossed):
            crossed[i] = test.log_e(counts[i, :-1].reshape(prefixes, -1)) >= log(1 / LEVEL)
    what = f"null, cycles of {verifier} on 2x2, {prefixes} prefixes, {LOOKS} looks every {step}"
    return Calibration(what, runs, LEVEL, int(crossed.sum()))


def misses(cells: int, delta: float, runs: int, visit_prob: float = 1.0) -> Calibration:
    """Runs of the required size that do not see a bias of this TV, at the level of a real run."""
    n, c = required_n(cells, delta, visit_prob=visit_prob), concentration(cells, visit_prob, delta)
    null = np.full(cells, 1 / cells)
    shift = 2 * delta / visit_prob  # the prefix's own TV is delta / visit_prob
    biased = null * np.where(np.arange(cells) % 2, 1 + shift, 1 - shift)
    rng = numpy_generator(f"power/{cells}/{delta}/{visit_prob}")
    visits = rng.binomial(n, visit_prob, size=runs)
    draws = rng.multinomial(visits, biased)
    missed = sum(log_e(x, null, c) < -log(ALPHA_RUN) for x in draws)
    what = f"missed, K = {cells}, w = {visit_prob:g}, TV {delta:g}, n = {n:,}"
    return Calibration(what, runs, BETA, missed)


def calibrations(scale: float = 1.0) -> Iterator[Calibration]:
    """All rows: 2,000 null runs and 20,000 power runs each, times `scale`."""
    null, power = round(2000 * scale), round(20_000 * scale)
    yield crossings(np.array([0.5, 0.3, 0.15, 0.05]), 0.1, 20, null)
    yield crossings(np.full(64, 1 / 64), 0.05, 500, null)
    yield crossings_of_cycles("univer", 100, null)
    for cells, delta, visit_prob in (
        *((4, 0.05, 1.0), (16, 0.01, 1.0), (64, 0.005, 1.0)),
        *((6, 0.05, 0.3), (12, 0.01, 0.1)),
    ):
        yield misses(cells, delta, power, visit_prob)


def row(found: Calibration) -> str:
    """One line of the table."""
    low, high = found.interval
    return (
        f"| {found.what} | {found.runs:,} | {found.promised:g} | {found.share:.5f} |"
        f" {low:.5f} to {high:.5f} |"
    )


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def main(file: Path | None) -> None:
    """Write the table to FILE, or to the screen.

    Exit code 1 if a promise is broken beyond chance.
    """
    torch.set_num_threads(1)
    lines = [
        "# Calibration of the e-test",
        "",
        "Written by `python -m stattests.calibration`: the share of runs in which an honest",
        f"verifier's E ever reached {1 / LEVEL:g}, and in which a real bias was missed at a false",
        f"alarm rate of {ALPHA_RUN:g}, beside what is promised. Intervals: Clopper and Pearson.",
        "",
        "| what | runs | promised at most | seen | 95 % interval |",
        "|---|---|---|---|---|",
    ]
    broken = 0
    for found in track(calibrations(), "calibrating", total=8, console=Console(stderr=True)):
        lines.append(row(found))
        broken += found.interval[0] > found.promised
    text = "\n".join([*lines, ""])
    if file is None:
        click.echo(text)
    else:
        file.write_text(text, encoding="utf-8")
    sys.exit(int(broken > 0))


if __name__ == "__main__":
    main()
