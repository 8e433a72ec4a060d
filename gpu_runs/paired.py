"""The paired comparison: in each context one tree per draft law, every verifier judged on it.

A verifier's expected length given a tree is exact (its stop law), so the comparison has no noise
from decisions, and verifiers of one draft law share even the tree's. They take turns
in continuing the text, a visit each: where cycles begin depends a little on who decides,
and no verifier should be judged only where it itself, or only where another, happened to stop.

The text of a visit is its driver's own, and so are the PIT values of its tokens. A visit has a
number of tokens that is fixed beforehand, or ends at EOS, and the time is looked at only between
visits: a number of cycles, or a clock within a visit, would depend on the tokens and spoil the PIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import sqrt
from typing import Any

import numpy as np
import torch

from gpu_runs.pit import pit_of_cycle
from gpu_runs.prompts import Prompt
from univer import PAPER, VERIFIERS, Filters, Topology, stop_law
from univer.decoding import Decoder, Drawn, until_end
from univer.verifiers import VerifyOutput

TOKENS_A_VISIT = 8  # few, so that a short run still reaches prompts of all categories


@dataclass(frozen=True)
class Context:
    """One context and what each verifier can expect in it.

    lengths: verifier -> acceptance length, next token counted: exact, given its draft law's tree.
    driver: the verifier whose decision continues the text.
    values: PIT values of the tokens that it added to the visit's.
    draft_ms, target_ms: of the tree that it was drawn on.
    """

    prompt_id: str
    category: str
    lengths: dict[str, float]
    driver: str
    values: tuple[float, ...]
    draft_ms: float
    target_ms: float


def visits(prompts: Sequence[Prompt], drives: Sequence[str]) -> Iterator[tuple[Prompt, str]]:
    """Prompt and driver of visit after visit, without end.

    Prompts come in their order, again and again. Drivers come in turn, shifted by one after each
    round of the categories and after each pass over the prompts: otherwise each would only ever see
    the same prompts.
    """
    a_round = len({prompt.category for prompt in prompts})
    for visit in count():
        turn = visit + visit // a_round + visit // len(prompts)
        yield prompts[visit % len(prompts)], drives[turn % len(drives)]


@dataclass(frozen=True)
class Judged:
    """A context in which all verifiers were judged, each on the tree of its own draft law.

    trees: draft law -> the tree drawn in this context.
    expected: verifier -> expected number of accepted tokens, exact given its tree.
    driver: the verifier whose decision goes on with the text.
    output: that decision.
    tokens: what of it the visit takes: nothing beyond its number of tokens or EOS.
    verify_ms: the decision's time.
    """

    trees: dict[str, Drawn]
    expected: dict[str, float]
    driver: str
    output: VerifyOutput
    tokens: tuple[int, ...]
    verify_ms: float

    @property
    def drawn(self) -> Drawn:
        """The driver's tree."""
        return self.trees[VERIFIERS[self.driver].drafting]


def judge(
    decoder: Decoder,
    topology: Topology,
    driver: str,
    *,
    left: int,
    ends: frozenset[int],
    generator: torch.Generator,
    verifiers: Sequence[str] = PAPER,
) -> Judged:
    """Judge the verifiers in the decoder's context and advance it by its driver's decision.

    Args:
        decoder: where the text stands.
        topology: the shape of the trees.
        driver: the verifier that decides, one of `verifiers`.
        left: tokens that the visit still has.
        ends: token ids that end it.
        generator: where the random numbers come from.
        verifiers: those that are judged.
    """
    own = VERIFIERS[driver].drafting
    # The law of the verifier that decides comes last: its tree is the one in the caches.
    laws = sorted({VERIFIERS[n].drafting for n in verifiers}, key=lambda law: (law == own, law))
    trees, expected = {}, {}
    for law in laws:
        drawn = trees[law] = decoder.draw(law, topology, generator=generator)
        for name in verifiers:
            if VERIFIERS[name].drafting == law:
                judged = stop_law(name, drawn.tree, drawn.target_probs, drawn.draft_probs)
                expected[name] = judged.expected_accepted.item()
    start = decoder.now()
    output = decoder.decide(driver, drawn, generator=generator)
    verify_ms = 1e3 * (decoder.now() - start)
    decoder.advance(output)
    emitted = [t for t in output.tokens[0].tolist() if t >= 0]
    return Judged(trees, expected, driver, output, until_end(emitted[:left], ends), verify_ms)


def visit(
    target: Any,
    drafter: Any,
    prompt: Sequence[int],
    *,
    topology: Topology,
    filters: Filters,
    driver: str,
    tokens: int,
    ends: frozenset[int],
    generator: torch.Generator,
    verifiers: Sequence[str] = PAPER,
) -> Iterator[Judged]:
    """The contexts of one text: this many tokens behind the prompt, or up to EOS.

    Args:
        target: a causal LM.
        drafter: another one, or a Drafter.
        prompt: token ids.
        topology: the shape of every tree.
        filters: for draft and target alike.
        driver: the verifier that writes the text.
        tokens: how many.
        ends: token ids that end the visit.
        generator: where the random numbers come from.
        verifiers: those that are judged.
    """
    budget = tokens + topology.depth
    decoder = Decoder(target, drafter, prompt, filters=filters, max_new_tokens=budget)
    left = tokens
    while left > 0:
        judged = judge(
            decoder,
            topology,
            driver,
            left=left,
            ends=ends,
            generator=generator,
            verifiers=verifiers,
        )
        yield judged
        left = 0 if judged.tokens[-1] in ends else left - len(judged.tokens)


def positions_needed(prompt: int, topology: Topology) -> int:
    """Positions of a visit to a prompt of this many tokens; its last tree may reach beyond it."""
    return prompt + TOKENS_A_VISIT + topology.depth


def paired_contexts(
    target: Any,
    drafter: Any,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    *,
    topology: Topology,
    filters: Filters,
    drives: Sequence[str],
    ends: frozenset[int],
    more: Callable[[], bool],
    generator: torch.Generator,
) -> Iterator[Context]:
    """Judge context after context: TOKENS_A_VISIT tokens a visit, the prompts in turn.

    Args:
        target: a causal LM.
        drafter: another one, or a Drafter.
        prompts: each with its token ids; visited again and again, in this order.
        topology: the shape of every tree.
        filters: for draft and target alike.
        drives: the verifiers that continue the text, in turn.
        ends: token ids that end a visit.
        more: asked after each visit whether there is to be another.
        generator: where the random numbers come from.
    """
    ids = {prompt.prompt_id: tokens for prompt, tokens in prompts}
    for prompt, driver in visits([prompt for prompt, _ in prompts], drives):
        for judged in visit(
            target,
            drafter,
            ids[prompt.prompt_id],
            topology=topology,
            filters=filters,
            driver=driver,
            tokens=TOKENS_A_VISIT,
            ends=ends,
            generator=generator,
        ):
            yield _context(prompt, judged, generator)
        if not more():
            return


def _context(prompt: Prompt, judged: Judged, generator: torch.Generator) -> Context:
    drawn = judged.drawn
    return Context(
        prompt.prompt_id,
        prompt.category,
        {name: 1 + value for name, value in judged.expected.items()},
        judged.driver,
        tuple(pit_of_cycle(drawn, judged.output, judged.tokens, generator).tolist()),
        drawn.draft_ms,
        drawn.target_ms,
    )


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
