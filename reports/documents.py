"""What other commands have written: theorem reports, gate reports, the fault catalogue, toy optima.

A JSON file is known by its keys; one that is nothing of ours is left out with a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.names import LABELS, ordered
from reports.runs import ReportError

HERE = Path(__file__).parent
TOY_OPTIMA = HERE / "data" / "toy_optima.json"
FAULTS = HERE.parent / "docs" / "FAULTS_CAUGHT.md"
THEOREM_KEYS = ("target", "drafter", "plan", "held", "findings")
FINDING = ("claim", "found", "bound", "n", "unit", "holds")
GATE_KEYS = ("verifier", "verdict", "guarantee", "budget", "results")
FAULT_COLUMNS = ("name", "kind", "exact TV", "layer", "verdict", "n used", "n allowed")


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


@dataclass(frozen=True)
class Fault:
    """A row of the fault catalogue.

    name, kind, layer, verdict: as printed there.
    tv: its exact TV; None where it has none.
    used, allowed: cycles; None where nothing was sampled.
    """

    name: str
    kind: str
    layer: str
    verdict: str
    tv: float | None
    used: int | None
    allowed: int | None


def read_documents(paths: Sequence[Path]) -> Documents:
    """The theorem and gate reports among these JSON files."""
    theorems, gates, notes = [], [], []
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ReportError(f"{path} cannot be read as JSON ({error}).") from error
        if _has(content, THEOREM_KEYS):
            findings = content["findings"]
            if not (isinstance(findings, list) and all(map(_is_finding, findings))):
                raise ReportError(f"{path} is no whole theorem report: a finding is not one.")
            theorems.append(Document(path, content))
        elif _has(content, GATE_KEYS):
            gates.append(Document(path, content))
        else:
            notes.append(f"{path} is neither a theorem report nor a gate report: left out.")
    names = ordered((str(gate.content["verifier"]) for gate in gates), LABELS)
    gates.sort(key=lambda gate: names.index(str(gate.content["verifier"])))
    return Documents(tuple(theorems), tuple(gates), tuple(notes))


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """The rows of docs/FAULTS_CAUGHT.md.

    Raises:
        ReportError: it is not there or not that table.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}).") from error
    rows = [_split(line) for line in lines if line.startswith("| ")]
    if not rows or not set(FAULT_COLUMNS) <= set(rows[0]):
        raise ReportError(f"{path} is not the table that `python -m stattests.faults` writes.")
    named = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    return [
        Fault(
            row["name"],
            row["kind"],
            row["layer"],
            row["verdict"],
            float(row["exact TV"]) if row["exact TV"] else None,
            _whole(row["n used"]),
            _whole(row["n allowed"]),
        )
        for row in named
    ]


def read_toy_optima(path: Path = TOY_OPTIMA) -> Document:
    """Greedy, UniVer and the optimum on toys.

    Raises:
        ReportError: it is not there or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for row in content["rows"]:
            row["topology"], row["greedy"], row["univer"], row["optimum"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ReportError(
            f"{path} is no file of toy optima; python -m reference.toy_optima {path} writes it."
        ) from error
    return Document(path, content)


def _has(content: Any, keys: Sequence[str]) -> bool:
    return isinstance(content, dict) and set(keys) <= set(content)


def _is_finding(row: Any) -> bool:
    whole = _has(row, FINDING)
    return whole and isinstance(row["n"], int) and isinstance(row["holds"], bool)


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _whole(text: str) -> int | None:
    return int(text.replace(",", "")) if text else None
