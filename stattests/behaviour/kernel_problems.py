"""Problems for the kernels: logits of one kind each, and trees drawn from them.

Blocks are far smaller here than a row, so that every row has several and a ragged last one.

Letters: B trees, N nodes, I inner nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stattests.early_stops import cut_trees
from stattests.streams import torch_generator
from univer import VERIFIERS, DraftTree, Filters, Topology, draft_tree
from univer.composition import drafted_nodes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Laws = tuple[Tensor, Tensor]  # target logits [B, N, V], draft logits [B, I, V]


@dataclass(frozen=True)
class Case:
    """Logits of one kind on one shape, cut into blocks."""

    name: str
    spec: str
    vocab: int
    block: int
    change: Callable[[Tensor, Tensor], Laws] = lambda target, draft: (target, draft)
    batch: int = 2
    temperature: float = 1.0
    dtype: torch.dtype = torch.float32
    stops: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}-{self.spec.replace(' ', '')}-V{self.vocab}"


@dataclass(frozen=True)
class Problem:
    """B trees with their logits, as the kernels take them."""

    tree: DraftTree
    target: Tensor
    draft: Tensor
    temperature: float

    def laws(self) -> Laws:
        """The same laws for the plain path."""
        filters = Filters(self.temperature)
        return filters(self.target.double()), filters(self.draft.double())

    def uniforms(self, seed: str) -> Tensor:
        """Random numbers for its decisions."""
        shape = (len(self.target), self.target.shape[1] + 1)
        drawn = torch.rand(shape, generator=torch_generator(seed), dtype=torch.float64)
        return drawn.to(DEVICE)


def problem(name: str, case: Case) -> Problem:
    """Random logits, changed as the case says, and trees drawn from them; the others are NaN."""
    topology, generator = Topology.parse(case.spec), torch_generator(f"kernels/{name}/{case}")

    def rand(nodes: int) -> Tensor:
        return 2 * torch.randn(case.batch, nodes, case.vocab, generator=generator)

    target = rand(topology.num_nodes)
    draft = target[:, list(topology.internal)] + rand(len(topology.internal)) / 2
    target, draft = (rows.to(case.dtype) for rows in case.change(target, draft))
    law = Filters(case.temperature)(draft.double())
    tree, _ = draft_tree(
        VERIFIERS[name].drafting,
        topology,
        torch.zeros(case.batch, dtype=torch.int64),
        lambda _, nodes: (law[:, [topology.internal.index(v) for v in nodes]], None),
        generator=generator,
    )
    tokens = tree.tokens
    if case.stops:
        drafting = VERIFIERS[name].drafting
        tokens = cut_trees(topology, tokens, drafting, case.stops, generator)
    target = target.masked_fill((tokens < 0)[..., None], torch.nan)
    draft = draft.masked_fill(~drafted_nodes(topology, tokens)[..., None], torch.nan)
    tree = DraftTree(topology, tokens.to(DEVICE))
    return Problem(tree, target.to(DEVICE), draft.to(DEVICE), case.temperature)


def peaked(gap: float) -> Callable[[Tensor, Tensor], Laws]:
    """A draft that leaves about exp(-gap) beside its top token; a target that does not."""

    def change(target: Tensor, draft: Tensor) -> Laws:
        top = torch.zeros_like(draft).scatter_(-1, draft.argmax(-1, keepdim=True), gap)
        return target, draft + top

    return change


def holes(target: Tensor, draft: Tensor) -> Laws:
    """Three tokens in four have no mass, elsewhere in target than in draft; one has it in both."""
    rows = []
    for seed, logits in enumerate((target, draft)):
        out = torch.rand(logits.shape, generator=torch_generator(f"holes/{seed}")) < 0.75
        out[..., 3] = False
        rows.append(logits.masked_fill(out, -torch.inf))
    return rows[0], rows[1]


def disjoint(target: Tensor, draft: Tensor) -> Laws:
    odd = torch.arange(target.shape[-1]) % 2 == 1
    return target.masked_fill(odd, -torch.inf), draft.masked_fill(~odd, -torch.inf)


def apart(target: Tensor, draft: Tensor) -> Laws:
    """Laws that differ much: cycles stop everywhere."""
    return target / 2, draft.flip(-1) / 2


def equal(target: Tensor, draft: Tensor) -> Laws:
    """Equal laws; nodes are in level order, so that the inner ones' rows are these."""
    return torch.cat([draft, target[:, draft.shape[1] :]], 1), draft


def two_left(target: Tensor, draft: Tensor) -> Laws:
    """The draft has two tokens: third children and what is below them are absent."""
    return target, draft.masked_fill(torch.arange(draft.shape[-1]) > 1, -torch.inf)


MIXED = "[[0],[1],[2],[1,0],[1,1],[1,0,0]]"
CASES = [
    Case("plain", "2x2", 40, 16),
    Case("plain", "chain:3", 100, 16),
    Case("plain", "3x2", 33, 16),
    Case("plain", MIXED, 70, 32),
    Case("plain", "eagle", 50, 32, batch=1),
    Case("alone", "2x1", 3000, 1024, batch=1),
    Case("one-block", "2x2", 5, 16),
    Case("bfloat16", "2x2", 100, 32, dtype=torch.bfloat16),
    Case("float16", "2x1", 100, 32, dtype=torch.float16),
    Case("cold", "2x2", 60, 16, temperature=0.05),
    Case("hot", "2x2", 60, 16, temperature=5.0),
    Case("peaked-1e-9", "2x2", 60, 16, peaked(25.0)),
    Case("peaked-1e-26", "2x2", 60, 16, peaked(60.0)),
    Case("peaked-chain", "chain:2", 60, 16, peaked(100.0)),
    Case("apart", "2x2", 60, 16, apart, batch=4),
    Case("holes", "2x2", 60, 16, holes),
    Case("disjoint", "2x2", 60, 16, disjoint),
    Case("equal", "2x2", 60, 16, equal),
    Case("equal-chain", "chain:3", 60, 16, equal),
    Case("absent", "3x2", 40, 16, two_left),
    Case("stopped", "3x2", 40, 16, batch=6, stops=0.6),
    Case("stopped-chain", "chain:4", 40, 16, batch=6, stops=0.4),
]


def repeated(part: Problem, times: int) -> Problem:
    """The one tree of a problem, as a batch; its logits are not copied."""
    return Problem(
        DraftTree(part.tree.topology, part.tree.tokens.expand(times, -1)),
        part.target.expand(times, -1, -1),
        part.draft.expand(times, -1, -1),
        part.temperature,
    )
