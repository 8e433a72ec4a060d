"""Theorem 4 at fixed prompts: sampled first and second tokens against the model's exact law.

Every cycle starts at the prompt, on a real draft tree, and goes through the real drafting and
verifying; the model's rows come from a memo. At a prompt, and at each first token that many outputs
go beyond, the e-test of STATS 3 judges the next token: the most probable ones, and the rest as one
cell. Planted faults (stattests) go the same way and must be caught.

Letters: K cells, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_runs.tables import LABELS
from gpu_runs.theorems_findings import Finding
from gpu_runs.theorems_memo import PrefixMemo
from stattests.budget import ALPHA_RUN, BETA
from stattests.etest import combine, concentration, detectable_tv, log_e, required_n
from stattests.faults import FAULTS
from stattests.planting import plant
from stattests.rao_blackwell import next_masses
from univer import PAPER, VERIFIERS, Topology, Verifier, stop_law, verify

CELLS = 32  # the 31 most probable tokens, and the rest
BATCH = 16  # cycles a call: their target rows are 22 MB at 49,152 tokens and seven nodes
PILOT = 512  # cycles that find the first tokens to be looked behind; they are not counted
LEAST_VISITS = 0.1  # share of outputs that go beyond a first token that is looked behind
FAULT_TV = 0.1  # what a planted fault's bias must be at the least
PLANTED = ("residual-floor-1e-3", "draft-row-of-parent", "surplus-unscaled")

Progress = Callable[[int], None]  # cycles run since the last call


@dataclass(frozen=True)
class Box:
    """What is tested: a name, the draft law, and the two functions of a verifiers module."""

    name: str
    drafting: str
    verify: Callable[..., Any]
    stop_law: Callable[..., Any]


def box_of(name: str, verifier: Verifier, module: Any = None) -> Box:
    """A cell of the grid, as the real module knows it or another one."""
    decide, law = (verify, stop_law) if module is None else (module.verify, module.stop_law)
    return Box(name, verifier.drafting, partial(decide, verifier), partial(law, verifier))


def planted(name: str) -> Box:
    """A fault of the catalogue, which draws its trees as its verifier does."""
    fault = next(fault for fault in FAULTS if fault.name == name)
    module: Any = plant(*fault.patches)["univer.verifiers"]
    return box_of(f"{name} in {fault.base}", module.VERIFIERS[fault.base], module)


@dataclass(frozen=True)
class Place:
    """A prefix at which next tokens are counted.

    row: of the memo's target laws; 0 is the prompt itself.
    cell: the cell of every token, int64 [V].
    null: the law of the cells, [K].
    forbidden: tokens that cannot come, bool [V].
    visits: share of the outputs that go beyond it, from the pilot.
    """

    row: int
    cell: Tensor
    null: NDArray[np.float64]
    forbidden: Tensor
    visits: float

    @staticmethod
    def at(memo: PrefixMemo, row: int, visits: float) -> Place:
        """The most probable tokens there, and the rest."""
        law = memo.target[row].double()
        law = law / law.sum()
        best = law.topk(min(CELLS - 1, len(law))).indices
        cell = torch.full((len(law),), len(best))
        cell[best] = torch.arange(len(best))
        null = torch.zeros(len(best) + 1, dtype=torch.float64).scatter_add(0, cell, law)
        return Place(row, cell, null.numpy(), memo.target[row] <= 0, visits)

    @property
    def cells(self) -> int:
        """How many can come."""
        return int((self.null > 0).sum())


@dataclass(frozen=True)
class Sampled:
    """log10 E after n cycles, and the TV at one place that as many as planned would have shown."""

    n: int
    log10_e: float
    reach: float


def outputs(
    memo: PrefixMemo, box: Box, topology: Topology, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """First and second tokens of so many cycles, int64 [batch] each; -1: there was no second."""
    tree, target, draft = memo.trees(box.drafting, topology, batch, generator)
    uniforms = torch.rand(batch, topology.num_nodes + 1, dtype=torch.float64, generator=generator)
    tokens = box.verify(tree, target, draft, uniforms=uniforms).tokens
    return tokens[:, 0], tokens[:, 1]


def places(
    memo: PrefixMemo, box: Box, topology: Topology, generator: torch.Generator
) -> list[Place]:
    """The prompt, and the first tokens that a pilot's outputs often go beyond."""
    passed = []
    for _ in range(PILOT // BATCH):
        first, second = outputs(memo, box, topology, BATCH, generator)
        passed.append(first[second >= 0])
    tokens, counts = torch.cat(passed).unique(return_counts=True)
    often = [
        Place.at(memo, int(memo.slots(token)), int(count) / PILOT)
        for token, count in zip(tokens, counts, strict=True)
        if count >= LEAST_VISITS * PILOT
    ]
    return [Place.at(memo, 0, 1.0), *(place for place in often if place.cells > 1)]


def sample(
    memos: Sequence[PrefixMemo],
    box: Box,
    topology: Topology,
    planned: int,
    alpha: float,
    generator: torch.Generator,
    progress: Progress,
) -> Sampled:
    """So many cycles at each prompt in turn, or until log E crosses or a forbidden token comes.

    Args:
        memos: one a prompt.
        box: what is tested.
        topology: the shape of every tree.
        planned: cycles a prompt.
        alpha: chance that a lossless verifier is accused.
        generator: where the random numbers come from.
        progress: told of every batch.
    """
    found = [(memo, places(memo, box, topology, generator)) for memo in memos]
    number = sum(len(row) for _, row in found)
    # One place alone must be able to speak: `combine` takes half of the mean over places.
    own = alpha / (2 * number)
    most = max(place.cells for _, row in found for place in row)
    delta = detectable_tv(planned, most, own)
    counts = [[np.zeros(len(place.null)) for place in row] for _, row in found]
    n, value = 0, 0.0
    for _ in range(ceil(planned / BATCH)):
        for (memo, row), seen in zip(found, counts, strict=True):
            first, second = outputs(memo, box, topology, BATCH, generator)
            after = memo.slots(torch.where(second >= 0, first, -1))  # drafted ones, all known
            for place, x in zip(row, seen, strict=True):
                here = first if place.row == 0 else second[(after == place.row) & (second >= 0)]
                if place.forbidden[here].any():
                    return Sampled(n + BATCH, inf, delta)
                x += np.bincount(place.cell[here].numpy(), minlength=len(x))
            n += BATCH
            progress(BATCH)
        value = combine(
            [
                log_e(x, place.null, concentration(place.cells, place.visits, delta))
                for (_, row), seen in zip(found, counts, strict=True)
                for place, x in zip(row, seen, strict=True)
                if place.cells > 1
            ]
        )
        if value >= log(1 / alpha):
            break
    return Sampled(n, value / log(10), delta)


def first_token_tv(
    memo: PrefixMemo, box: Box, topology: Topology, generator: torch.Generator
) -> tuple[float, float]:
    """A TV that the first token's law has at least, and its standard error.

    Decisions are integrated exactly, so that the trees alone are noise. Of PILOT drawn trees one
    half says which cells come too often, the other how much too often: that is never more than the
    TV on average, whatever the noise.
    """
    place = Place.at(memo, 0, 1.0)
    laws = []
    for _ in range(PILOT // BATCH):
        tree, target, draft = memo.trees(box.drafting, topology, BATCH, generator)
        law = box.stop_law(tree, target, draft)
        masses = next_masses(topology, tree.tokens, law.stop_probs, law.next_token_probs())[:, 0]
        cells = torch.zeros(BATCH, len(place.null), dtype=torch.float64)
        laws.append(cells.index_add(1, place.cell, masses))
    half = len(laws) // 2
    chosen, judged = (torch.cat(part) for part in (laws[:half], laws[half:]))
    often = chosen.mean(0) > torch.from_numpy(place.null)
    excess = judged[:, often].sum(1) - place.null[often.numpy()].sum()
    return float(excess.mean()), float(excess.std() / len(excess) ** 0.5)


def direct_findings(
    memos: Sequence[PrefixMemo],
    topology: Topology,
    cycles: int,
    generator: torch.Generator,
    progress: Progress,
    boxes: Mapping[str, Box] | None = None,
) -> list[Finding]:
    """The paper's four verifiers, `cycles` each over all prompts together."""
    tested = boxes or {name: box_of(name, VERIFIERS[name]) for name in PAPER}
    alpha = ALPHA_RUN / len(tested)
    rows = []
    for name, box in tested.items():
        each = ceil(cycles / len(memos))
        found = sample(memos, box, topology, each, alpha, generator, progress)
        alarm = -log(alpha) / log(10)
        rows.append(
            Finding(
                f"Theorem 4, first two tokens of {LABELS.get(name, name)} on {topology},"
                f" {len(memos)} prompts",
                f"log10 E {found.log10_e:+.1f}; could have caught a TV of {found.reach:.3f} at one"
                " prompt",
                f"< {alarm:.1f}",
                found.log10_e,
                found.n,
                "cycles",
                found.log10_e < alarm,
                f"power {1 - BETA:g}, false alarms {ALPHA_RUN:g} over all verifiers",
            )
        )
    return rows


def fault_findings(
    memo: PrefixMemo, topology: Topology, generator: torch.Generator, progress: Progress
) -> list[Finding]:
    """Planted faults at one prompt: the size of each one's bias, and after how many cycles it was
    caught; it must be, within the cycles that a TV of FAULT_TV takes.
    """
    alpha = ALPHA_RUN / len(PLANTED)
    most = required_n(CELLS, FAULT_TV, alpha / 4)
    rows = []
    for name in PLANTED:
        box = planted(name)
        tv, error = first_token_tv(memo, box, topology, generator)
        found = sample([memo], box, topology, most, alpha, generator, progress)
        caught = found.log10_e >= -log(alpha) / log(10)
        rows.append(
            Finding(
                f"planted fault {box.name}: TV >= {tv:.2f} +- {error:.2f} at the first token",
                f"{'caught' if caught else 'missed'}, log10 E {found.log10_e:+.1f}",
                f"caught within {most:,} cycles",
                tv,
                found.n,
                "cycles",
                caught,
                "" if tv >= FAULT_TV else f"not shown to have a TV of {FAULT_TV:g} at this prompt",
            )
        )
    return rows
