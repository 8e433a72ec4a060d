"""The demonstration's statistics: whose text is judged, and what the table and the verdict say."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runs.demo import tokens_a_prompt
from gpu_runs.paired import TOKENS_A_VISIT, Context, clustered_mean, judge, paired_contexts, visits
from gpu_runs.pit import pit_of_cycle
from gpu_runs.prompts import read_prompts
from gpu_runs.separate import Decoded
from gpu_runs.tables import evidence, losslessness, paired_lines, pooled_values
from stattests.behaviour.tiny_models import plain_logits, tiny_llama
from stattests.budget import ALPHA_RUN, PIT_CELLS
from stattests.etest import detectable_tv, pit_values
from univer import PAPER, VERIFIERS, Filters, Topology
from univer.decoding import Decoder, decode


def test_clustered_errors_count_prompts_not_contexts() -> None:
    values = [1.0, 2.0, 4.0]
    plain = math.sqrt(sum((x - 7 / 3) ** 2 for x in values) / 2 / 3)
    assert clustered_mean(values, ["a", "b", "c"]) == pytest.approx((7 / 3, plain))
    repeated = clustered_mean(
        [x for x in values for _ in range(10)], list("a" * 10 + "b" * 10 + "c" * 10)
    )
    assert repeated == pytest.approx((7 / 3, plain))
    assert math.isnan(clustered_mean([1.0, 2.0], ["a", "a"])[1])


def test_every_verifier_drives_in_every_category_and_later_on_every_prompt() -> None:
    prompts, names = read_prompts(), tuple(PAPER)
    first = list(islice(visits(prompts, names), 24))
    assert len({prompt.category for prompt, _ in first[:6]}) == 6
    assert len({(prompt.category, driver) for prompt, driver in first}) == 24
    four_passes = list(islice(visits(prompts, names), 4 * 48))
    assert len({(prompt.prompt_id, driver) for prompt, driver in four_passes}) == 4 * 48


@pytest.mark.parametrize("ends", [frozenset[int](), frozenset({2})], ids=["budget", "eos"])
def test_a_visit_has_a_fixed_number_of_tokens_or_ends_at_eos(ends: frozenset[int]) -> None:
    target, drafter, asked = tiny_llama(3), tiny_llama(7), count(1)
    contexts = list(
        paired_contexts(
            target,
            drafter,
            [(prompt, [1, 5]) for prompt in read_prompts()],
            topology=Topology.parse("2x2"),
            filters=Filters(),
            drives=tuple(PAPER),
            ends=ends,
            more=lambda: next(asked) < 24,
            generator=torch.Generator().manual_seed(0),
        )
    )
    tokens = Counter[tuple[str, str]]()
    for judged in contexts:
        tokens[judged.prompt_id, judged.driver] += len(judged.values)
    assert len(tokens) == next(asked) - 1 == 24  # the time is looked at between visits alone
    assert max(tokens.values()) == TOKENS_A_VISIT
    assert (min(tokens.values()) < TOKENS_A_VISIT) == bool(ends)


@pytest.mark.parametrize("drives", PAPER)
def test_text_goes_on_with_a_verifier_of_the_tree_drawn_last(drives: str) -> None:
    drawn_laws = []

    class Watched(Decoder):
        def draw(self, drafting: str, *arguments: Any, **options: Any) -> Any:
            drawn_laws.append(drafting)
            return super().draw(drafting, *arguments, **options)

    target, drafter = tiny_llama(3), tiny_llama(7)
    decoder = Watched(target, drafter, [1, 2], filters=Filters(), max_new_tokens=9)
    generator = torch.Generator().manual_seed(0)
    shape, ends = Topology.parse("2x2"), frozenset[int]()
    judged = judge(decoder, shape, drives, left=9, ends=ends, generator=generator)
    assert sorted(drawn_laws) == ["top_residual", "without_replacement"]
    assert drawn_laws[-1] == VERIFIERS[drives].drafting
    assert decoder.text == [1, 2, *judged.tokens]
    assert set(judged.expected) == set(PAPER)
    assert all(0 <= length <= 2 for length in judged.expected.values())


def test_pit_values_use_the_laws_of_each_tokens_own_prefix() -> None:
    target, drafter, text = tiny_llama(3), tiny_llama(7), [1, 5]
    for cycle in decode(
        target,
        drafter,
        text,
        topology="chain:2",
        max_new_tokens=20,
        generator=torch.Generator().manual_seed(0),
    ):
        tokens = cycle.record.tokens
        prefixes = [[*text, *tokens[:at]] for at in range(len(tokens))]
        laws, drafts = (
            torch.stack([plain_logits(model, prefix)[-1].softmax(-1) for prefix in prefixes])
            for model in (target, drafter)
        )
        drafts[2:] = 0  # the chain's leaf has no draft law
        fresh = torch.rand(
            len(tokens), generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        values = pit_of_cycle(cycle.drawn, cycle.output, tokens, torch.Generator().manual_seed(1))
        assert values == pytest.approx(pit_values(laws, drafts, tokens, fresh))
        text = [*text, *tokens]


def context(prompt: str, **lengths: float) -> Context:
    all_lengths = dict.fromkeys(PAPER, 2.0) | lengths
    return Context(prompt, prompt, all_lengths, "univer", (0.5, 0.7), 300, 200)


def test_differences_are_paired() -> None:
    contexts = [context("a", univer=2.5, greedy=2.0), context("b", univer=4.5, greedy=4.0)]
    greedy_line, rrsw_line = paired_lines(contexts)
    assert "UniVer - Greedy" in greedy_line
    assert "+0.500 +- 0.000" in greedy_line
    assert "+1.500 +- 1.000" in rrsw_line


def test_the_separate_decoding_fits_its_time() -> None:
    # Four verifiers, half a second a cycle of two tokens: one second for a token of each.
    assert tokens_a_prompt([context("a")] * 3, seconds=125, prompts=5, room=128) == 20
    assert tokens_a_prompt([context("a")], seconds=125, prompts=5, room=7) == 7
    assert tokens_a_prompt([context("a")], seconds=0, prompts=5, room=128) == 4


def test_values_are_pooled_by_the_verifier_that_wrote_the_text() -> None:
    decoded = {name: Decoded(values=[0.1]) for name in PAPER}
    pooled = pooled_values([context("a"), context("b")], decoded)
    assert pooled.pop("univer") == [0.5, 0.7, 0.5, 0.7, 0.1]
    assert set(map(tuple, pooled.values())) == {(0.1,)}


def test_biased_text_is_called_biased_and_uniform_text_passes() -> None:
    even = [(i + 0.5) / 2000 for i in range(2000)]
    values = dict.fromkeys(PAPER, even)
    passed, lines = losslessness(values)
    assert passed
    assert "a TV of 0.16" in lines[0]
    passed, lines = losslessness(values | {"greedy": [value**2 for value in even]})
    assert not passed
    assert "NOT LOSSLESS: the text of greedy" in lines[0]


def test_one_impossible_token_is_enough() -> None:
    target, drafter = tiny_llama(3), tiny_llama(7)
    generator = torch.Generator().manual_seed(0)
    cycle = next(decode(target, drafter, [1, 5], max_new_tokens=4, generator=generator))
    tokens = cycle.record.tokens
    logits = cycle.drawn.target_logits.clone()
    logits[0, 0, tokens[0]] = -math.inf
    drawn = replace(cycle.drawn, target_logits=logits)
    values = pit_of_cycle(drawn, cycle.output, tokens, generator).tolist()
    assert values[0] == math.inf
    assert evidence(values) == math.inf
    passed, lines = losslessness({name: [0.5] for name in PAPER} | {"rrsw": values})
    assert not passed
    assert "NOT LOSSLESS: the text of rrsw" in lines[0]
    assert f"RRSw +inf ({len(tokens)} tokens)" in lines[1]


@pytest.mark.parametrize("tokens", [140, 1000, 10_000])
def test_the_bets_catch_the_tv_that_the_line_promises(tokens: int) -> None:
    alpha = ALPHA_RUN / len(PAPER)
    tv = detectable_tv(tokens, PIT_CELLS, alpha)
    kept = min(PIT_CELLS // 2, int(PIT_CELLS * (1 - tv)))
    law = np.repeat([1 / PIT_CELLS + tv / kept, 0.0], [kept, PIT_CELLS - kept])
    rest = PIT_CELLS - kept
    law[kept:] = (1 - law[:kept].sum()) / rest
    counts = np.random.default_rng(0).multinomial(tokens, law, size=300)
    cells = (np.arange(PIT_CELLS) + 0.5) / PIT_CELLS
    missed = sum(evidence(np.repeat(cells, row).tolist()) < math.log(1 / alpha) for row in counts)
    assert missed <= 5  # of 300 with probability BETA each: six or more once in 10^6 runs or less
