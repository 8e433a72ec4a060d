"""Training an EAGLE head: a loop that can be interrupted at any moment.

Every step is a function of seed and step number, so that a run that was interrupted and continued
ends with the same weights as one that was not. Checkpoint and curve are replaced whole.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpu_runs.eagle_learning import acceptance, collate, loss_of, new_network, regress
from gpu_runs.eagle_texts import Lesson
from univer import InputError
from univer.drafters.eagle_network import EagleNetwork

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.csv"


@dataclass(frozen=True)
class Recipe:
    """How a head is trained.

    steps, batch: number of steps, chats a step.
    learning_rate, warmup: of AdamW; linear over `warmup` steps, then a cosine down to zero.
    weight_decay, clip: of AdamW; largest norm of a gradient.
    noise: uniform noise on the input features, in units of their root mean square.
    feature_loss: weight of the smooth-L1 distance of the features.
    top, negatives: top tokens of the target that the loss names; sampled other tokens a batch.
    ridge: strength of the regression's penalty, in units of the mean square of an input.
    final_norm: whether the head ends with an RMSNorm, which starts as the target's.
    measure_every: steps between two points of the held-out curve, at which it is also saved.
    measured: held-out chats of such a point; the last point takes all.
    seed: of everything random.
    """

    steps: int = 2000
    batch: int = 8
    learning_rate: float = 8e-4
    warmup: int = 50
    weight_decay: float = 0.05
    clip: float = 1.0
    noise: float = 0.1
    feature_loss: float = 0.1
    top: int = 48
    negatives: int = 1024
    ridge: float = 1e-3
    final_norm: bool = True
    measure_every: int = 100
    measured: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Point:
    """A point of the curve: the mean loss since the one before (NaN at step 0), the acceptance."""

    step: int
    seconds: float
    loss: float
    acceptance: float


def train(
    target: Any,
    lessons: Sequence[Lesson],
    heldout: Sequence[Lesson],
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    told: Callable[[int, float, Sequence[Point]], None] = lambda *_: None,
) -> tuple[EagleNetwork, list[Point]]:
    """The trained network and its held-out curve.

    Args:
        target: in evaluation mode, on the CPU.
        lessons: what to learn from.
        heldout: what acceptance is measured on.
        recipe: how.
        folder: where checkpoint and curve go; each is replaced whole.
        resume: go on from the folder's checkpoint, if there is one.
        told: called after every step with its number, its loss and the curve.

    Raises:
        InputError: the folder holds a run and `resume` is not set, or another recipe's run.
    """
    network = new_network(target, recipe.final_norm, recipe.seed)
    named = list(network.named_parameters())
    flat = [p for _, p in named if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": recipe.weight_decay},
            {"params": flat, "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )
    state = _restored(folder, recipe, resume)
    if state is None:
        regress(network, target, lessons, recipe.ridge)
        curve = [Point(0, 0.0, math.nan, acceptance(network, target, heldout[: recipe.measured]))]
        step = 0
    else:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        curve, step = [Point(*row) for row in state["curve"]], int(state["step"])
    before, start, losses = curve[-1].seconds, time.perf_counter(), []
    told(step, math.nan, curve)
    while step < recipe.steps:
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(step, recipe)
        network.train()
        batch = collate(_chosen(lessons, step, recipe), recipe.top)
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        loss = loss_of(
            network,
            target,
            batch,
            noise=recipe.noise,
            feature_loss=recipe.feature_loss,
            negatives=recipe.negatives,
            generator=generator,
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        optimizer.step()
        latest = loss.item()
        losses.append(latest)
        step += 1
        if step % recipe.measure_every == 0 or step == recipe.steps:
            judged = heldout if step == recipe.steps else heldout[: recipe.measured]
            rate = acceptance(network, target, judged)
            seconds = before + time.perf_counter() - start
            curve.append(Point(step, seconds, sum(losses) / len(losses), rate))
            losses = []
            _save(folder, recipe, network, optimizer, curve, step)
        told(step, latest, curve)
    return network.eval(), curve


def _schedule(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    share = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * share))


def _chosen(lessons: Sequence[Lesson], step: int, recipe: Recipe) -> list[Lesson]:
    """The chats of a step: every epoch in an order of its own, a last partial batch left out."""
    size = min(recipe.batch, len(lessons))
    epoch, at = divmod(step, len(lessons) // size)
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + 500_000 + epoch)
    order = torch.randperm(len(lessons), generator=generator).tolist()
    return [lessons[i] for i in order[at * size : (at + 1) * size]]


def _restored(folder: Path, recipe: Recipe, resume: bool) -> dict[str, Any] | None:
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    if not resume:
        raise InputError(
            f"folder: {folder} holds a training run; pass --resume to go on with it, or name"
            " another folder."
        )
    state: dict[str, Any] = torch.load(path, weights_only=True)
    ours, theirs = asdict(recipe), state["recipe"]
    if changed := [key for key in ours if ours[key] != theirs.get(key)]:
        what = ", ".join(f"{key} {theirs.get(key)} (now {ours[key]})" for key in changed)
        raise InputError(f"training: the run in {folder} was started with {what}.")
    return state


def _save(
    folder: Path,
    recipe: Recipe,
    network: EagleNetwork,
    optimizer: torch.optim.Optimizer,
    curve: Sequence[Point],
    step: int,
) -> None:
    rows = [tuple(asdict(point).values()) for point in curve]
    state = {
        "recipe": asdict(recipe),
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "curve": rows,
        "step": step,
    }
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([list(asdict(curve[0])), *rows])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{CHECKPOINT}.new"
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / CHECKPOINT)
        new = folder / f"{CURVE}.new"
        new.write_text(buffer.getvalue(), encoding="utf-8")
        os.replace(new, folder / CURVE)
    except (OSError, RuntimeError) as error:  # torch raises the latter for a full disk
        raise InputError(f"folder: cannot write {folder}: {error}.") from error
