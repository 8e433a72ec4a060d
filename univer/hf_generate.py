"""Speculative decoding inside Hugging Face's own call.

    model.generate(**inputs, custom_generate=speculative(drafter), do_sample=True, ...)

`generate` reads the arguments and prepares logits processors and stopping criteria as ever; only
its loop is replaced. The text has the law that `generate` would give it, and stops where it would.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from univer.auto_topology import (
    Shape,
    ShapeSpec,
    clock_of,
    cycles_on,
    overheard,
    parse_topology,
)
from univer.cost_model import Choice
from univer.decoder import CycleRecord, Decoder
from univer.drafters import Drafter
from univer.dynamic_tree import check_draft_law
from univer.errors import InputError
from univer.hf_filters import as_filters
from univer.verifiers import Verifier, resolve

NOT_KEPT = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# What `generate` itself hands over beside the text; none of it changes the text.
PREPARED = {"attention_mask", "position_ids", "cache", "use_cache", "logits_to_keep"}


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with return_dict_in_generate=True.

    sequences: int64 [1, T], the prompt and the new tokens.
    cycles: one record a cycle.
    choice: the topology chosen last, as in `Generation`.
    """

    cycles: tuple[CycleRecord, ...] | None = None
    choice: Choice | None = None

    @property
    def acceptance_length(self) -> float:
        """Tokens a cycle, the next token counted."""
        records = self.cycles or ()
        return sum(len(record.tokens) for record in records) / len(records)


def speculative(
    drafter: Drafter | Any,
    *,
    verifier: str | Verifier = "univer",
    topology: ShapeSpec = "2x5",
    generator: torch.Generator | None = None,
    check_model: bool = True,
) -> Speculative:
    """The loop for `model.generate(..., custom_generate=...)`; it may be used again and again.

    Sampling, streaming, stopping and EOS are those of `generate`: do_sample=False gives the greedy
    text; logits processors must be filters (`as_filters`), which shape draft and target alike. One
    text at a time (batch 1, no beams).

    Args:
        drafter: a Drafter, or another causal LM over the same token ids.
        verifier: a name in VERIFIERS or a Verifier.
        topology: the shape of the draft trees, as in `univer.decoding.generate`; "auto" measures
            anew in every text: give the next ones `.choice.topology` of the first.
        generator: where the random numbers come from; None takes torch's global one, as `generate`
            does, so that `set_seed` works.
        check_model: as in `univer.decoding.generate`.

    Returns:
        Speculative: a callable that returns what `generate` returns: token ids int64 [1, T], or
        with return_dict_in_generate=True a SpeculativeOutput with one record a cycle.

    Raises:
        InputError: an unknown verifier or topology; when it is called, what does not fit.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from univer.drafters.layer_skip import layer_skip
        >>> config = LlamaConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
        ...     num_attention_heads=1, eos_token_id=None,
        ... )
        >>> model = LlamaForCausalLM(config).eval()
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> loop = speculative(layer_skip(model, 1), verifier="univer", topology="2x3")
        >>> model.generate(ids, custom_generate=loop, do_sample=True, max_new_tokens=9).shape
        torch.Size([1, 12])
    """
    rule = resolve(verifier)
    shape = parse_topology(topology, rule.max_arity)
    check_draft_law(shape, rule.drafting)
    return Speculative(drafter, rule, shape, generator, check_model)


