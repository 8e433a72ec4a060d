"""What verification from logits costs on a device: kernels, plain path, and two yardsticks.

| time | of |
|---|---|
| kernels | `univer.fused.verify_logits_fused`, with its checks and its one synchronisation |
| replayed | the same launches as a CUDA graph: what is left without the host's part |
| plain | `verify_logits` in plain torch, the oracle; its decisions must be the same |
| softmax | of the inner nodes' target and draft rows: anyone's price who starts from logits |
| floor | those rows read once, at the rate at which this device copies |

All in one process, one after the other in each round, medians over rounds; before each the cache is
flushed, so that rows come from memory. Part of `python -m gpu_runs.device_check`.

Letters: B trees, N nodes, I inner nodes, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

from gpu_runs.theorems_findings import Finding
from univer import (
    VERIFIERS,
    DraftTree,
    Filters,
    Topology,
    VerifyOutput,
    draft_tree,
    fused,
    verify_logits,
)
from univer.indices import columns, indices

VERIFIER = VERIFIERS["univer"]
SHAPES = ("2x5", "eagle")
BATCHES = (1, 8, 64)
VOCABULARY = 128_256
DTYPES = (torch.float32, torch.bfloat16)
ROUNDS = 20
FLUSHED = 2**28  # bytes written between two calls: several times the largest cache
# Masses are float32: of 64 trees with some 100 thresholds one decision in 1,000 runs may differ.
DIFFERENT = 1


def findings(
    device: torch.device, vocabulary: int = VOCABULARY, batches: Sequence[int] = BATCHES
) -> Iterator[Finding]:
    """One row a shape, batch and dtype; nothing where the kernels do not run."""
    if not fused.runs_kernels(device):
        return
    rate = copy_rate(device)
    for shape in SHAPES:
        for batch in batches:
            for dtype in DTYPES:
                yield measured(Topology.parse(shape), batch, vocabulary, dtype, device, rate)


def copy_rate(device: torch.device) -> float:
    """Bytes a second that a copy on the device reads and writes together."""
    source = torch.zeros(FLUSHED, dtype=torch.uint8, device=device)
    copied = torch.empty_like(source)
    (seconds,) = medians(device, [lambda: copied.copy_(source)])
    return 2 * FLUSHED / seconds


def medians(device: torch.device, calls: Sequence[Callable[[], object]]) -> list[float]:
    """The median time of each call in seconds, the calls taking turns."""
    scratch = torch.empty(FLUSHED, dtype=torch.uint8, device=device)
    seconds: list[list[float]] = [[] for _ in calls]
    for round_ in range(ROUNDS + 2):
        for times, call in zip(seconds, calls, strict=True):
            scratch.fill_(round_)
            synchronise(device)
            start = time.perf_counter()
            call()
            synchronise(device)
            times.append(time.perf_counter() - start)
    return [median(times[2:]) for times in seconds]  # the first two compile and allocate


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def drawn(
    topology: Topology, batch: int, vocabulary: int, dtype: torch.dtype, device: torch.device
) -> tuple[DraftTree, Tensor, Tensor, Tensor]:
    """Trees, logits and uniforms; the draft's logits are the target's plus noise."""
    generator = torch.Generator(device).manual_seed(0)

    def rand(nodes: int) -> Tensor:
        return torch.randn(batch, nodes, vocabulary, generator=generator, device=device)

    inner = indices(topology, device).internal
    target = 3 * rand(topology.num_nodes)
    draft = (columns(target, inner) + rand(len(topology.internal))).to(dtype)
    rows = {node: row for row, node in enumerate(topology.internal)}
    tree, _ = draft_tree(
        VERIFIER.drafting,
        topology,
        torch.zeros(batch, dtype=torch.int64, device=device),
        lambda _, nodes: (Filters()(draft[:, [rows[v] for v in nodes]]), None),
        generator=generator,
    )
    uniforms = torch.rand(
        batch, topology.num_nodes + 1, generator=generator, dtype=torch.float64, device=device
    )
    return tree, target.to(dtype), draft, uniforms


def plain(tree: DraftTree, target: Tensor, draft: Tensor, uniforms: Tensor) -> VerifyOutput:
    """`verify_logits` without the kernels."""
    with patch.object(fused, "applies", lambda *_: False):
        return verify_logits(VERIFIER, tree, target, draft, uniforms=uniforms)


def replayed(
    tree: DraftTree, target: Tensor, draft: Tensor, uniforms: Tensor
) -> torch.cuda.CUDAGraph:
    """The kernels' launches as a CUDA graph; they have run before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused.decide(fused.allocate(VERIFIER, tree, target, draft, 1.0), uniforms)
    return graph


def measured(
    topology: Topology,
    batch: int,
    vocabulary: int,
    dtype: torch.dtype,
    device: torch.device,
    rate: float,
) -> Finding:
    """The times of one shape, and whether both paths decide alike."""
    problem = drawn(topology, batch, vocabulary, dtype, device)
    tree, target, draft, uniforms = problem
    inner = indices(topology, device).internal
    found = fused.verify_logits_fused(VERIFIER, tree, target, draft, uniforms=uniforms)
    assert found is not None  # these drafts are not that peaked
    differ = int((found.tokens != plain(*problem).tokens).any(1).sum())
    calls: dict[str, Callable[[], object]] = {
        "kernels": lambda: fused.verify_logits_fused(
            VERIFIER, tree, target, draft, uniforms=uniforms
        ),
        "plain": lambda: plain(*problem),
        "softmax": lambda: (columns(target, inner).softmax(-1), draft.softmax(-1)),
    }
    if device.type == "cuda":
        graph = replayed(*problem)
        calls["replayed"] = graph.replay
    seconds = dict(zip(calls, medians(device, list(calls.values())), strict=True))
    moved = 2 * draft.numel() * draft.element_size()
    seconds["floor"] = moved / rate
    times = ", ".join(f"{name} {1e6 * time:,.1f}" for name, time in seconds.items())
    return Finding(
        f"kernels, {topology.name}, {batch} trees, {str(dtype).removeprefix('torch.')} logits",
        f"{times} us for {moved / 1e6:,.1f} MB; {differ} decisions differ from plain",
        f"<= {DIFFERENT} differ",
        seconds["kernels"] / seconds["softmax"],
        batch,
        "trees",
        differ <= DIFFERENT,
        "value: kernels over softmax",
    )
