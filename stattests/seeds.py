"""`python -m stattests.seeds FILE`: certify right verifiers with many seeds; no false alarm.

Any seed must pass. The table is written after every run, and runs that it has are not done again.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track

from stattests import budget
from stattests.gate import certify
from stattests.subject import builtin
from stattests.verdict import Verdict
from univer import VERIFIERS
from univer import __version__ as version

ROW = re.compile(r"^\| (\d+) \| \w+ \| (\w+) \|.*\|$", re.MULTILINE)


def heading(asked: str) -> str:
    """What stands above the rows."""
    return f"""# Many seeds, no false alarm

Written by `python -m stattests.seeds` with UniVer {version}: the built-in verifiers at budget
{asked}, a seed a run. A false alarm would need an E of 1 / {budget.ALPHA_RUN:g}, times the number
of tests in the run. Largest log10 E: over all tests of the run.

| seed | verifier | verdict | sampled cycles | largest log10 E | seconds |
|---|---|---|---|---|---|
"""


def row(seed: int, asked: str) -> str:
    """Certify one verifier with one seed."""
    name = list(VERIFIERS)[seed % len(VERIFIERS)]
    report = certify(builtin(name), asked=asked, seed=seed)
    largest = max(result.log10_e or 0.0 for result in report.results)
    sampled = sum(result.n for result in report.results if result.layer in ("L3", "wide"))
    return (
        f"| {seed} | {name} | {report.verdict.name} | {sampled:,} | {largest:.2f} |"
        f" {report.seconds:.0f} |"
    )


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1), help="Seeds.")
@click.option("--first", default=1000, show_default=True, type=click.IntRange(0), help="The first.")
@click.option(
    "--budget", "asked", default="smoke", show_default=True, type=click.Choice([*budget.BUDGETS])
)
def main(file: Path, runs: int, first: int, asked: str) -> None:
    """Certify right verifiers with many seeds and write the table to FILE.

    Rows that FILE has are kept: remove it to start anew. Exit code 1 if any run did not certify.
    """
    torch.set_num_threads(1)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    done = {int(found[1]): found[0] for found in ROW.finditer(text)}
    seeds = range(first, first + runs)
    for seed in track(seeds, "certifying", console=Console(stderr=True)):
        if seed not in done:
            done[seed] = row(seed, asked)
            rows = [done[key] for key in sorted(done)]
            file.write_text(heading(asked) + "\n".join([*rows, ""]), encoding="utf-8")
    verdicts = {found[2] for found in map(ROW.fullmatch, done.values()) if found}
    sys.exit(int(verdicts != {Verdict.CERTIFIED.name}))


if __name__ == "__main__":
    main()