@dataclass(frozen=True)
class Speculative:
    """What `speculative` makes, to be called by `generate` and by nobody else."""

    drafter: Any
    verifier: Verifier
    topology: Shape
    generator: torch.Generator | None
    check_model: bool = True

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        *,
        logits_processor: Sequence[Any],
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **inputs: Any,
    ) -> Tensor | SpeculativeOutput:
        """Continue the text [1, T].

        Raises:
            InputError: more than one text, a processor that is not a filter, or inputs and outputs
                that speculative decoding does not have.
        """
        greedy = not generation_config.do_sample
        filters = as_filters(logits_processor, greedy=greedy)
        _check_inputs(model, input_ids, inputs)
        _check_outputs(generation_config)
        streamer = _streamer_of_generate() if streamer is None else streamer
        ids = input_ids

        def cut(emitted: Sequence[int]) -> tuple[tuple[int, ...], bool]:
            """Token by token, as `generate` would have emitted them."""
            nonlocal ids
            for count, token in enumerate(emitted, start=1):
                ids = torch.cat([ids, ids.new_tensor([[token]])], 1)
                ended = bool(stopping_criteria(ids, None).all())
                if streamer is not None:
                    streamer.put(torch.tensor([token]))
                if ended:
                    return tuple(emitted[:count]), True
            return tuple(emitted), False

        # Like `generate`, which emits one token before it looks at the length.
        budget = max(1, stopping_criteria.max_length - input_ids.shape[1])
        made: list[Choice] = []
        shape = overheard(self.topology, made)
        decoder = Decoder(
            model,
            self.drafter,
            input_ids,
            filters=filters,
            max_new_tokens=budget,
            clock=clock_of(shape),
            check_model=self.check_model,
        )
        loop = cycles_on(decoder, self.verifier, shape, cut=cut, generator=self._generator(greedy))
        records = tuple(cycle.record for cycle in loop)
        if streamer is not None:
            streamer.end()
        if generation_config.return_dict_in_generate:
            return SpeculativeOutput(
                sequences=cast(torch.LongTensor, ids),
                cycles=records,
                choice=made[-1] if made else None,
            )
        return ids

    def _generator(self, greedy: bool) -> torch.Generator:
        if self.generator is not None:
            return self.generator
        # A greedy text needs no luck, and `generate` leaves the global stream alone there.
        return torch.Generator().manual_seed(0) if greedy else torch.default_generator


def _check_inputs(model: Any, input_ids: Tensor, inputs: Mapping[str, Any]) -> None:
    if model.config.is_encoder_decoder:
        raise InputError(
            f"model: {type(model).__name__} has an encoder; speculative decoding needs a"
            " decoder-only model."
        )
    others = sorted(name for name in inputs.keys() - PREPARED if inputs[name] is not None)
    if others:
        raise InputError(
            f"{others[0]}: speculative decoding feeds the model token ids alone; leave it out."
        )
    if input_ids.shape[0] != 1:
        raise InputError(
            f"input_ids: expected one text [1, T], got {list(input_ids.shape)}; speculative"
            " decoding writes one at a time (batch 1, num_beams 1, num_return_sequences 1)."
        )
    mask, places, cache = (inputs.get(name) for name in ("attention_mask", "position_ids", "cache"))
    if mask is not None and not bool((mask == 1).all()):
        raise InputError("attention_mask: it hides tokens; pass the text alone, without padding.")
    count = torch.arange(input_ids.shape[1], device=input_ids.device)
    if places is not None and not torch.equal(places.flatten().to(count), count):
        raise InputError("position_ids: expected 0, 1, 2, ...; leave them out.")
    if cache is not None and cache.get_seq_length() > 0:
        raise InputError("cache: it holds a text already; leave it out and pass the whole text.")


def _check_outputs(config: Any) -> None:
    asked = [name for name in NOT_KEPT if getattr(config, name, False)]
    if config.return_dict_in_generate and asked:
        raise InputError(f"{asked[0]}: speculative decoding keeps none; leave it out.")


def _streamer_of_generate() -> Any:
    """The streamer that the calling `generate` was given.

    transformers (5.24) hands a callable every argument but this one, after feeding the prompt to
    it: a reader at its other end would wait for ever. So it is looked up where it is.
    """
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "generate" and module == "transformers.generation.utils":
            return frame.f_locals.get("streamer")
        frame = frame.f_back  # type: ignore[assignment]
    return None
