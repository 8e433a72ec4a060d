"""`python -m stattests.faults [FILE]`: catch every fault, pass every look-alike, write a table.

`--laws` instead writes the exact laws that diagnosis compares with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from stattests.faults import laws
from stattests.faults.catch import ANSWERING, Caught, catch, let_pass
from stattests.faults.lookalikes import LOOK_ALIKES
from stattests.verdict import Verdict


def row(found: Caught, kind: str) -> str:
    """One line of the table."""
    specimen = found.specimen
    tv = "" if found.tv is None else f"{found.tv:.2g}"
    n = f"{found.n:,}" if found.n else ""
    predicted = f"{found.predicted:,}" if found.predicted else ""
    verdict = found.verdict.name
    cells = (specimen.name, kind, specimen.ids, tv, found.layer, verdict, n, predicted)
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Run the catalogue; 1 if a fault was missed or a look-alike accused."""
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--laws"]:
        laws.write()
        return 0
    console = Console(stderr=True)
    lines = [
        "# Faults and look-alikes",
        "",
        "Written by `python -m stattests.faults`: each planted fault, its exact TV if it has one,",
        "the layer that saw it, and for the sampling layer the cycles used against the cycles",
        "allowed (false alarms 1e-12 a row). Look-alikes are correct and must pass every layer.",
        "What never answers is not here: the parent process of `univer certify` ends it.",
        "",
        "| name | kind | stands for | exact TV | layer | verdict | n used | n allowed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wrong = []
    for fault in track(ANSWERING, "faults", console=console):
        for found in catch(fault):
            lines.append(row(found, fault.kind))
            if found.verdict not in (Verdict.BIASED, Verdict.BROKEN):
                wrong.append(f"missed: {fault.name} ({found.layer})")
    for specimen in track(LOOK_ALIKES, "look-alikes", console=console):
        results = let_pass(specimen)
        bad = [r for r in results if r.verdict in (Verdict.BIASED, Verdict.BROKEN)]
        shown = bad[0] if bad else results[-1]
        lines.append(row(shown, "look-alike"))
        wrong += [f"accused: {specimen.name} ({r.layer}: {r.detail})" for r in bad]
    lines += ["", *(wrong or ["Nothing was missed and nothing accused."]), ""]
    text = "\n".join(lines)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
