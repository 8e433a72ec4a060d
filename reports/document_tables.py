"""The tables of what other commands have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev

from reports.documents import Document, Fault
from reports.names import label
from reports.runs import shown_path
from reports.table import Amount, Cell, Table, count

VERDICTS = {True: "yes", False: "NO"}


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


def fault_table(faults: Sequence[Fault], path: str) -> Table:
    """Kind x how often it was noticed, and by which layer."""
    rows: list[tuple[Cell, ...]] = []
    for kind in dict.fromkeys(fault.kind for fault in faults):
        verdicts: dict[str, list[Fault]] = {}
        for fault in faults:
            if fault.kind == kind:
                verdicts.setdefault(fault.name, []).append(fault)
        noticed = sum(
            any(fault.verdict in ("BIASED", "BROKEN") for fault in found)
            for found in verdicts.values()
        )
        layers = Counter(fault.layer for found in verdicts.values() for fault in found)
        seen = ", ".join(f"{layer} {n}" for layer, n in layers.items())
        rows.append((kind, count(len(verdicts)), count(noticed), seen))
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


def optimum_table(document: Document) -> Table:
    """Topology x Greedy, UniVer, the optimum, and what UniVer leaves."""
    rows: list[tuple[Cell, ...]] = []
    for topology, toys in by_topology(document).items():
        gap = [toy["optimum"] - toy["univer"] for toy in toys]
        rows.append(
            (
                topology,
                *(Amount(1 + mean(toy[name] for toy in toys), exact=True) for name in COLUMNS),
                Amount(mean(gap), stdev(gap) / sqrt(len(gap)), digits=4),
                Amount(max(gap), digits=4, exact=True),
                count(len(toys)),
            )
        )
    names = (*map(label, COLUMNS[:2]), COLUMNS[2])
    return Table(
        "toy-optima",
        "Distance to the whole-tree optimum on toys",
        ("topology", *names, "optimum - UniVer", "largest", "toys"),
        tuple(rows),
        f"Tokens a cycle, the next token counted; exact for each toy ({document.content['vocab']}"
        f" tokens, draft law {document.content['drafting']}); ± is the standard error over toys.",
        (shown_path(document.path),),
    )


COLUMNS = ("greedy", "univer", "optimum")


def by_topology(document: Document) -> dict[str, list[dict[str, float]]]:
    """Topology -> its toys, in the order of the file."""
    grouped: dict[str, list[dict[str, float]]] = {}
    for row in document.content["rows"]:
        grouped.setdefault(row["topology"], []).append(row)
    return grouped
