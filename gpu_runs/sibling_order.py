"""`python -m gpu_runs.sibling_order`: UniVer's length on real trees by the order of siblings.

Any order of a node's children that is settled before its grandchildren are drawn keeps the law
(SPEC 7; reference/sibling_order.py shows it exactly, and what orders bring on toys). Here all
orders judge the same trees, so that their differences have no noise from drafting or deciding:

| order | siblings are tried |
|---|---|
| drawn | as they were drawn, the sampled one last |
| reversed, sampled_first | the other way round; the sampled one before the fixed ones |
| heavy_first, light_first | by falling or rising mass |
| deep_first | by falling depth of their subtrees, then as drawn |
| looked_ahead | as best for the accepted mass of the children's own layers; drawn, if m > 4 |

Letters: N nodes, V vocabulary, m arity.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import isfinite
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpu_runs.command import check_threads, one_sentence, use_threads
from gpu_runs.demo import encoded_prompts
from gpu_runs.models import EMBEDDED, usable_device
from gpu_runs.named_drafters import DRAFTER_HELP, SHIPPED, load_pair
from gpu_runs.paired import clustered_mean
from gpu_runs.progress import Ticker
from gpu_runs.results import check_writable, write_json
from gpu_runs.theorems_contexts import contexts
from univer import Filters, InputError, Topology
from univer.allocation import ALLOCATION
from univer.decoding import Drawn, eos_ids, seeded
from univer.rows import normalise, total, without

DRAWN = "drawn"
DIGITS = 7  # of a length in the results
MOST_LOOKED_AHEAD = 4  # children of a node whose m! orders are all tried


@dataclass(frozen=True)
class Place:
    """What is known at a node before its grandchildren are drawn.

    masses: a(u) of the present children, in draw order.
    sampled: whether the last of them was drawn.
    depths: of their subtrees.
    gain: (child's position, scale) -> accepted mass of the child's own layer, 0 for a leaf.
    """

    masses: Sequence[float]
    sampled: bool
    depths: Sequence[int]
    gain: Callable[[int, float], float]


def scales(masses: Sequence[float], order: Iterable[int]) -> Iterator[tuple[int, float, float]]:
    """Each child's position, the chance that it is tried and its scale, in this order."""
    left = 1.0
    for j in order:
        yield j, left, min(1.0, masses[j] / left) if left > 0 else 0.0
        left = max(0.0, left - masses[j])


def _as_drawn(place: Place) -> list[int]:
    return list(range(len(place.masses)))


def _looked_ahead(place: Place) -> list[int]:
    if len(place.masses) > MOST_LOOKED_AHEAD:
        return _as_drawn(place)

    def worth(order: Iterable[int]) -> float:
        return sum(left * place.gain(j, scale) for j, left, scale in scales(place.masses, order))

    return list(max(permutations(_as_drawn(place)), key=worth))


ORDERS: dict[str, Callable[[Place], list[int]]] = {
    DRAWN: _as_drawn,
    "reversed": lambda place: _as_drawn(place)[::-1],
    "sampled_first": lambda place: sorted(
        _as_drawn(place), key=lambda j: not (place.sampled and j == len(place.masses) - 1)
    ),
    "heavy_first": lambda place: sorted(_as_drawn(place), key=lambda j: -place.masses[j]),
    "light_first": lambda place: sorted(_as_drawn(place), key=lambda j: place.masses[j]),
    "deep_first": lambda place: sorted(_as_drawn(place), key=lambda j: -place.depths[j]),
    "looked_ahead": _looked_ahead,
}


def mirrored(topology: Topology) -> Topology:
    """The topology with the children of every node the other way round."""
    parents, ahead = [-1], [(0, 0)]
    for node, new in ahead:  # grows while it is read, in level order
        for child in reversed(topology.children(node)):
            ahead.append((child, len(parents)))
            parents.append(new)
    return Topology.from_parents(parents)


@dataclass(frozen=True)
class JudgedTree:
    """One `top_residual` tree and what UniVer makes of it.

    topology, tokens: the tree, tokens [N].
    target: float64 [N, V]. draft: float64 [I, V].
    """

    topology: Topology
    tokens: Sequence[int]
    target: Tensor
    draft: Tensor

    @staticmethod
    def of(drawn: Drawn) -> JudgedTree:
        """The tree of a context."""
        target, draft = (
            normalise(rows[0].cpu().double()) for rows in (drawn.target_probs, drawn.draft_probs)
        )
        return JudgedTree(drawn.tree.topology, drawn.tree.tokens[0].tolist(), target, draft)

    def height(self, node: int) -> int:
        """Levels below a node."""
        slots = self.topology.children(node)
        return 1 + max(map(self.height, slots)) if slots else 0

    def expected_accepted(self, order: Callable[[Place], list[int]]) -> float:
        """Expected number of accepted tokens given the tree, exact."""
        return self._below(0, 1.0, 0, order)[1]

    def _below(
        self, node: int, scale: float, depth: int, order: Callable[[Place], list[int]]
    ) -> tuple[float, float]:
        """Chance that nothing at or below a node is accepted, and its part of the length."""
        slots = self.topology.children(node)
        if not slots:
            return 1 - scale, depth * scale
        tokens = torch.tensor([[self.tokens[u] for u in slots]])
        row = self.topology.draft_rows[node]
        out = ALLOCATION["ot"].allocate(
            torch.tensor([scale], dtype=torch.float64),
            self.target[node][None],
            self.draft[row][None],
            tokens,
        )
        masses = out.child_acceptance[0, tokens[0] >= 0].tolist()
        present = [u for u in slots if self.tokens[u] >= 0]
        place = Place(
            masses,
            bool(tokens[0, -1] >= 0),
            [self.height(u) for u in present],
            lambda j, s: self._layer_mass(present[j], s),
        )
        alive, length = 1.0, 0.0
        for j, _, chance in scales(masses, order(place)):
            failed, part = self._below(present[j], chance, depth + 1, order)
            length += alive * part
            alive *= failed
        residual = float(total(out.residual)[0])
        beyond = residual + float(out.rejection_mass[0])
        kept = 1.0 if node == 0 else residual / beyond if beyond > 0 else 0.0
        return alive * (1 - kept), length + alive * kept * depth

    def _layer_mass(self, node: int, scale: float) -> float:
        """Expected accepted mass of a node's own layer (Eq. 10)."""
        slots = self.topology.children(node)
        if not slots:
            return 0.0
        p, q = scale * self.target[node], self.draft[self.topology.draft_rows[node]]
        fixed = torch.tensor([[self.tokens[u] for u in slots[:-1]]], dtype=torch.int64)
        rest = normalise(without(q[None], fixed))[0]
        at_fixed = p[fixed[fixed >= 0]].sum()
        return float(at_fixed + torch.minimum(p, rest).sum())


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--target", default=EMBEDDED, help="smollm2 (embedded), a folder or hub id.")
@click.option("--drafter", default=SHIPPED, help=DRAFTER_HELP)
@click.option("--topology", "topologies", multiple=True, default=("2x5", "3x3", "eagle"))
@click.option(
    "--contexts", "number", default=240, help="Contexts, a tree of each topology in each."
)
@click.option("--temperature", default=1.0, help="For draft and target alike.")
@click.option("--seed", default=0, help="Of all random numbers.")
@click.option("--threads", default=0, help="CPU threads; 0 leaves torch's choice.")
@click.option("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results here.")
def main(output: Path | None, **options: Any) -> None:
    """Compare orders of siblings on a real model's trees, each topology mirrored as well."""
    with one_sentence("interrupted; nothing was written."):
        if output is not None:
            check_writable(output)
        results = run(**options)
        if output is not None:
            write_json(output, results)
    sys.exit(0)


def run(
    *,
    target: str,
    drafter: str,
    topologies: Sequence[str],
    number: int,
    temperature: float,
    seed: int,
    threads: int,
    device: str,
) -> dict[str, Any]:
    """Draw the trees, judge them in every order, show the table, and return the rows.

    Raises:
        InputError: an option that does not fit, or a model that cannot be loaded.
    """
    if number < 1:
        raise InputError(f"contexts: expected at least 1, got {number}.")
    check_threads(threads)
    use_threads(threads)
    shapes = {name: Topology.parse(name) for name in topologies}
    for name, shape in shapes.items():
        if not shape.internal:
            raise InputError(f"topology: {name!r} has no drafts to order; give a tree.")
    turned = {f"{name}, mirrored": mirrored(shape) for name, shape in shapes.items()}
    shapes |= {name: shape for name, shape in turned.items() if shape not in shapes.values()}
    console = Console()
    loaded, source = load_pair(target, drafter, usable_device(device), console)
    found = contexts(
        loaded.model,
        source,
        encoded_prompts(loaded),
        shapes,
        filters=Filters(temperature),
        ends=eos_ids(None, loaded.model),
        generator=seeded(seed),
    )
    rows: list[dict[str, Any]] = []
    with Ticker(console, "trees", "contexts", number) as ticker:
        for context, done in zip(found, range(1, number + 1), strict=False):
            for name, drawn in context.drawn.items():
                tree = JudgedTree.of(drawn)
                lengths = {
                    key: round(tree.expected_accepted(order), DIGITS)
                    for key, order in ORDERS.items()
                }
                rows.append({"topology": name, "prompt_id": context.prompt_id, **lengths})
            ticker.tick(done, done, f"{len(rows)} trees")
    console.print(table(rows))
    return {
        "command": "python -m gpu_runs.sibling_order",
        "target": target,
        "drafter": Path(drafter).name,
        "temperature": temperature,
        "seed": seed,
        "torch": torch.__version__,
        "summary": [
            {"topology": name, "order": key, "mean": mean, "error": error, "trees": trees}
            for name, key, mean, error, trees in summary(rows)
        ],
        "rows": rows,
    }


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, float, float, int]]:
    """Topology, order, mean and standard error (clustered by prompt), trees.

    For the order of drawing it is the expected number of accepted tokens, for the others the gain.
    """
    for name in dict.fromkeys(row["topology"] for row in rows):
        here = [row for row in rows if row["topology"] == name]
        prompts = [row["prompt_id"] for row in here]
        for key in ORDERS:
            values = [row[key] - (row[DRAWN] if key != DRAWN else 0.0) for row in here]
            yield name, key, *clustered_mean(values, prompts), len(here)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Lengths and gains by topology and order."""
    shown = Table(
        caption="accepted tokens a cycle, exact given the tree; gains paired, +- clustered"
    )
    for header in ("topology", "order", "accepted or gain", "trees"):
        shown.add_column(header)
    for name, key, mean, error, trees in summary(rows):
        sign = "" if key == DRAWN else "+"
        spread = f" +- {error:.4f}" if isfinite(error) else ""  # none of a single prompt
        shown.add_row(name, key, f"{mean:{sign}.4f}{spread}", str(trees))
    return shown


if __name__ == "__main__":
    main()
