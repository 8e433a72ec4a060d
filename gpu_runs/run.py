"""A whole run: models, plan, folder, then unit after unit, written as they are done."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console

from gpu_runs.configuration import Config
from gpu_runs.folder import begin, claim, device_name
from gpu_runs.loading import Pair, check_room, encoded, load_pair, load_prompts
from gpu_runs.models import usable_device
from gpu_runs.parts import write_part
from gpu_runs.plan import Unit, units
from gpu_runs.progress import Ticker
from gpu_runs.ranks import Ranks
from gpu_runs.separate import PLAIN
from gpu_runs.units import Row, rows_of_unit


def run(config: Config, *, resume: bool, ranks: Ranks, console: Console) -> None:
    """Do what is left of the run in the configuration's folder.

    Args:
        config: the run; its folder is made if need be.
        resume: go on with what the folder holds.
        ranks: this process and the others; each does its share.
        console: where this rank reports.

    Raises:
        InputError: something does not fit or cannot be written; rows written before stay.
        SystemExit: as `Ranks.together` does.
    """
    folder = Path(config.folder).expanduser()
    lock = ranks.together(lambda: claim(folder, resume=resume) if ranks.first else None)
    try:
        _run(config, folder, ranks, console)
    finally:
        if lock is not None:
            lock.release()


def _run(config: Config, folder: Path, ranks: Ranks, console: Console) -> None:
    def prepare() -> tuple[tuple[Unit, ...], Pair, dict[str, tuple[int, ...]], torch.device]:
        device = usable_device(ranks.device(config.device))
        if config.threads:
            torch.set_num_threads(config.threads)
        plan = units(config, load_prompts(config.questions))
        pair = load_pair(config, device, lambda line: console.print(f"{line} ...", markup=False))
        needed = {unit.prompt.prompt_id: unit.prompt for unit in plan}
        prompts = encoded(list(needed.values()), pair.target, config.max_prompt_tokens)
        check_room(config, pair, prompts)
        return plan, pair, prompts, device

    plan, pair, prompts, device = ranks.together(prepare)
    prints = pair.fingerprints()
    ranks.agree((asdict(config), [unit.name for unit in plan], prompts, prints))
    facts = {"device": device_name(device), "ranks": ranks.world, "fingerprints": prints}
    done, note = ranks.from_first(lambda: begin(folder, config, facts, prompts))
    left = [unit for unit in plan if unit.name not in done]
    mine = left[ranks.rank :: ranks.world]
    if note:
        console.print(f"more than when the run began: {note}", highlight=False, soft_wrap=True)
    console.print(
        f"{len(plan)} units, {len(plan) - len(left)} done before, {len(mine)} for rank"
        f" {ranks.rank} of {ranks.world}; {config.mode}, target {config.target} on {device},"
        f" drafter {config.drafter.kind}, {config.tokens} tokens a unit",
        highlight=False,
        soft_wrap=True,
    )
    _work(config, folder, ranks.rank, console, pair, mine, prompts)
    ranks.wait()
    console.print(f"done: {len(plan)} units in {folder}", highlight=False, soft_wrap=True)


def _work(
    config: Config,
    folder: Path,
    rank: int,
    console: Console,
    pair: Pair,
    mine: Sequence[Unit],
    prompts: Mapping[str, Sequence[int]],
) -> None:
    waiting: list[Row] = []  # rows of whole units, not yet written
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    written = time.monotonic()

    def write() -> None:
        if waiting:
            write_part(folder, rank, waiting)
            waiting.clear()

    with Ticker(console, config.mode, "units", len(mine)) as ticker:
        for number, unit in enumerate(mine, start=1):
            try:
                rows = rows_of_unit(config, pair, unit, prompts[unit.prompt.prompt_id])
            except KeyboardInterrupt:
                write()
                raise
            waiting += rows
            if time.monotonic() - written >= config.write_seconds or number == len(mine):
                write()
                written = time.monotonic()
            ticker.tick(number, number, running(unit, rows, seen))


def running(unit: Unit, rows: Sequence[Row], seen: dict[str, dict[str, list[float]]]) -> str:
    """Acceptance lengths so far in the unit's setting; its rows are added to `seen`."""
    if unit.writer == PLAIN:
        return "plain decoding"
    lengths = seen[f"{unit.topology} T={unit.temperature:g}"]
    for row in rows:
        lengths[row["verifier"]].append(1 + row["expected_accepted"])
    means = " ".join(f"{name} {mean(values):.2f}" for name, values in lengths.items())
    return f"{unit.topology} T={unit.temperature:g}: {means}"
