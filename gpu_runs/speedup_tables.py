"""What `gpu_runs.speedup` shows: modelled beside measured, and what other machines would see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.box import ASCII, SIMPLE
from rich.table import Table

from gpu_runs.speedup_measured import Measured
from univer import Topology
from univer.cost_model import PLAIN, Choice, Costs, model_speeds

HF_PLAIN = "Hugging Face plain"
LARGE = Topology.parse("2x5").num_nodes
DRAFT_STEPS = (0.01, 0.03, 0.1, 0.3)
LARGE_FORWARDS = (1.0, 1.5, 2.0, 3.0, 5.0)
HEAD = ("forward", "draft step", "tokens/cycle", "", "tokens/s", "speed-up", "", "pays below")
UNDER = ("/ 1 token", "/ 1 token", "modelled", "measured", "measured", "modelled", "measured", "")


def pooled(choices: Sequence[Choice]) -> Choice:
    """One table from those of several texts: all lengths, medians of the costs."""
    lengths, costs = {}, {}
    for rows in zip(*(choice.rows for choice in choices), strict=True):
        shape, parts = rows[0].topology, [asdict(row.costs) for row in rows]
        lengths[shape] = [length for row in rows for length in row.lengths]
        costs[shape] = Costs(**{key: median(part[key] for part in parts) for key in parts[0]})
    return model_speeds(lengths, costs)


def side_by_side(
    title: str, choice: Choice, measured: Mapping[str, Measured], *, ascii_only: bool
) -> Table:
    """A row for each way of decoding; speed-ups are over our own plain decoding.

    Args:
        title: the drafter.
        choice: the model's rows.
        measured: by topology, and by names of other ways, which have no model.
        ascii_only: no line-drawing characters.
    """
    table = Table(box=ASCII if ascii_only else SIMPLE, title=title)
    table.add_column("way of decoding\n")
    for head, under in zip(("drafts", *HEAD), ("", *UNDER), strict=True):
        table.add_column(f"{head}\n{under}", justify="right")
    modelled = {str(row.topology): row for row in choice.rows}
    plain = measured[str(PLAIN)].tokens_per_second
    for way, found in measured.items():
        speed = found.tokens_per_second
        cells = ["-"] * 9
        cells[4:6], cells[7] = [f"{found.length:.2f}", f"{speed:.2f}"], f"{speed / plain:.2f}"
        if (row := modelled.get(way)) is not None:
            cells[:4] = [
                str(row.topology.num_nodes - 1),
                f"{row.forward_ratio:.2f}",
                f"{row.draft_ratio:.2f}",
                f"{row.length:.2f} +- {row.length_error:.2f}",
            ]
            cells[6] = f"{row.speed_up:.2f}"
            if row.topology != PLAIN:
                cells[8] = f"{row.pays_below:.2f}" if row.pays_below > 1 else "nowhere"
        table.add_row(way, *cells)
    return table


def elsewhere(choice: Choice, draft_step: float, large_forward: float) -> tuple[Topology, float]:
    """The fastest topology on another machine and its speed-up, with the lengths seen here.

    Args:
        choice: the model's rows; their lengths are read, not their costs.
        draft_step: a level's drafting over a forward of one token.
        large_forward: the forward of 63 tokens over that of one; between them costs rise evenly.
            Verification and caches are left out.
    """
    speeds = {}
    for row in choice.rows:
        drafts = row.topology.num_nodes - 1
        forward = 1 + (large_forward - 1) * drafts / (LARGE - 1)
        speeds[row.topology] = row.length / (forward + draft_step * row.topology.depth)
    best = max(speeds, key=lambda topology: speeds[topology])
    return best, speeds[best]


def elsewhere_table(title: str, choice: Choice, *, ascii_only: bool) -> Table:
    """`elsewhere` over a grid."""
    box = ASCII if ascii_only else SIMPLE
    table = Table(box=box, title=f"{title} elsewhere: the fastest topology, its speed-up")
    table.add_column("draft step / 1 token", justify="right")
    for forward in LARGE_FORWARDS:
        table.add_column(f"{LARGE}-token forward {forward:g}", justify="right")
    for step in DRAFT_STEPS:
        found = [elsewhere(choice, step, forward) for forward in LARGE_FORWARDS]
        table.add_row(f"{step:g}", *(f"{shape} {speed:.2f}" for shape, speed in found))
    return table


def as_json(choice: Choice, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """All numbers of the tables, and those they come from."""
    rows = [
        {
            "topology": str(row.topology),
            "nodes": row.topology.num_nodes,
            "depth": row.topology.depth,
            "length": row.length,
            "length_error": row.length_error,
            "trees": len(row.lengths),
            **asdict(row.costs),
            "forward_ratio": row.forward_ratio,
            "draft_ratio": row.draft_ratio,
            "tokens_per_second": row.tokens_per_second,
            "speed_up": row.speed_up,
            "pays_below": row.pays_below,
        }
        for row in choice.rows
    ]
    plain = measured[str(PLAIN)].tokens_per_second
    texts = {
        way: {
            **asdict(found),
            "length": found.length,
            "tokens_per_second": found.tokens_per_second,
            "speed_up": found.tokens_per_second / plain,
        }
        for way, found in measured.items()
    }
    grid = [
        {
            "draft_step": step,
            "large_forward": forward,
            "topology": str(best[0]),
            "speed_up": best[1],
        }
        for step in DRAFT_STEPS
        for forward in LARGE_FORWARDS
        for best in [elsewhere(choice, step, forward)]
    ]
    return {
        "modelled": rows,
        "chosen": str(choice.topology),
        "reason": choice.reason(),
        "measured": texts,
        "elsewhere": grid,
    }
