"""One text being written speculatively: draft a tree, score it in one forward, verify, keep.

    text, pending -> drafter, one forward a level -> tree -> target, one forward -> verify
         ^                                                                            |
         +------------ accepted tokens and the next one; both caches compacted <------+

`Decoder` is one step at a time, for those who judge several verifiers in the same context; `cycles`
is the loop that every way of generating text runs.

Letters: N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from univer.cached_model import CachedModel
from univer.drafters import Drafter
from univer.drafters.small_model import SmallModel
from univer.drafting import DraftTree, draft_tree
from univer.dynamic_tree import Dynamic, check_draft_law, grow
from univer.errors import InputError, check_token_ids, described
from univer.filters import Filters, Shaping
from univer.from_logits import verify_logits
from univer.topology import Topology
from univer.verifiers import Verifier, VerifyOutput, verify

# The tokens that a cycle emitted -> those of them that are text, and whether they end it.
Cut = Callable[[Sequence[int]], tuple[tuple[int, ...], bool]]


@dataclass(frozen=True)
class Drawn:
    """A drafted tree with what verifiers read, B = 1.

    tree: one tree, on the target's device like the rows.
    target_logits: [1, N, V], after every node.
    draft_logits: [1, I, V], at every internal node.
    draft_probs: [1, I, V], the laws that the tree was drawn from.
    filters: shapes the laws of both.
    draft_ms, target_ms: time of drafting and of the target's forward, in milliseconds.
    """

    tree: DraftTree
    target_logits: Tensor
    draft_logits: Tensor
    draft_probs: Tensor
    filters: Shaping
    draft_ms: float
    target_ms: float

    @cached_property
    def target_probs(self) -> Tensor:
        """The target's laws, [1, N, V]; float64 for a float64 model, else float32."""
        return self.filters(self.target_logits)


@dataclass(frozen=True)
class CycleRecord:
    """One cycle's numbers.

    tokens: the tokens that it added to the text, nothing beyond EOS or the budget.
    num_accepted: the drafted ones among them.
    draft_ms, target_ms, verify_ms: milliseconds.
    keep_ms: compacting both caches and adding the tokens, in milliseconds; next to nothing in a
        text's last cycle, which keeps nothing.
    """

    tokens: tuple[int, ...]
    num_accepted: int
    draft_ms: float
    target_ms: float
    verify_ms: float
    keep_ms: float

    @property
    def total_ms(self) -> float:
        """The whole cycle's milliseconds."""
        return self.draft_ms + self.target_ms + self.verify_ms + self.keep_ms


@dataclass(frozen=True)
class Cycle:
    """A CycleRecord with the tree, the laws and the verifier's whole decision."""

    record: CycleRecord
    drawn: Drawn
    output: VerifyOutput


