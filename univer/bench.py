"""`python -m univer.bench`: what verification costs, as ratios to reading the logits.

Every figure is a median over repeats of one process, in which all methods take turns, so that a
noisy machine slows all of them alike. `univer.bench_verify` has the problems and the yardsticks,
`univer.bench_cycle` the profile of a decoding cycle.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from univer.bench_verify import DTYPES, REPEATS, Line, Problem, measure, problem
from univer.errors import InputError
from univer.from_logits import verify_logits
from univer.topology import Topology
from univer.verifiers import VERIFIERS, verify

TOPOLOGIES = ("2x5", "3x3", "eagle", "chain:5")
VOCABULARIES = (32_000, 49_152, 128_256)
BATCHES = (1, 8, 64)


def peak(call: Callable[[], Any], device: torch.device) -> int | None:
    """Bytes that a call holds at its peak beyond what was held before; None where nobody tells."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return int(torch.cuda.max_memory_allocated(device) - before)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from now
        before = _status("VmRSS")
        call()
        return _status("VmHWM") - before
    except OSError:
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def memory(vocab: int, batch: int, device: torch.device) -> dict[str, float | None]:
    """Peak extra memory of each way to verify 2x5, as a share of the inputs' bytes."""
    _verifications(problem("2x5", 500, 1, torch.float32, device, 1), device)  # loads what is lazy
    return _verifications(problem("2x5", vocab, batch, torch.float32, device, 1), device)


def _verifications(given: Problem, device: torch.device) -> dict[str, float | None]:
    tree, uniforms = given.trees[VERIFIERS["univer"].drafting][0], given.uniforms[0]
    logits = given.target, given.draft
    laws = given.target.softmax(-1), given.draft.softmax(-1)
    calls = {
        "verify": lambda: verify("univer", tree, *laws, uniforms=uniforms),
        "verify_logits": lambda: verify_logits("univer", tree, *logits, uniforms=uniforms),
    }
    held = sum(rows.nbytes for rows in logits)
    peaks = {name: peak(call, device) for name, call in calls.items()}
    return {name: None if bytes_ is None else bytes_ / held for name, bytes_ in peaks.items()}


def table(lines: list[Line]) -> Table:
    """The lines, times as ratios to the softmax yardstick."""
    found = Table(
        title="Time over that of `softmax`; in brackets inner nodes read a tree",
        caption="acc.: mean of sum min(p, q), inner nodes; by level: all trees together, float64",
    )
    columns = list(dict.fromkeys(name for line in lines for name in line.milliseconds))
    columns.remove("softmax")
    for head in ("tree", "V", "B", "dtype", "acc.", "softmax ms", *columns):
        found.add_column(head, justify="left" if head in ("tree", "dtype") else "right")
    for line in lines:
        cells = []
        for name in columns:
            read = f" ({line.nodes[name]:.1f})" if name in line.nodes else ""
            cells.append(f"{line.ratio(name):.2f}{read}" if name in line.milliseconds else "-")
        found.add_row(
            line.topology,
            f"{line.vocab:,}",
            str(line.batch),
            line.dtype,
            f"{line.acceptance:.2f}",
            f"{line.milliseconds['softmax']:.2f}",
            *cells,
        )
    return found


def _cycles(device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of each part of a decoding cycle; nothing without transformers."""
    if find_spec("transformers") is None:
        return {}
    from univer.bench_cycle import cycle_parts, models

    pair = models(device)
    return {spec: cycle_parts(*pair, spec, 9) for spec in ("2x5", "eagle")}


def cycle_table(spec: str, parts: dict[str, float]) -> Table:
    """One cycle's parts, and how much of it is not the models'."""
    from univer.bench_cycle import PARTS, shares

    before, now = shares(parts)
    found = Table(
        title=f"One cycle on {spec}: a model of SmolLM2's shape, an EAGLE head, UniVer",
        caption=f"not the models': {100 * before:.1f} % before, {100 * now:.1f} % now",
    )
    found.add_column("part")
    found.add_column("ms", justify="right")
    for name, said in PARTS.items():
        found.add_row(said, f"{parts[name]:.1f}")
    return found


def _device(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise click.UsageError(f"--device: torch knows no device {name!r} here.") from error


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _choice(
    name: str, default: tuple[Any, ...], kind: click.ParamType[Any], says: str
) -> Decorator:
    """An option that may be given several times."""
    return click.option(
        name, multiple=True, type=kind, default=default, show_default=True, help=says
    )


@click.command(help="Time verification from logits, as ratios to a softmax of the rows it needs.")
@_choice("--topology", TOPOLOGIES, click.STRING, "Shape of the trees; again for more, as below.")
@_choice("--vocab", VOCABULARIES, click.IntRange(2), "Tokens of the vocabulary.")
@_choice("--batch", BATCHES, click.IntRange(1), "Trees a call.")
@_choice("--dtype", tuple(DTYPES), click.Choice(list(DTYPES)), "Of the logits.")
@click.option("--repeats", type=click.IntRange(1), help="Repeats of each call; default by batch.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--cycle/--no-cycle", default=True, help="Profile decoding cycles (transformers).")
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures here.",
)
def main(
    topology: tuple[str, ...],
    vocab: tuple[int, ...],
    batch: tuple[int, ...],
    dtype: tuple[str, ...],
    repeats: int | None,
    threads: int,
    device: str,
    cycle: bool,
    file: Path | None,
) -> None:
    """Measure every combination, print the table, write it down."""
    torch.set_num_threads(threads)
    where = _device(device)
    for spec in topology:
        try:
            if not Topology.parse(spec).internal:
                raise InputError(f"{spec!r} has no drafts, so there is nothing to verify.")
        except InputError as error:
            raise click.UsageError(f"--topology: {error}") from error
    if file is not None:
        try:
            file.open("a").close()
        except OSError as error:
            said = f"--json: {file} cannot be written ({error.strerror})."
            raise click.UsageError(said) from error
    todo = [(t, v, b, d) for t in topology for v in vocab for b in batch for d in dtype]
    lines = []
    console = Console(width=None if Console().is_terminal else 240)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("bench", total=len(todo))
        for spec, size, trees, kind in todo:
            progress.update(task, description=f"{spec} V={size:,} B={trees} {kind}")
            often = repeats or next((n for most, n in REPEATS.items() if trees <= most), 3)
            lines.append(measure(spec, size, trees, kind, where, often))
            progress.advance(task)
    console.print(table(lines))
    cycles = _cycles(where) if cycle else {}
    for spec, parts in cycles.items():
        console.print(cycle_table(spec, parts))
    extra = memory(max(vocab), 8, where)
    for name, share in extra.items():
        said = (
            "not measured on this system" if share is None else f"{100 * share:.1f} % of the inputs"
        )
        console.print(f"peak extra memory of {name}, 2x5, B = 8, V = {max(vocab):,}: {said}")
    if file is not None:
        about = {
            "torch": torch.__version__,
            "machine": platform.machine(),
            "device": str(where),
            "threads": threads,
        }
        found = {
            "about": about,
            "lines": [asdict(line) for line in lines],
            "cycles": cycles,
            "memory": extra,
        }
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
