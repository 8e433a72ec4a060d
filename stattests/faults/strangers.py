"""Verifiers as others bring them: objects with a draft law and a `verify`, right or wrong.

Those here do what no replaced line can: remember, look at other rows, draw in secret, hang, answer
what is no answer; or they are right in a way of their own.

Letters: B trees, N nodes, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests.subject import SingleTree
from univer import DRAFTING, VERIFIERS, DraftTree, VerifyOutput, verify
from univer.sampling import inverse_cdf

Numbers = Callable[[DraftTree, Any], Tensor]  # (tree, given uniforms) -> those that are used


def given(tree: DraftTree, uniforms: Any) -> Any:
    """The uniforms as they are."""
    del tree
    return uniforms


def fresh(tree: DraftTree, uniforms: Any) -> Tensor:
    """New numbers from torch's global generator."""
    del uniforms
    batch, nodes = tree.tokens.shape
    return torch.rand(batch, nodes + 1, dtype=torch.float64)


def reseeded(tree: DraftTree, uniforms: Any) -> Tensor:
    """The same numbers in every call."""
    torch.manual_seed(0)
    return fresh(tree, uniforms)


def one_draw(tree: DraftTree, uniforms: Any) -> Tensor:
    """One row of new numbers for the whole batch."""
    return fresh(tree, uniforms)[:1].expand(len(tree.tokens), -1)


def first_row(tree: DraftTree, uniforms: Any) -> Any:
    """The first row's numbers for the whole batch."""
    del tree
    return uniforms[:1].expand_as(uniforms)


def next_row(tree: DraftTree, uniforms: Any) -> Any:
    """Every row with the numbers of the row before."""
    del tree
    return uniforms.roll(1, 0)


def odd_tail(tree: DraftTree, uniforms: Any) -> Any:
    """In a batch of odd size the last row gets the first one's numbers."""
    odd = len(tree.tokens) % 2 == 1
    return torch.cat([uniforms[:-1], uniforms[:1]]) if odd and len(tree.tokens) > 1 else uniforms


def crowded(tree: DraftTree, uniforms: Any) -> Any:
    """In batches of more than a thousand rows the coins are a tenth too small."""
    if len(tree.tokens) <= 1_000:
        return uniforms
    return torch.cat([uniforms[:, :-1] * 0.9, uniforms[:, -1:]], 1)


def secret_last(tree: DraftTree, uniforms: Any) -> Tensor:
    """The given numbers, but a new one for the next token."""
    return torch.cat([uniforms[:, :-1], fresh(tree, uniforms)[:, -1:]], 1)


@dataclass
class Stale:
    """Numbers of the call before, wherever the shapes allow it."""

    kept: Any = None

    def __call__(self, tree: DraftTree, uniforms: Any) -> Any:
        """The numbers kept from the last call; those given are kept for the next."""
        del tree
        used, self.kept = self.kept, uniforms.clone()
        return uniforms if used is None or used.shape != uniforms.shape else used


@dataclass
class Tiring:
    """Given numbers for a while, then small ones: everything is accepted from some call on."""

    patience: int = 20
    calls: int = 0

    def __call__(self, tree: DraftTree, uniforms: Any) -> Any:
        """The given numbers, divided by a million once patience is gone."""
        del tree
        self.calls += 1
        return uniforms if self.calls <= self.patience else uniforms / 1e6


def _as_is(out: VerifyOutput) -> Any:
    return out


@dataclass
class Around:
    """A built-in verifier with its numbers or its answer changed."""

    base: str
    numbers: Numbers = given
    answer: Callable[[VerifyOutput], Any] = _as_is
    randomness: str = "uniforms"

    @property
    def drafting(self) -> str:
        """The base's draft law."""
        return VERIFIERS[self.base].drafting

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> Any:
        """The changed answer of the base to the changed numbers."""
        numbers = self.numbers(tree, uniforms)
        out = verify(self.base, tree, target_probs, draft_probs, uniforms=numbers)
        return self.answer(out)


@dataclass
class Memo(Around):
    """Remembers its answer to a tree and gives it again, whatever the laws and numbers are now."""

    known: dict[tuple[int, ...], VerifyOutput] = field(default_factory=dict)

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> Any:
        """The first answer ever given to these tokens."""
        key = (len(tree.tokens), *tree.tokens.flatten().tolist())
        if key not in self.known:
            self.known[key] = super().verify(tree, target_probs, draft_probs, uniforms=uniforms)
        return self.known[key]


@dataclass
class LateChange(Around):
    """Zeroes, in each call, the target laws it was given in the call before."""

    kept: Any = None

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> Any:
        """The base's answer; the arrays of the last call are written to."""
        if self.kept is not None:
            self.kept.zero_()
        self.kept = target_probs
        return super().verify(tree, target_probs, draft_probs, uniforms=uniforms)


class Hanging(Around):
    """Never answers."""

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> Any:
        """Sleep for ever."""
        del tree, target_probs, draft_probs, uniforms
        while True:
            time.sleep(1)


