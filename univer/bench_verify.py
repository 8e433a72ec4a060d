"""What `univer.bench` times: problems, the verifiers, and yardsticks beside them.

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

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from univer import one_tree
from univer.drafting import DraftTree, draft_tree
from univer.filters import Filters
from univer.from_logits import by_level, verify_logits
from univer.topology import Topology
from univer.verifiers import PAPER, VERIFIERS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EXPONENTS = (1.2, 3.2)  # of the rows' Zipf laws: their best tokens have .15 to .85
NOISE = 1.0  # standard deviation of the draft's logits around the target's
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
    inner = torch.tensor(topology.internal, dtype=torch.int64)
    draft = target[:, inner]
    draft += NOISE * torch.empty_like(draft).normal_(generator=generator)
    laws = draft.to(dtype).float().softmax(-1)
    rows = topology.draft_rows
    root = torch.zeros(some, dtype=torch.int64)
    trees: dict[str, list[DraftTree]] = {}
    for law in sorted({VERIFIERS[name].drafting for name in PAPER}):
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
    rule = one_tree.rule_of(verifier)

    def counted(*arguments: Any) -> one_tree.Opened:
        nonlocal opened
        opened += 1
        return rule(*arguments)

    one_tree.by_tree(
        verifier,
        given.trees[verifier.drafting][repeat],
        given.target,
        given.draft,
        Filters(),
        given.uniforms[repeat],
        counted,
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
    for name in PAPER:
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


def timed(given: Problem, repeats: int) -> dict[str, float]:
    """Median milliseconds of each method; they take turns."""
    found = methods(given)
    times: dict[str, list[float]] = {name: [] for name in found}
    for repeat in range(-1, repeats):  # the first one warms up
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

    def ratio(self, method: str) -> float:
        """A method's time over the softmax's."""
        return self.milliseconds[method] / self.milliseconds["softmax"]


def measure(
    spec: str, vocab: int, batch: int, dtype: str, device: torch.device, repeats: int
) -> Line:
    """One line of the table."""
    given = problem(spec, vocab, batch, DTYPES[dtype], device, repeats)
    counted = range(repeats if batch == 1 else 1)
    nodes = {}
    if device.type == "cpu":
        for name in PAPER:
            nodes[name] = statistics.mean(nodes_read(name, given, i) for i in counted)
    return Line(spec, vocab, batch, dtype, given.acceptance, timed(given, repeats), nodes)
