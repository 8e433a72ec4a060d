"""`python -m stattests.faults`: catch every fault, pass every look-alike, write a table."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track

from stattests.faults import laws
from stattests.faults.catch import (
    ALPHA,
    ANSWERING,
    NIGHTLY_TV,
    SAMPLED_TV,
    Caught,
    catch,
    let_pass,
)
from stattests.faults.lookalikes import LOOK_ALIKES
from univer import VERIFIERS


def row(found: Caught, kind: str) -> str:
    """One line of the table."""
    specimen = found.specimen
    tv = "" if found.tv is None else f"{found.tv:.2g}"
    n = f"{found.n:,}" if found.n else ""
    predicted = f"{found.predicted:,}" if found.predicted else ""
    verdict = found.verdict.name
    cells = (specimen.name, kind, specimen.ids, tv, found.layer, verdict, n, predicted)
    return "| " + " | ".join(cells) + " |"


@click.command()
@click.argument("names", nargs=-1, metavar="[FILE | --laws [VERIFIER]...]")
@click.option("--nightly", is_flag=True, help="Sample small biases as well (a quarter of an hour).")
@click.option("--laws", "only_laws", is_flag=True, help="Write the laws that diagnosis knows.")
def main(names: tuple[str, ...], nightly: bool, only_laws: bool) -> None:
    """Run the catalogue and write the table to FILE, or to the screen.

    With --laws: write the kept laws of these verifiers, of all if none is named. Exit code 1 if a
    fault was missed or a look-alike accused.
    """
    torch.set_num_threads(1)
    console = Console(stderr=True)
    if only_laws:
        if unknown := sorted(set(names) - set(VERIFIERS)):
            raise click.UsageError(
                f"{unknown[0]!r} is no verifier; known are {', '.join(VERIFIERS)}"
            )
        for name in track(names or tuple(VERIFIERS), "laws", console=console):
            laws.write(name)
        return
    if len(names) > 1:
        raise click.UsageError(f"one FILE at most, got {len(names)}")
    least = NIGHTLY_TV if nightly else SAMPLED_TV
    command = "python -m stattests.faults" + (" --nightly" if nightly else "")
    lines = [
        "# Faults and look-alikes",
        "",
        f"Written by `{command}`: each planted fault, its exact TV if it has",
        "one, the layer that saw it, and for the sampling layer the cycles used against the cycles",
        f"allowed (false alarms {ALPHA:g} a row). Biases of less than {least:g} at every prefix",
        "are probed, not sampled. Look-alikes are correct and must pass every layer. What never",
        "answers is not here: the parent process of `univer certify` ends it.",
        "",
        "| name | kind | stands for | exact TV | layer | verdict | n used | n allowed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wrong = []
    for fault in track(ANSWERING, "faults", console=console):
        for found in catch(fault, least):
            lines.append(row(found, fault.kind))
            if not found.verdict.failed:
                wrong.append(f"missed: {fault.name} ({found.layer})")
    for specimen in track(LOOK_ALIKES, "look-alikes", console=console):
        results = let_pass(specimen)
        bad = [r for r in results if r.verdict.failed]
        shown = bad[0] if bad else results[-1]
        lines.append(row(shown, "look-alike"))
        wrong += [f"accused: {specimen.name} ({r.layer}: {r.detail})" for r in bad]
    lines += ["", *(wrong or ["Nothing was missed and nothing accused."]), ""]
    text = "\n".join(lines)
    if not names:
        click.echo(text)
    else:
        Path(names[0]).write_text(text, encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
