"""The decoding cycle on a real model: draft a tree, score it in one forward, verify, keep.

    text, pending -> drafter, one forward a level -> tree -> target, one forward -> verify
         ^                                                                            |
         +------------ accepted tokens and the next one; both caches compacted <------+

`generate` gives the text; `decode` yields every cycle with its tree and laws; `Decoder` is one
step at a time, for those who judge several verifiers in the same context.

Letters: N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from univer.cached_model import CachedModel
from univer.drafters import Drafter
from univer.drafters.small_model import SmallModel
from univer.drafting import DraftTree, draft_tree
from univer.errors import InputError, check_exactly_one
from univer.filters import Filters
from univer.topology import Topology
from univer.verifiers import Verifier, VerifyOutput, resolve, verify

TopologySpec = str | Topology | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Drawn:
    """A drafted tree with the laws that verifiers read, B = 1.

    tree: one tree, on the target's device like the laws.
    target_probs: [1, N, V], after every node; float64 for a float64 model, else float32.
    draft_probs: [1, I, V], the very laws that the tree was drawn from.
    draft_ms, target_ms: time of drafting and of the target's forward, in milliseconds.
    """

    tree: DraftTree
    target_probs: Tensor
    draft_probs: Tensor
    draft_ms: float
    target_ms: float


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


@dataclass(frozen=True)
class Generation:
    """The emitted tokens, prompt excluded, and how they came about.

    tokens: ends with the EOS token if one was emitted.
    cycles: one record a cycle.
    finished: "eos" or "budget".
    """

    tokens: tuple[int, ...]
    cycles: tuple[CycleRecord, ...]
    finished: str

    @property
    def acceptance_length(self) -> float:
        """Tokens a cycle, the next token counted."""
        return len(self.tokens) / len(self.cycles)


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

    Raises:
        InputError: names what does not fit.
    """

    def __init__(
        self,
        target: Any,
        drafter: Drafter | Any,
        prompt: Sequence[int] | Tensor,
        *,
        filters: Filters,
        max_new_tokens: int,
    ) -> None:
        self.filters = filters
        self._target = CachedModel(target)
        source = drafter if hasattr(drafter, "start") else SmallModel(drafter)
        self._drafter = source.start(self._target)
        if self._drafter.vocabulary != self._target.vocabulary:
            raise InputError(
                f"drafter: its vocabulary has {self._drafter.vocabulary} tokens but the target's"
                f" has {self._target.vocabulary}; both must be over the same token ids."
            )
        self.text = _prompt_ids(prompt, self._target.vocabulary)
        _check_budget(max_new_tokens, len(self.text), self._target, self._drafter)

    def draw(self, drafting: str, topology: Topology, *, generator: torch.Generator) -> Drawn:
        """Draft a tree in the present context and score it; an earlier one is forgotten."""
        self._target.keep()
        self._drafter.keep()
        start = self.now()
        root = torch.tensor([self.text[-1]], device=self._drafter.device)

        def next_law(tree: DraftTree, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
            logits = self._drafter.logits(self.text, tree, nodes)
            return self.filters(logits), logits if self.filters.greedy else None

        tree, draft_probs = draft_tree(drafting, topology, root, next_law, generator=generator)
        drafted = self.now()
        tree = DraftTree(topology, tree.tokens.to(self._target.device))
        logits = self._target.logits(self.text, tree, range(topology.num_nodes))
        target_probs = self.filters(logits)
        scored = self.now()
        return Drawn(
            tree,
            target_probs,
            draft_probs.to(target_probs.device),
            1e3 * (drafted - start),
            1e3 * (scored - drafted),
        )

    def advance(self, output: VerifyOutput) -> None:
        """Add what a verifier made of the tree drawn last to the text."""
        accepted = [v for v in output.accepted_nodes[0].tolist() if v >= 0]
        self._target.keep(accepted)
        self._drafter.keep(accepted)
        self.text += output.tokens[0, : len(accepted) + 1].tolist()

    def now(self) -> float:
        """Seconds on a clock, after everything that was started on either device has ended."""
        for device in {self._target.device, self._drafter.device}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return time.perf_counter()


def decode(
    target: Any,
    drafter: Drafter | Any,
    prompt: Sequence[int] | Tensor,
    *,
    verifier: str | Verifier = "univer",
    topology: TopologySpec = "2x5",
    filters: Filters | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator,
) -> Iterator[Cycle]:
    """Yield each cycle of `generate` with its tree, laws and decision.

    Arguments as in `generate`; the filters come as one object, no filter by default. Errors as
    there, raised when the first cycle is asked for.
    """
    rule = resolve(verifier)
    shape = Topology.parse(topology)
    ends = eos_ids(eos_token_id, target)
    decoder = Decoder(
        target, drafter, prompt, filters=filters or Filters(), max_new_tokens=max_new_tokens
    )
    left = max_new_tokens
    while left > 0:
        drawn = decoder.draw(rule.drafting, shape, generator=generator)
        start = decoder.now()
        output = verify(
            rule, drawn.tree, drawn.target_probs, drawn.draft_probs, generator=generator
        )
        decided = decoder.now()
        emitted = [t for t in output.tokens[0].tolist() if t >= 0]
        tokens = until_end(emitted[:left], ends)
        counted = min(len(tokens), len(emitted) - 1)
        left = 0 if tokens[-1] in ends else left - len(tokens)
        if left:
            decoder.advance(output)
        verify_ms, keep_ms = 1e3 * (decided - start), 1e3 * (decoder.now() - decided)
        record = CycleRecord(tokens, counted, drawn.draft_ms, drawn.target_ms, verify_ms, keep_ms)
        yield Cycle(record, drawn, output)


def generate(
    target: Any,
    drafter: Drafter | Any,
    prompt: Sequence[int] | Tensor,
    *,
    verifier: str | Verifier = "univer",
    topology: TopologySpec = "2x5",
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
) -> Generation:
    """Continue a prompt by speculative decoding; the text follows the target's own law.

    Args:
        target: a Hugging Face causal LM in evaluation mode.
        drafter: a Drafter, or another causal LM over the same token ids (`layer_skip` makes one).
        prompt: token ids, a sequence or an integer tensor [T] or [1, T]; not empty.
        verifier: a name in VERIFIERS or a Verifier; it decides the draft law as well.
        topology: the shape of the draft trees, as for `Topology.parse`.
        temperature: shapes draft and target laws alike; at 0 the text is the target's greedy text.
        top_k: as in `Filters`, for draft and target alike, like the next two.
        top_p: as in `Filters`.
        min_p: as in `Filters`.
        max_new_tokens: the budget, >= 1.
        eos_token_id: the text ends with the first of these; None takes the model's own, () none.
        generator: where the random numbers come from.
        seed: makes a generator, as in `seeded`; exactly one of the two is given.

    Returns:
        Generation: the tokens (prompt excluded) and one record a cycle.

    Raises:
        InputError: names the argument that does not fit: an unknown verifier or topology, an empty
            prompt, differing vocabularies, a budget beyond the models' positions, and so on.

    Source: the UniVer paper; tree attention as in SpecInfer (Miao et al. 2024).

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from univer.drafters.layer_skip import layer_skip
        >>> config = LlamaConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
        ...     num_attention_heads=1,
        ... )
        >>> target = LlamaForCausalLM(config).eval()
        >>> drafter = layer_skip(target, 1)
        >>> prompt = [1, 2, 3]
        >>> done = generate(target, drafter, prompt, max_new_tokens=9, eos_token_id=(), seed=0)
        >>> len(done.tokens), done.finished
        (9, 'budget')
    """
    check_exactly_one("generator", generator, "seed", seed)
    if generator is None:
        generator = seeded(seed)
    cycles = decode(
        target,
        drafter,
        prompt,
        verifier=verifier,
        topology=topology,
        filters=Filters(temperature, top_k, top_p, min_p),
        max_new_tokens=max_new_tokens,
        eos_token_id=eos_token_id,
        generator=generator,
    )
    records = tuple(cycle.record for cycle in cycles)
    tokens = tuple(token for record in records for token in record.tokens)
    finished = "eos" if tokens[-1] in eos_ids(eos_token_id, target) else "budget"
    return Generation(tokens, records, finished)


def seeded(seed: object) -> torch.Generator:
    """A new generator on the CPU; the seed is an integer from 0 to 2**63 - 1."""
    # torch takes -1 for 2**64 - 1: refused, so that different seeds are different streams.
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise InputError(f"seed: expected an integer from 0 to 2**63 - 1, got {seed!r}.")
    return torch.Generator().manual_seed(seed)


def until_end(tokens: Sequence[int], ends: frozenset[int]) -> tuple[int, ...]:
    """The tokens up to the first end token, that one included."""
    for count, token in enumerate(tokens, start=1):
        if token in ends:
            return tuple(tokens[:count])
    return tuple(tokens)


def eos_ids(given: int | Sequence[int] | None, target: Any) -> frozenset[int]:
    """The token ids that end a text: the given ones, or for None the target's own."""
    if given is None:
        own = (getattr(target, name, None) for name in ("generation_config", "config"))
        found = (getattr(config, "eos_token_id", None) for config in own)
        given = next((ids for ids in found if ids is not None), ())
    ids = (given,) if isinstance(given, int) else tuple(given)
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise InputError(f"eos_token_id: expected token ids, got {given!r}.")
    return frozenset(ids)


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
        raise InputError(f"prompt: expected token ids, got {type(prompt).__name__}.")
    if not prompt:
        raise InputError("prompt: it is empty; at least one token (such as BOS) is needed.")
    for at, token in enumerate(prompt):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise InputError(
                f"prompt: entry {at} is {token!r}; expected a token id in [0, {vocabulary})."
            )
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
