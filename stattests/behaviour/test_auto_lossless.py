"""Texts on a topology that is chosen as they are written follow the target's own law.

The clock is an adversary: how long a forward takes depends on the tokens that it reads, so that the
choice depends on the text. Judged is the next token after every prefix of the first BUDGET tokens
that comes often enough, by the e-test. False alarms: ALPHA_RUN; a bias of TV .2 at one prefix is
missed with probability <= BETA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import inf, log
from typing import Any

import pytest
import torch

from stattests.behaviour.tiny_models import PrefixTable, tiny_llama
from stattests.budget import ALPHA_RUN
from stattests.etest import combine, concentration, log_e, required_n
from univer import auto_topology
from univer.decoder import Cycle, Decoder, cycles
from univer.decoding import Auto, Choice, generate

PROMPT = (1, 0, 1)
BUDGET = 5
DELTA = 0.2
Prefix = tuple[int, ...]


class SlowForSome(PrefixTable):
    """A table whose forwards take the longer the more of the token 1 they read."""

    seconds = 0.0

    def __call__(self, *, input_ids: torch.Tensor, **given: Any) -> Any:
        """The rows, and the time passes."""
        self.seconds += 1 + 2 * float(input_ids.sum())
        return super().__call__(input_ids=input_ids, **given)


@cache
def tables() -> tuple[SlowForSome, PrefixTable]:
    one, other = (tiny_llama(seed, vocabulary=2) for seed in (35, 32))
    return SlowForSome(one, PROMPT, BUDGET + 2), PrefixTable(other, PROMPT, BUDGET + 2)


def registered() -> dict[Prefix, tuple[float, Any]]:
    """Prefix -> (its probability, the law of the next token), of those that come often enough."""
    rows, found = tables()[0].rows, {}
    for length in range(BUDGET):
        for prefix in product(range(2), repeat=length):
            visit = 1.0
            for end in range(length):
                visit *= float(rows[(*PROMPT, *prefix[:end])].softmax(-1)[prefix[end]])
            if visit >= DELTA:
                found[prefix] = (visit, rows[(*PROMPT, *prefix)].softmax(-1).numpy())
    return found


def evidence() -> tuple[float, Counter[str]]:
    """Evidence log E of many texts against the target's law, and what they chose."""
    target, drafter = tables()
    laws, chosen = registered(), Counter[str]()
    alpha = ALPHA_RUN / (2 * len(laws))
    texts = max(required_n(2, DELTA, alpha, visit_prob=visit) for visit, _ in laws.values())
    generator, counts = torch.Generator().manual_seed(7), Counter[Prefix]()
    for _ in range(texts):
        made: list[Choice] = []
        auto = Auto(("chain:1",), 1, made.append, lambda: target.seconds)
        done = generate(
            target,
            drafter,
            PROMPT,
            topology=auto,
            max_new_tokens=BUDGET,
            eos_token_id=(),
            generator=generator,
        )
        chosen.update(str(choice.topology) for choice in made[:1])
        counts.update(done.tokens[:end] for end in range(1, BUDGET + 1))
    log_es = [
        log_e([counts[*prefix, token] for token in range(2)], law, concentration(2, visit, DELTA))
        for prefix, (visit, law) in laws.items()
    ]
    return combine(log_es), chosen


@pytest.mark.stat
def test_texts_follow_the_targets_law_whatever_the_clock_says() -> None:
    assert any(len(prefix) >= 3 for prefix in registered())  # tokens that a chosen topology brings
    found, chosen = evidence()
    assert found < log(1 / ALPHA_RUN)
    assert min(chosen["none"], chosen["chain:1"]) > 50  # the choice does depend on the text


@pytest.mark.stat
def test_a_tree_that_is_thrown_away_after_a_look_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def peeking(decoder: Decoder, *law: Any, **options: Any) -> Iterator[Cycle]:
        """Takes another tree instead of one whose draft it does not like."""
        draw = decoder.draw

        def second(*given: Any, **more: Any) -> Any:
            drawn = draw(*given, **more)
            return draw(*given, **more) if 1 in drawn.tree.tokens[0, 1:] else drawn

        monkeypatch.setattr(decoder, "draw", second)
        yield next(cycles(decoder, *law, **options))

    monkeypatch.setattr(auto_topology, "cycles", peeking)
    assert log(1 / ALPHA_RUN) <= evidence()[0] < inf