class Decoder:
    """One text on its way: `draw` a tree in its context as often as wanted, then `advance`.

    Args:
        target: a Hugging Face causal LM in evaluation mode.
        drafter: a Drafter, or another causal LM over the same token ids.
        prompt: token ids, a sequence or an integer tensor [T] or [1, T]; not empty.
        filters: shapes the draft laws and the target's laws alike.
        max_new_tokens: a promise of the caller's, against which the models' positions are checked:
            the laws are right for that many tokens. `advance` counts nothing and adds whole
            cycles; who wants fewer tokens stops calling it.
        clock: seconds from anywhere, read for the times in the records.
        check_model: compare a small tree with plain text before the first tree is drawn, once a
            model (`univer.model_check`).

    Raises:
        InputError: names what does not fit.
    """

    def __init__(
        self,
        target: Any,
        drafter: Drafter | Any,
        prompt: Sequence[int] | Tensor,
        *,
        filters: Shaping,
        max_new_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
        check_model: bool = True,
    ) -> None:
        self.filters, self._clock = filters, clock
        self._target = CachedModel(target, check=check_model)
        source = drafter if hasattr(drafter, "start") else SmallModel(drafter)
        self._drafter = source.start(self._target)
        if self._drafter.vocabulary != self._target.vocabulary:
            raise InputError(
                f"drafter: its vocabulary has {self._drafter.vocabulary} tokens but the target's"
                f" has {self._target.vocabulary}; both must be over the same token ids."
            )
        self.text = _prompt_ids(prompt, self._target.vocabulary)
        _check_budget(max_new_tokens, len(self.text), self._target, self._drafter)
        self._drafters_ids: Sequence[int] = ()  # of the nodes of the tree drawn last

    def takes(self, topology: Topology | Dynamic) -> bool:
        """Whether both models can read trees of this topology, exactly."""
        try:
            self._allow(topology)
        except InputError:
            return False
        return True

    def _allow(self, topology: Topology | Dynamic) -> None:
        widest = topology.width if isinstance(topology, Dynamic) else topology.max_arity
        for model in (self._target, self._drafter):
            if isinstance(model, CachedModel):
                model.allow(chains=widest < 2)

    def draw(
        self, drafting: str, topology: Topology | Dynamic, *, generator: torch.Generator
    ) -> Drawn:
        """Draft a tree in the present context and score it; an earlier one is forgotten.

        Raises:
            InputError: a draft law or a topology that the verifier or a model cannot have.
        """
        check_draft_law(topology, drafting)
        self._allow(topology)
        self._target.keep()
        self._drafter.keep()
        start = self.now()
        root = torch.tensor([self.text[-1]], device=self._drafter.device)

        levels: list[Tensor] = []

        def next_law(tree: DraftTree, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
            logits = self._drafter.logits(self.text, tree, nodes)
            levels.append(logits)
            return self.filters(logits), logits if self.filters.greedy else None

        if isinstance(topology, Dynamic):
            grown = grow(topology, root, next_law)
            tree, draft_probs, self._drafters_ids = grown.tree, grown.draft_probs, grown.nodes
            levels = [torch.cat(levels, 1)[:, list(grown.rows)]]
        else:
            tree, draft_probs = draft_tree(drafting, topology, root, next_law, generator=generator)
            self._drafters_ids = range(topology.num_nodes)
        drafted = self.now()
        tree = DraftTree(tree.topology, tree.tokens.to(self._target.device))
        logits = self._target.logits(self.text, tree, range(tree.topology.num_nodes))
        scored = self.now()
        return Drawn(
            tree,
            logits,
            (torch.cat(levels, 1) if levels else draft_probs).to(logits.device),
            draft_probs.to(logits.device),
            self.filters,
            1e3 * (drafted - start),
            1e3 * (scored - drafted),
        )

    def decide(
        self, verifier: str | Verifier, drawn: Drawn, *, generator: torch.Generator
    ) -> VerifyOutput:
        """What a verifier makes of a tree: from its logits where they say it all, else its laws."""
        filters = self.filters
        if isinstance(filters, Filters) and filters.only_temperature:
            logits = drawn.target_logits, drawn.draft_logits
            temperature = filters.temperature
            return verify_logits(
                verifier, drawn.tree, *logits, temperature=temperature, generator=generator
            )
        return verify(
            verifier, drawn.tree, drawn.target_probs, drawn.draft_probs, generator=generator
        )

    def advance(self, output: VerifyOutput) -> None:
        """Add what a verifier made of the tree drawn last to the text."""
        accepted = [v for v in output.accepted_nodes[0].tolist() if v >= 0]
        self._target.keep(accepted)
        self._drafter.keep([self._drafters_ids[v] for v in accepted])
        self.text += output.tokens[0, : len(accepted) + 1].tolist()

    def now(self) -> float:
        """Seconds on a clock, after everything that was started on either device has ended."""
        for device in {self._target.device, self._drafter.device}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return self._clock()


def cycles(
    decoder: Decoder,
    verifier: Verifier,
    topology: Topology | Dynamic,
    *,
    cut: Cut,
    generator: torch.Generator,
) -> Iterator[Cycle]:
    """Yield cycle after cycle until `cut` says that the text has ended.

    Args:
        decoder: at the beginning of the text.
        verifier: decides, and names the draft law.
        topology: the shape of every tree, or how each one grows.
        cut: called once a cycle with the tokens that it emitted, one or more; it keeps the first
            ones, at least one.
        generator: where the random numbers come from.
    """
    ended = False
    while not ended:
        drawn = decoder.draw(verifier.drafting, topology, generator=generator)
        start = decoder.now()
        output = decoder.decide(verifier, drawn, generator=generator)
        decided = decoder.now()
        emitted = [t for t in output.tokens[0].tolist() if t >= 0]
        tokens, ended = cut(emitted)
        counted = min(len(tokens), len(emitted) - 1)
        cut_at = decoder.now()
        if not ended:
            decoder.advance(output)
        verify_ms, keep_ms = 1e3 * (decided - start), 1e3 * (decoder.now() - cut_at)
        record = CycleRecord(tokens, counted, drawn.draft_ms, drawn.target_ms, verify_ms, keep_ms)
        yield Cycle(record, drawn, output)


def _prompt_ids(prompt: Sequence[int] | Tensor, vocabulary: int) -> list[int]:
    if isinstance(prompt, Tensor):
        if prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise InputError(f"prompt: expected integer token ids, got {prompt.dtype}.")
        if prompt.ndim not in (1, 2) or (prompt.ndim == 2 and prompt.shape[0] != 1):
            raise InputError(
                f"prompt: expected a tensor [T] or [1, T] (batch 1), got {list(prompt.shape)}."
            )
        prompt = prompt.flatten().tolist()
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        raise InputError(f"prompt: expected token ids, got {described(prompt)}.")
    if not prompt:
        raise InputError("prompt: it is empty; at least one token (such as BOS) is needed.")
    check_token_ids("prompt", prompt, vocabulary)
    return list(prompt)


def _check_budget(budget: int, prompt: int, target: CachedModel, drafter: Any) -> None:
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise InputError(f"max_new_tokens: expected an integer >= 1, got {budget!r}.")
    for name, model in (("target", target), ("drafter", drafter)):
        limit = model.max_positions
        if limit is not None and prompt + budget > limit:
            raise InputError(
                f"max_new_tokens: a prompt of {prompt} tokens and {budget} new ones need"
                f" {prompt + budget} positions, but the {name} has {limit}."
            )
        turn = model.turn if isinstance(model, CachedModel) else None
        if turn is not None and prompt <= turn < prompt + budget:
            raise InputError(
                f"max_new_tokens: the {name} reads a text of more than {turn} tokens with other"
                f" rotary angles (longrope), and a prompt of {prompt} tokens with {budget} new ones"
                f" goes from one to the other; take at most {turn - prompt} new ones."
            )
