"""Cycles by the million: draw trees from a problem, let a subject decide, see what it emitted.

Token ids are renamed at random for every batch and batch sizes vary, so that a verifier that reads
the wrong row or a fixed id has no regularity to hide behind; what comes back is named as before.

Letters: B trees, N nodes, I internal nodes, V vocabulary, D depth, R registered prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests import budget
from stattests.answers import Decisions, refusing
from stattests.early_stops import cut
from stattests.exact import tree_rows
from stattests.problems import ROOT_HASH, Problem, extend_hash
from stattests.subject import Subject
from stattests.verdict import ContractError, Reason
from univer import DRAFTING, DraftTree
from univer.indices import columns, indices, set_columns


@dataclass(frozen=True)
class Drawn:
    """Trees under the names that the subject sees; `renamed[t]` is the name of token t."""

    tokens: Tensor  # [B, N]
    hashes: Tensor  # [B, N], of the prefixes under their own names
    target: Tensor  # [B, N, V]
    draft: Tensor  # [B, I, V]
    renamed: Tensor  # [V]

    def as_tree(self, problem: Problem) -> DraftTree:
        """The trees, as a verifier takes them."""
        return DraftTree(problem.topology, self.tokens)


@dataclass(frozen=True)
class Emitted:
    """What cycles emitted, under the tokens' own names.

    hashes: the prefix before each emitted token, int64 [B, D + 1].
    tokens: int64 [B, D + 1], -1 after the last.
    num_accepted: int64 [B].
    """

    hashes: Tensor
    tokens: Tensor
    num_accepted: Tensor


def rename(problem: Problem, generator: torch.Generator) -> Tensor:
    """A random permutation of the token ids."""
    return torch.randperm(problem.vocab, generator=generator)


def draw(
    subject: Subject, problem: Problem, batch: int, generator: torch.Generator, renamed: Tensor
) -> Drawn:
    """Draw `batch` trees with the subject's draft law, level by level and arity by arity.

    In a problem with early stops some nodes keep fewer children than the law draws.
    """
    topology, vocab = problem.topology, problem.vocab
    own = renamed.argsort()  # name -> token
    target, draft = (pool[:, own] for pool in problem.pool)
    tokens = torch.full((batch, topology.num_nodes), -1)
    tokens[:, 0] = 0
    hashes = torch.full_like(tokens, ROOT_HASH)
    for layer, table in zip(topology.layers, indices(topology, tokens.device).layers, strict=True):
        above = columns(hashes, table.nodes)[..., None]
        laws = draft.index_select(0, problem.pair_of(above).flatten())
        uniforms = torch.rand(len(laws), layer.arity, dtype=torch.float64, generator=generator)
        if isinstance(subject.drafting, str):
            drawn = DRAFTING[subject.drafting].draw(laws, uniforms, None)
        else:
            given = subject.call(subject.drafting, laws, layer.arity, uniforms)
            drawn = check_children(given, len(laws), layer.arity, vocab)
        present = columns(tokens, table.nodes)[..., None] >= 0
        children = torch.where(present, drawn.view(batch, *table.slots.ids.shape), -1)
        if problem.stops:
            children = cut(children, subject.drafting, problem.stops, generator)
        set_columns(tokens, table.slots, children)
        set_columns(hashes, table.slots, extend_hash(above, translated(own, children)))
    return Drawn(tokens, hashes, *tree_rows(problem, hashes, (target, draft)), renamed)


def translated(names: Tensor, tokens: Tensor) -> Tensor:
    """names[tokens], where -1 stays -1."""
    return torch.where(tokens >= 0, names.take(tokens.clamp(min=0)), -1)


@refusing
def check_children(drawn: Any, rows: int, arity: int, vocab: int) -> Tensor:
    """Check what a drafting callable returned: ids or -1 at the end, [n, arity]."""
    if isinstance(drawn, np.ndarray):
        drawn = torch.from_numpy(drawn)
    if not isinstance(drawn, Tensor) or drawn.is_floating_point() or drawn.dtype == torch.bool:
        kind = getattr(drawn, "dtype", type(drawn).__name__)
        raise ContractError(Reason.BAD_DRAFTING, f"drafting returned {kind}; expected integers")
    if tuple(drawn.shape) != (rows, arity):
        raise ContractError(
            Reason.BAD_DRAFTING,
            f"drafting returned shape {list(drawn.shape)}; expected [{rows}, {arity}]",
        )
    ids: Tensor = drawn.detach().cpu().long()
    if ((ids < -1) | (ids >= vocab)).any():
        raise ContractError(
            Reason.BAD_DRAFTING,
            f"drafting returned ids from {ids.min()} to {ids.max()}; expected -1 to {vocab - 1}",
        )
    if ((ids[:, :-1] < 0) & (ids[:, 1:] >= 0)).any():
        raise ContractError(Reason.BAD_DRAFTING, "drafting returned -1 before a real child")
    return ids


def decide(
    subject: Subject, problem: Problem, drawn: Drawn, generator: torch.Generator
) -> Decisions:
    """The subject's decisions on trees, with fresh uniforms."""
    uniforms = torch.rand(
        len(drawn.tokens),
        problem.topology.num_nodes + 1,
        dtype=torch.float64,
        generator=generator,
    )
    return subject.decide(problem.topology, drawn.tokens, drawn.target, drawn.draft, uniforms)


