"""`python -m univer.bench`: what verification costs, as ratios to reading the logits.

Every figure is a median over repeats of one process, in which all methods take turns, so that a
noisy machine slows all of them alike. Three yardsticks are timed beside the verifiers:

| yardstick | what it does |
|---|---|
| `softmax` | the laws of the inner nodes, target and draft: the floor of whoever has logits |
| `walk` | plain sequential RRSw down one tree, as engines write it |
| `chain sampler` | Hugging Face's speculative sampling of a chain (needs transformers) |

Logits are those of no model: a token's target logit is -s log(u), u uniform, which makes a Zipf law
of exponent s; s differs from row to row, and the draft's logits are the target's plus noise.

Letters: B trees, N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from univer import one_tree
from univer.composition import COMPOSITION
from univer.drafting import DraftTree, draft_tree
from univer.filters import Filters
from univer.from_logits import by_level, verify_logits
from univer.topology import Topology
from univer.verifiers import VERIFIERS, verify

TOPOLOGIES = ("2x5", "3x3", "eagle", "chain:5")
VOCABULARIES = (32_000, 49_152, 128_256)
BATCHES = (1, 8, 64)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EXPONENTS = (1.2, 3.2)  # of the rows' Zipf laws: their best tokens have .15 to .85
NOISE = 0.7  # standard deviation of the draft's logits around the target's
REPEATS = {1: 21, 8: 5, 64: 3}
LEVELS_UP_TO = 32_000  # vocabulary up to which whole levels of a batch are timed as well
DISTINCT = 8  # trees whose rows are made; larger batches repeat them


@dataclass(frozen=True)
class Problem:
    """Logits of B trees, [B, N, V] and [B, I, V], and trees drawn from them by each draft law."""

    topology: Topology
    target: Tensor
    draft: Tensor
    inner: Tensor  # [I]
    trees: dict[str, list[DraftTree]]
    uniforms: list[Tensor]

    @property
    def acceptance(self) -> float:
        """Mean of sum min(p, q) over the internal nodes of the first tree."""
        p, q = (rows[0].double().softmax(-1) for rows in (self.target[:, self.inner], self.draft))
        return torch.minimum(p, q).sum(-1).mean().item()


def problem(
    spec: str, vocab: int, batch: int, dtype: torch.dtype, device: torch.device, repeats: int
) -> Problem:
    """Logits and trees for one line of the table, the same for the same arguments."""
    generator = torch.Generator().manual_seed(0)
    topology = Topology.parse(spec)
    some = min(batch, DISTINCT)

    def repeated(rows: Tensor) -> Tensor:
        return rows.to(device, dtype).repeat(-(-batch // some), 1, 1)[:batch].contiguous()

    low, high = EXPONENTS
    exponents = torch.empty(some, topology.num_nodes, 1).uniform_(low, high, generator=generator)
    target = torch.empty(some, topology.num_nodes, vocab).exponential_(generator=generator)
    target.mul_(exponents)
    inner = torch.tensor(topology.internal)
    draft = target[:, inner]
    draft += NOISE * torch.empty_like(draft).normal_(generator=generator)
    laws = draft.to(dtype).float().softmax(-1)
    rows = topology.draft_rows
    root = torch.zeros(some, dtype=torch.int64)
    trees: dict[str, list[DraftTree]] = {}
    for law in sorted({verifier.drafting for verifier in VERIFIERS.values()}):
        drawn = [
            draft_tree(
                law,
                topology,
                root,
                lambda _, nodes: (laws[:, [rows[v] for v in nodes]], None),
                generator=generator,
            )[0].tokens
            for _ in range(repeats)
        ]
        times = -(-batch // some)
        trees[law] = [
            DraftTree(topology, t.repeat(times, 1)[:batch].to(device).contiguous()) for t in drawn
        ]
    shape = (batch, topology.num_nodes + 1)
    uniforms = [
        torch.rand(shape, generator=generator, dtype=torch.float64).to(device)
        for _ in range(repeats)
    ]
    return Problem(topology, repeated(target), repeated(draft), inner.to(device), trees, uniforms)


def walk(tree: DraftTree, given: Problem, b: int, uniforms: Tensor) -> int:
    """Plain RRSw of tree b from logits, down the tree: the yardstick of engines."""
    topology, tokens = tree.topology, tree.tokens[b].tolist()
    target, draft, numbers = given.target[b], given.draft[b], uniforms.tolist()
    node = 0
    while True:
        p = target[node].float().softmax(-1)
        if topology.children(node):
            q = draft[topology.draft_rows[node]].float().softmax(-1)
        for child in topology.children(node):
            token = tokens[child]
            if token < 0:
                continue
            if numbers[child] * q[token] < p[token]:
                node = child
                break
            p = (p - q).clamp(min=0)
            p = p / p.sum()
            q[token] = 0
            q = q / q.sum()
        else:
            return int(torch.searchsorted(p.cumsum(-1), numbers[-1] * p.sum()))


def nodes_read(name: str, given: Problem, repeat: int) -> float:
    """Internal nodes that the decision opens, a tree."""
    verifier, opened = VERIFIERS[name], 0
    rule = one_tree.RULES[verifier.allocation]

    def counted(*arguments: Any) -> one_tree.Opened:
        nonlocal opened
        opened += 1
        return rule(*arguments)

    one_tree.decide(
        counted,
        COMPOSITION[verifier.composition].conditional,
        given.trees[verifier.drafting][repeat],
        given.target,
        given.draft,
        Filters(),
        given.uniforms[repeat],
    )
    return opened / len(given.target)


Method = Callable[[int], Any]  # a repeat's number -> whatever the method gives


def methods(given: Problem) -> dict[str, Method]:
    """What is timed on a problem, by the name of its line."""
    batch = len(given.target)
    inner_rows = given.target[:, given.inner].contiguous()
    plain = given.trees["without_replacement"]
    found: dict[str, Method] = {
        "softmax": lambda _: (_softmax(inner_rows), _softmax(given.draft)),
        "walk": lambda i: [walk(plain[i], given, b, given.uniforms[i][b]) for b in range(batch)],
    }
    if sampler := _chain_sampler(given):
        found["chain sampler"] = sampler
    for name in VERIFIERS:
        found[name] = partial(_verify_logits, given, name)
        if batch > 1 and given.target.shape[-1] <= LEVELS_UP_TO:
            found[f"{name} by level"] = partial(_by_level, given, name)
    return found


def _verify_logits(given: Problem, name: str, i: int) -> None:
    tree = given.trees[VERIFIERS[name].drafting][i]
    verify_logits(name, tree, given.target, given.draft, uniforms=given.uniforms[i])


def _by_level(given: Problem, name: str, i: int) -> None:
    rule = VERIFIERS[name]
    tree = given.trees[rule.drafting][i]
    by_level(rule, tree, given.target, given.draft, Filters(), given.uniforms[i])


def _softmax(rows: Tensor) -> Tensor:
    return rows.softmax(-1, dtype=torch.float32)


def _chain_sampler(given: Problem) -> Method | None:
    if len(given.topology.leaves) > 1 or len(given.target) > 1:
        return None
    try:
        from transformers.generation.utils import _speculative_sampling
    except ImportError:
        return None
    depth = given.topology.depth
    chains = [tree.tokens for tree in given.trees["without_replacement"]]
    target, draft = given.target.float(), given.draft.float()
    return lambda i: _speculative_sampling(chains[i], draft, depth, target)


def timed(given: Problem, repeats: int, warm: int = 1) -> dict[str, float]:
    """Median milliseconds of each method; they take turns."""
    found = methods(given)
    times: dict[str, list[float]] = {name: [] for name in found}
    for repeat in range(-warm, repeats):
        for name, method in found.items():
            _wait(given.target.device)
            start = time.perf_counter()
            method(max(repeat, 0))
            _wait(given.target.device)
            if repeat >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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


@dataclass(frozen=True)
class Line:
    """One line of the table: medians in milliseconds a call, and inner nodes read a tree."""

    topology: str
    vocab: int
    batch: int
    dtype: str
    acceptance: float
    milliseconds: dict[str, float]
    nodes: dict[str, float]

    def ratio(self, method: str, to: str = "softmax") -> float:
        """A method's time over another's."""
        return self.milliseconds[method] / self.milliseconds[to]


def measure(
    spec: str, vocab: int, batch: int, dtype: str, device: torch.device, repeats: int
) -> Line:
    """One line of the table."""
    given = problem(spec, vocab, batch, DTYPES[dtype], device, repeats)
    nodes = {
        name: statistics.mean(nodes_read(name, given, i) for i in range(min(repeats, 5)))
        for name in VERIFIERS
        if device.type == "cpu"
    }
    return Line(spec, vocab, batch, dtype, given.acceptance, timed(given, repeats), nodes)


def memory(vocab: int, batch: int, device: torch.device) -> dict[str, float | None]:
    """Peak extra memory of each way to verify 2x5, as a share of the inputs' bytes."""
    given = problem("2x5", vocab, batch, torch.float32, device, 1)
    held = given.target.nbytes + given.draft.nbytes
    tree, uniforms = given.trees[VERIFIERS["univer"].drafting][0], given.uniforms[0]
    laws = given.target.softmax(-1), given.draft.softmax(-1)
    calls = {
        "verify": lambda: verify("univer", tree, *laws, uniforms=uniforms),
        "verify_logits": lambda: verify_logits(
            "univer", tree, given.target, given.draft, uniforms=uniforms
        ),
    }
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


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _choice(name: str, default: tuple[Any, ...], kind: click.ParamType[Any]) -> Decorator:
    """An option that may be given several times."""
    return click.option(name, multiple=True, type=kind, default=default, show_default=True)


