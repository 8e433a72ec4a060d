"""Speculative decoding of Hugging Face models, in three calls.

`generate` gives the text; `decode` yields every cycle with its tree and laws; `speculative` plugs
the same loop into Hugging Face's own `model.generate`. `Decoder` is one step at a time; `choose`
says which topology is fastest here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from univer.auto_topology import (
    Auto,
    ShapeSpec,
    choose,
    clock_of,
    cycles_on,
    overheard,
    parse_topology,
)
from univer.cost_model import Choice
from univer.decoder import Cycle, CycleRecord, Decoder, Drawn
from univer.drafters import Drafter
from univer.dynamic_tree import Dynamic
from univer.errors import InputError, check_exactly_one
from univer.filters import Filters
from univer.hf_generate import SpeculativeOutput, speculative
from univer.verifiers import Verifier, resolve

__all__ = [
    "Auto",
    "Choice",
    "Cycle",
    "CycleRecord",
    "Decoder",
    "Drawn",
    "Dynamic",
    "Generation",
    "SpeculativeOutput",
    "choose",
    "decode",
    "eos_ids",
    "generate",
    "seeded",
    "speculative",
    "until_end",
]


@dataclass(frozen=True)
class Generation:
    """The emitted tokens, prompt excluded, and how they came about.

    tokens: ends with the EOS token if one was emitted.
    cycles: one record a cycle.
    finished: "eos" or "budget".
    choice: the topology chosen last, and why; None unless it was "auto", or if the text ended
        before.
    """

    tokens: tuple[int, ...]
    cycles: tuple[CycleRecord, ...]
    finished: str
    choice: Choice | None = None

    @property
    def acceptance_length(self) -> float:
        """Tokens a cycle, the next token counted."""
        return len(self.tokens) / len(self.cycles)


def decode(
    target: Any,
    drafter: Drafter | Any,
    prompt: Sequence[int] | Tensor,
    *,
    verifier: str | Verifier = "univer",
    topology: ShapeSpec = "2x5",
    filters: Filters | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator,
    check_model: bool = True,
) -> Iterator[Cycle]:
    """Yield each cycle of `generate` with its tree, laws and decision.

    Arguments as in `generate`; the filters come as one object, no filter by default. Errors as
    there, raised when the first cycle is asked for.
    """
    rule = resolve(verifier)
    shape = parse_topology(topology, rule.max_arity)
    ends = eos_ids(eos_token_id, target)
    decoder = Decoder(
        target,
        drafter,
        prompt,
        filters=filters or Filters(),
        max_new_tokens=max_new_tokens,
        clock=clock_of(shape),
        check_model=check_model,
    )
    left = max_new_tokens

    def cut(emitted: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        nonlocal left
        tokens = until_end(emitted[:left], ends)
        left -= len(tokens)
        return tokens, left == 0 or tokens[-1] in ends

    yield from cycles_on(decoder, rule, shape, cut=cut, generator=generator)


def generate(
    target: Any,
    drafter: Drafter | Any,
    prompt: Sequence[int] | Tensor,
    *,
    verifier: str | Verifier = "univer",
    topology: ShapeSpec = "2x5",
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
    check_model: bool = True,
) -> Generation:
    """Continue a prompt by speculative decoding; the text follows the target's own law.

    Args:
        target: a Hugging Face causal LM in evaluation mode.
        drafter: a Drafter, or another causal LM over the same token ids (`layer_skip` makes one).
        prompt: token ids, a sequence or an integer tensor [T] or [1, T]; not empty.
        verifier: a name in VERIFIERS or a Verifier; it decides the draft law as well.
        topology: the shape of the draft trees, as for `Topology.parse`; "auto" or an Auto measures
            a few while writing and goes on with the fastest, plain decoding included (then a seed
            no longer fixes the text, since the clock has a say; its law stays the target's). A
            Dynamic or "dynamic:<width>x<depth>:<size>" grows each tree by the draft's
            probabilities, as EAGLE-2 does, for the verifier `target_only`.
        temperature: shapes draft and target laws alike; at 0 the text is the target's greedy text.
        top_k: as in `Filters`, for draft and target alike, like the next two.
        top_p: as in `Filters`.
        min_p: as in `Filters`.
        max_new_tokens: the budget, >= 1.
        eos_token_id: the text ends with the first of these; None takes the model's own, () none.
        generator: where the random numbers come from.
        seed: makes a generator, as in `seeded`; exactly one of the two is given.
        check_model: before a model reads its first tree, compare a small one with plain text (a
            few short forwards, once a model object); False trusts it.

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
    made: list[Choice] = []
    cycles = decode(
        target,
        drafter,
        prompt,
        verifier=verifier,
        topology=overheard(parse_topology(topology, resolve(verifier).max_arity), made),
        filters=Filters(temperature, top_k, top_p, min_p),
        max_new_tokens=max_new_tokens,
        eos_token_id=eos_token_id,
        generator=generator,
        check_model=check_model,
    )
    records = tuple(cycle.record for cycle in cycles)
    tokens = tuple(token for record in records for token in record.tokens)
    finished = "eos" if tokens[-1] in eos_ids(eos_token_id, target) else "budget"
    return Generation(tokens, records, finished, made[-1] if made else None)


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
