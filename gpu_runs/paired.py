"""The paired comparison: in each context one tree per draft law, every verifier judged on it.

A verifier's expected length given a tree is exact (its stop law), so the comparison has no noise
from decisions, and verifiers of one draft law share even the tree's. The four verifiers take turns
in continuing the text: where cycles begin depends a little on who decides, and no verifier should
be judged only where it itself, or only where another, happened to stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from math import sqrt
from typing import Any

import numpy as np
import torch

from gpu_runs.prompts import Prompt
from univer import VERIFIERS, Filters, Topology, stop_law, verify
from univer.decoding import Decoder

CONTEXTS_A_VISIT = 4  # few, so that a short run still reaches prompts of all categories


@dataclass(frozen=True)
class Context:
    """One context and what each verifier can expect in it.

    lengths: verifier -> acceptance length, next token counted: exact, given its draft law's tree.
    drives_text: the verifier whose decision continues the text.
    draft_ms, target_ms: of the tree that it was drawn on.
    """

    prompt_id: str
    category: str
    lengths: dict[str, float]
    drives_text: str
    draft_ms: float
    target_ms: float


def judge(
    decoder: Decoder, topology: Topology, drives: str, prompt: Prompt, generator: torch.Generator
) -> tuple[Context, tuple[int, ...]]:
    """Judge all verifiers in the decoder's context and advance it; also the tokens added."""
    own = VERIFIERS[drives].drafting
    # The law of the verifier that decides comes last: its tree is the one in the caches.
    laws = sorted({row.drafting for row in VERIFIERS.values()}, key=lambda law: (law == own, law))
    lengths = {}
    for law in laws:
        drawn = decoder.draw(law, topology, generator=generator)
        for name, row in VERIFIERS.items():
            if row.drafting == law:
                judged = stop_law(row, drawn.tree, drawn.target_probs, drawn.draft_probs)
                lengths[name] = 1 + judged.expected_accepted.item()
    output = verify(drives, drawn.tree, drawn.target_probs, drawn.draft_probs, generator=generator)
    decoder.advance(output)
    context = Context(
        prompt.prompt_id, prompt.category, lengths, drives, drawn.draft_ms, drawn.target_ms
    )
    return context, tuple(t for t in output.tokens[0].tolist() if t >= 0)


def paired_contexts(
    target: Any,
    drafter: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    topology: Topology,
    filters: Filters,
    drives: Sequence[str],
    ends: frozenset[int],
    generator: torch.Generator,
) -> Iterator[Context]:
    """Judge context after context without end: a few a visit, the prompts in turn.

    Args:
        target: a causal LM.
        drafter: another one, or a Drafter.
        tokenizer: the target's.
        prompts: visited again and again, in this order.
        topology: the shape of every tree.
        filters: for draft and target alike.
        drives: the verifiers that continue the text, in turn.
        ends: token ids that end a visit.
        generator: where the random numbers come from.
    """
    turns = cycle(drives)
    for visit in count():
        prompt = prompts[visit % len(prompts)]
        budget = CONTEXTS_A_VISIT * (topology.depth + 1)
        decoder = Decoder(
            target,
            drafter,
            prompt.token_ids(tokenizer),
            filters=filters,
            max_new_tokens=budget,
        )
        for _ in range(CONTEXTS_A_VISIT):
            context, tokens = judge(decoder, topology, next(turns), prompt, generator)
            yield context
            if ends & set(tokens):
                break


def clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float]:
    """The mean and its standard error with errors clustered, here by prompt.

    Contexts of one prompt resemble each other; only prompts count as independent. The error is nan
    with fewer than two clusters.

    Example:
        >>> clustered_mean([1.0, 1.0, 3.0, 3.0], ["a", "a", "b", "b"])
        (2.0, 1.0)
    """
    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    _, group = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.bincount(group, weights=x - mean)
    if len(sums) < 2:
        return mean, float("nan")
    return mean, float(sqrt(len(sums) / (len(sums) - 1) * (sums**2).sum()) / len(x))