def answer(tree: DraftTree, stop: Tensor, next_token: Tensor) -> VerifyOutput:
    """The answer that stops at these nodes [B] with these tokens [B]."""
    topology = tree.topology
    paths = torch.tensor(
        [[*(path := topology.path(v)), *[-1] * (topology.depth - len(path))] for v in range(
            topology.num_nodes)], dtype=torch.int64
    ).view(topology.num_nodes, topology.depth)  # fmt: skip
    nodes, num_accepted = paths[stop], torch.tensor(topology.depths)[stop]
    tokens = torch.where(nodes >= 0, tree.tokens.gather(1, nodes.clamp(min=0)), -1)
    tokens = torch.cat([tokens, torch.full_like(tokens[:, :1], -1)], 1)
    tokens = tokens.scatter(1, num_accepted[:, None], next_token[:, None])
    return VerifyOutput(nodes, num_accepted, next_token, tokens)


@dataclass
class Matching:
    """Draws the target's next token and follows the tree as long as it holds what was drawn.

    The draft law does not matter: this is sampling from the target, with a look into the tree.
    """

    drafting: Any = "without_replacement"
    numbers: Numbers = given
    randomness: str = "uniforms"

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> VerifyOutput:
        """Slot v draws the target's token after node v."""
        del draft_probs
        numbers = self.numbers(tree, uniforms)
        parents, trees = torch.tensor(tree.topology.parents), torch.arange(len(tree.tokens))
        node = torch.zeros_like(trees)
        for _ in range(tree.topology.depth + 1):
            drawn = inverse_cdf(target_probs[trees, node], numbers[trees, node])
            match = (parents == node[:, None]) & (tree.tokens == drawn[:, None])
            node = torch.where(match.any(1), match.to(torch.uint8).argmax(1), node)
        return answer(tree, node, drawn)


Row = NDArray[np.float64]  # [V], or [N + 1] for uniforms


def _pick(weights: Row, uniform: float) -> int:
    cumulative = weights.cumsum()
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def _global_numbers(tree: SingleTree) -> Row:
    numbers: Row = np.random.random(len(tree.tokens) + 1)  # noqa: NPY002 - what strangers do
    return numbers


@dataclass
class OneByOneRrsw:
    """RRSw in a plain loop over one tree of NumPy arrays; with `replacement`, RRS."""

    drafting: str = "without_replacement"
    replacement: bool = False
    batched: bool = False
    randomness: str = "uniforms"

    def verify(
        self, tree: SingleTree, target_probs: Any, draft_probs: Any, *, uniforms: Any
    ) -> tuple[list[int], int]:
        """Try each child in turn; where all fail, what is left gives the next token."""
        numbers = _global_numbers(tree) if uniforms is None else uniforms
        topology, path, node = tree.topology, list[int](), 0
        while True:
            p = target_probs[node]
            q = draft_probs[topology.internal.index(node)] if topology.children(node) else p
            entered = None
            for child in topology.children(node):
                token = tree.tokens[child]
                if token < 0:
                    break
                if numbers[child] * q[token] < p[token]:
                    entered = child
                    break
                left = (p - q).clip(min=0)
                p = left / left.sum() if left.sum() > 0 else p
                if not self.replacement:
                    q = np.where(np.arange(len(q)) == token, 0, q)
                    q = q / q.sum() if q.sum() > 0 else q
            if entered is None:
                return path, _pick(p, numbers[-1])
            path.append(entered)
            node = entered


@dataclass
class OneByOneTargetOnly:
    """Each child against its target probability, in a plain loop; draft laws are not read."""

    drafting: str = "top_residual"
    batched: bool = False
    randomness: str = "uniforms"

    def verify(
        self, tree: SingleTree, target_probs: Any, draft_probs: Any, *, uniforms: Any
    ) -> tuple[list[int], int]:
        """A rejected token is removed from the target's law, the rest is what follows."""
        del draft_probs
        numbers = _global_numbers(tree) if uniforms is None else uniforms
        path, node = list[int](), 0
        while True:
            p, entered = target_probs[node].copy(), None
            for child in tree.topology.children(node):
                token = tree.tokens[child]
                if token < 0 or entered is not None:
                    break
                if numbers[child] * p.sum() < p[token]:
                    entered = child
                p[token] = p[token] if entered else 0
            if entered is None:
                return path, _pick(p, numbers[-1])
            path.append(entered)
            node = entered


@dataclass
class StopsEarly(Around):
    """A built-in verifier behind a drafter that stops at every other node, whatever the token."""

    chance: float = 0.5

    @property
    def drafting(self) -> Any:
        """The base's draft law, or nothing."""
        law = VERIFIERS[self.base].drafting

        def draw(draft_probs: Tensor, arity: int, uniforms: Tensor) -> Tensor:
            del arity
            # The first decimals of a number say whether to stop, the others draw.
            stops, rest = uniforms[:, :1] < self.chance, (uniforms / self.chance) % 1
            drawn = DRAFTING[law].draw(draft_probs, rest, None)
            return torch.where(stops, -1, drawn)

        return draw

    @property
    def max_arity(self) -> int | None:
        """The base's."""
        return VERIFIERS[self.base].max_arity