@click.command(help="Time verification from logits, as ratios to a softmax of the rows it needs.")
@_choice("--topology", TOPOLOGIES, click.STRING)
@_choice("--vocab", VOCABULARIES, click.IntRange(2))
@_choice("--batch", BATCHES, click.IntRange(1))
@_choice("--dtype", tuple(DTYPES), click.Choice(list(DTYPES)))
@click.option("--repeats", type=click.IntRange(1), help="Repeats of each call; default by batch.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path))
def main(
    topology: tuple[str, ...],
    vocab: tuple[int, ...],
    batch: tuple[int, ...],
    dtype: tuple[str, ...],
    repeats: int | None,
    threads: int,
    device: str,
    file: Path | None,
) -> None:
    """Measure every combination, print the table, write it down."""
    torch.set_num_threads(threads)
    where = torch.device(
        "cuda"
        if device == "auto" and torch.cuda.is_available()
        else "cpu"
        if device == "auto"
        else device
    )
    todo = [(t, v, b, d) for t in topology for v in vocab for b in batch for d in dtype]
    lines = []
    console = Console(width=None if Console().is_terminal else 160)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("bench", total=len(todo))
        for spec, size, trees, kind in todo:
            progress.update(task, description=f"{spec} V={size:,} B={trees} {kind}")
            often = repeats or next(
                n for limit, n in REPEATS.items() if trees <= limit or limit == max(REPEATS)
            )
            lines.append(measure(spec, size, trees, kind, where, often))
            progress.advance(task)
    console.print(table(lines))
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
        found = {"about": about, "lines": [asdict(line) for line in lines], "memory": extra}
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
