"""What the theorem report is to check, from the options of its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from univer import Filters, InputError, Topology

PARTS = ("layers", "lengths", "text", "direct", "faults")


@dataclass(frozen=True)
class Plan:
    """What the command was asked for; see its options."""

    parts: tuple[str, ...]
    topologies: dict[str, Topology]
    filters: Filters
    nodes: int
    trees: int
    prompts: int
    cycles: int
    direct_topology: Topology
    runs: tuple[Path, ...]


def planned(
    *,
    parts: str,
    topologies: Sequence[str],
    temperature: float,
    top_k: int,
    top_p: float,
    direct_topology: str,
    runs: Sequence[Path],
    **counts: int,
) -> Plan:
    """The plan of these options.

    Raises:
        InputError: an option that does not fit.
    """
    chosen = tuple(part.strip() for part in parts.split(","))
    for part in chosen:
        if part not in PARTS:
            raise InputError(f"parts: {part!r} is unknown; choose among {', '.join(PARTS)}.")
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name}: expected an integer >= 1, got {count}.")
    shape = Topology.parse(direct_topology)
    if shape.depth < 1:
        raise InputError("direct_topology: a tree without drafts tests nothing.")
    filters = Filters(temperature, top_k, top_p)
    if filters.greedy and {"direct", "faults"} & set(chosen):
        raise InputError("temperature: at 0 the parts direct and faults have no law to test.")
    return Plan(
        parts=chosen,
        topologies={name: Topology.parse(name) for name in topologies},
        filters=filters,
        direct_topology=shape,
        runs=tuple(runs),
        **counts,
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON, without the names of folders around it."""
    shown = {**vars(plan), "filters": asdict(plan.filters), "topologies": list(plan.topologies)}
    shown["direct_topology"] = str(plan.direct_topology)
    return shown | {"runs": [folder.name for folder in plan.runs]}