def emitted(problem: Problem, drawn: Drawn, decisions: Decisions) -> Emitted:
    """The emitted tokens, each with the hash of the prefix before it."""
    table = indices(problem.topology, torch.device("cpu"))
    own = drawn.renamed.argsort()
    nodes = table.paths.index_select(0, decisions.stop)  # [B, D]
    num_accepted = table.depths.index_select(0, decisions.stop)
    root = torch.zeros(len(nodes), 1, dtype=torch.int64)
    at = torch.cat([root, nodes], 1)  # the node after which each token was emitted
    hashes = drawn.hashes.gather(1, at.clamp(min=0))
    kept = torch.where(nodes >= 0, drawn.tokens.gather(1, nodes.clamp(min=0)), -1)
    tokens = translated(own, kept)
    tokens = torch.cat([tokens, torch.full_like(root, -1)], 1)
    tokens = tokens.scatter(1, num_accepted[:, None], own.take(decisions.next_token)[:, None])
    return Emitted(hashes, tokens, num_accepted)


def trees_a_call(subject: Subject, problem: Problem, most: int | None = None) -> int:
    """How many trees one call takes: as many as are quick, fewer where they fill the memory."""
    if most is None:
        most = budget.BATCH if subject.batched else budget.BATCH_SLOW
    return max(1, min(most, budget.CELLS // (problem.topology.num_nodes * problem.vocab)))


def cycles(subject: Subject, problem: Problem, batch: int, generator: torch.Generator) -> Emitted:
    """One batch of cycles."""
    drawn = draw(subject, problem, batch, generator, rename(problem, generator))
    return emitted(problem, drawn, decide(subject, problem, drawn, generator))


def forbidden(problem: Problem, out: Emitted) -> tuple[int, int] | None:
    """Row and position of a token that the target gives probability 0; None if there is none."""
    cells = problem.pair_of(out.hashes) * problem.vocab + out.tokens.clamp(min=0)
    probs = problem.pool[0].take(cells)
    bad = (probs <= 0) & (out.tokens >= 0)
    if not bad.any():
        return None
    row, position = bad.nonzero()[0].tolist()
    return row, position


@dataclass(frozen=True)
class Register:
    """The prefixes at which next tokens are counted, fixed before anything is counted.

    prefixes: their tokens; hashes: sorted, int64 [R], in the same order; visit_probs: [R].
    """

    prefixes: tuple[tuple[int, ...], ...]
    hashes: Tensor
    visit_probs: NDArray[np.float64]

    def cells(self, out: Emitted, vocab: int) -> Tensor:
        """The cell, prefix x V + token, of each emitted token, [B, D + 1]; R V if there is none."""
        slot = torch.searchsorted(self.hashes, out.hashes).clamp(max=len(self.hashes) - 1)
        hit = (self.hashes.take(slot) == out.hashes) & (out.tokens >= 0)
        return torch.where(hit, slot * vocab + out.tokens, len(self.hashes) * vocab)

    def counts(self, out: Emitted, vocab: int) -> NDArray[np.int64]:
        """How often each token followed each registered prefix, [R, V]."""
        size = len(self.hashes) * vocab
        counted = torch.bincount(self.cells(out, vocab).flatten(), minlength=size + 1)[:-1]
        counts: NDArray[np.int64] = counted.view(-1, vocab).numpy()
        return counts


def counts_by_depth(problem: Problem, out: Emitted) -> NDArray[np.int64]:
    """How often each token came after d = 1 to D tokens of a cycle where pair k is the law.

    Returns:
        [D, K, V]. Given its prefix a token follows the prefix's law, whichever prefix it is.
    """
    depth, (pairs, vocab) = problem.topology.depth, problem.target.shape
    tokens = out.tokens[:, 1:]
    at = torch.arange(depth) * pairs + problem.pair_of(out.hashes[:, 1:])
    cells = torch.where(tokens >= 0, at * vocab + tokens, depth * pairs * vocab)
    counted = torch.bincount(cells.flatten(), minlength=depth * pairs * vocab + 1)[:-1]
    counts: NDArray[np.int64] = counted.view(depth, pairs, vocab).numpy()
    return counts


def register(pilot: list[Emitted], least: float, most: int = 64) -> Register:
    """Register the prefixes that a pilot run visited with probability `least` or more.

    The pilot's cycles are not counted again. The root is always there.
    """
    valid = torch.cat([out.tokens >= 0 for out in pilot])
    hashes = torch.cat([out.hashes for out in pilot])
    tokens = torch.cat([out.tokens for out in pilot])
    cycles_run = len(tokens)
    found, counts = hashes[valid].unique(return_counts=True)
    shares = counts / cycles_run
    keep = (shares >= least) | (found == ROOT_HASH)
    chosen = sorted(zip(shares[keep].tolist(), found[keep].tolist(), strict=True), reverse=True)[
        :most
    ]
    rows = []
    for share, value in sorted(chosen, key=lambda pair: pair[1]):
        row, position = ((hashes == value) & valid).nonzero()[0].tolist()
        rows.append((tuple(tokens[row, :position].tolist()), value, share))
    return Register(
        tuple(prefix for prefix, _, _ in rows),
        torch.tensor([value for _, value, _ in rows]),
        np.array([share for _, _, share in rows]),
    )
