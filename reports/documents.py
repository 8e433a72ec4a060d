"""What other commands have written, and its tables: theorems, gates, planted faults.

A JSON file is known by its keys; one that is nothing of ours is left out with a note.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from reports.names import LABELS, label, ordered
from reports.runs import ReportError, shown_path
from reports.table import Cell, Table, count

HERE = Path(__file__).parent
FAULTS = HERE.parent / "docs" / "FAULTS_CAUGHT.md"
THEOREM_KEYS = ("target", "drafter", "plan", "held", "findings")
FINDING = ("claim", "found", "bound", "n", "unit", "holds")
GATE_KEYS = ("verifier", "verdict", "guarantee", "budget", "results")
FAULT_COLUMNS = ("name", "kind", "layer", "verdict", "n used", "n allowed")


@dataclass(frozen=True)
class Document:
    """A JSON file and what it holds."""

    path: Path
    content: Any


@dataclass(frozen=True)
class Documents:
    """All that was found beside the runs, and notes on what was not understood."""

    theorems: tuple[Document, ...]
    gates: tuple[Document, ...]
    notes: tuple[str, ...]


def read_documents(paths: Sequence[Path]) -> Documents:
    """The theorem and gate reports among these JSON files."""
    theorems, gates, notes = [], [], []
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ReportError(f"{path} cannot be read as JSON ({error}).") from error
        if _has(content, THEOREM_KEYS):
            findings, plan = content["findings"], content["plan"]
            if not (isinstance(findings, list) and all(map(_is_finding, findings))):
                raise ReportError(f"{path} is no whole theorem report: a finding is not one.")
            if not isinstance(plan, dict):
                raise ReportError(f"{path} is no whole theorem report: its plan is not one.")
            theorems.append(Document(path, content))
        elif _has(content, GATE_KEYS):
            gates.append(Document(path, content))
        else:
            notes.append(f"{path} is neither a theorem report nor a gate report: left out.")
    names = ordered((str(gate.content["verifier"]) for gate in gates), LABELS)
    gates.sort(key=lambda gate: names.index(str(gate.content["verifier"])))
    return Documents(tuple(theorems), tuple(gates), tuple(notes))


def read_faults(path: Path = FAULTS) -> pl.DataFrame:
    """The rows of docs/FAULTS_CAUGHT.md; the numbers of cycles are null where none was sampled.

    Raises:
        ReportError: it is not there or not that table.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read ({error}).") from error
    cells = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in lines if line.startswith("| ")]
    if not cells or not set(FAULT_COLUMNS) <= set(cells[0]) or len(set(map(len, cells))) > 1:
        raise ReportError(f"{path} is not the table that `python -m stattests.faults` writes.")
    faults = pl.DataFrame(cells[1:], schema=cells[0], orient="row")
    cycles = pl.col("n used", "n allowed").str.replace_all(",", "")
    return faults.with_columns(cycles.cast(pl.Int64, strict=False))


def _has(content: Any, keys: Sequence[str]) -> bool:
    return isinstance(content, dict) and set(keys) <= set(content)


def _is_finding(row: Any) -> bool:
    whole = _has(row, FINDING)
    return whole and isinstance(row["n"], int) and isinstance(row["holds"], bool)


def theorem_table(document: Document, name: str) -> Table:
    """One row a checked statement; `name` is that of the table's files."""
    content = document.content
    rows = tuple(
        (
            str(row["claim"]),
            str(row["found"]),
            str(row["bound"]),
            f"{row['n']:,} {row['unit']}",
            finding_verdict(row),
        )
        for row in content["findings"]
    )
    return Table(
        name,
        f"Theorems on {content['target']}'s trees and text, drafter {content['drafter']}"
        f" ({document.path.name})",
        ("claim", "found", "must be", "looked at", "holds"),
        rows,
        "Tokens a cycle are differences, so that the next token, which is counted, drops out."
        " 'open': not decided, because too little was looked at; it is not a pass.",
        (shown_path(document.path),),
    )


def theorem_command(document: Document) -> str:
    """The command that wrote the report, as far as it says it."""
    plan = document.content["plan"]
    words = [f"--parts {','.join(map(str, plan['parts']))}"] if plan.get("parts") else []
    words += [f"--{key} {plan[key]}" for key in ("trees", "cycles") if key in plan]
    words += [f"--runs {run}" for run in plan.get("runs", ())]
    return " ".join(("python -m gpu_runs.theorems", *words, f"--json {shown_path(document.path)}"))


def finding_verdict(row: dict[str, object]) -> str:
    """As the theorem command says it: yes, open or NO."""
    return "yes" if row["holds"] else "open" if row.get("undecided") else "NO"


def gate_table(gates: Sequence[Document]) -> Table:
    """One row a certification."""
    rows = tuple(
        (
            label(str(gate.content["verifier"])),
            str(gate.content["verdict"]),
            str(gate.content["budget"]),
            str(gate.content["guarantee"]),
            str(gate.content.get("replay", "")),
        )
        for gate in gates
    )
    return Table(
        "gate",
        "Certification of the verifiers on toys",
        ("verifier", "verdict", "budget", "what it means", "command"),
        rows,
        "Judged on the joint law of all emitted tokens, the next token counted.",
        tuple(shown_path(gate.path) for gate in gates),
    )


def fault_table(faults: pl.DataFrame, path: str) -> Table:
    """Kind x how often it was noticed, and by which layer."""
    rows: list[tuple[Cell, ...]] = []
    for (kind,), group in faults.group_by("kind", maintain_order=True):
        noticed = group.filter(pl.col("verdict").is_in(["BIASED", "BROKEN"]))
        layers = ", ".join(f"{layer} {n}" for layer, n in Counter(group["layer"]).items())
        names = (count(frame["name"].n_unique()) for frame in (group, noticed))
        rows.append((str(kind), *names, layers))
    return Table(
        "faults",
        "Planted faults and correct look-alikes",
        ("kind", "verifiers", "noticed", "judged by layer"),
        tuple(rows),
        "Every fault must be noticed, no look-alike may be. Layers: Lx, exact probing; edges,"
        " scripted thresholds; L3, the sampled e-test; pairs, independence; length, the mean length"
        " claimed; contract, answers that are refused. The law judged is that of all emitted"
        " tokens, the next token counted.",
        (path,),
    )
