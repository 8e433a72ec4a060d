"""The first tokens of `generate` follow the target's own law, end to end, for each verifier.

The model is a table of a tiny Llama's rows by prefix whose KV cache holds the tokens themselves
(PrefixTable), so that the whole real loop runs in milliseconds. Per case the e-test judges the next
token after every prefix of the first BUDGET tokens. False alarms: ALPHA_RUN over all cases
together; a bias of the joint law of TV .1 at one prefix (.2 on the dynamic tree, whose losslessness
is exact elsewhere) is missed with probability <= BETA.

That takes the fewer texts the rarer a prefix is. So a text is decoded only as far as some prefix
ahead of it still has to be judged: whether it goes on is settled by the tokens that it has, and the
next one follows its law whatever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import inf, log
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stattests.behaviour.tiny_models import PrefixTable, tiny_llama
from stattests.budget import ALPHA_RUN
from stattests.etest import combine, concentration, log_e, required_n
from univer import Filters
from univer.decoding import Cycle, decode, generate

PROMPT = (1, 4, 2)
VOCABULARY = 8
BUDGET = 3  # tokens of a text that are judged
EOS = 4  # a token of the prompt, too: there it ends nothing
SEEDS = 31, 32
DELTA = 0.1
TABLE_DEPTH = 4  # tokens behind the prompt that the table knows: the budget less one, plus a tree
RAGGED = ((0,), (1,), (1, 0), (1, 1))  # a leaf above inner nodes


PLAIN = Filters()


@dataclass(frozen=True)
class Case:
    """One way of decoding; `ends` are the EOS ids, `delta` the TV that is not to be missed."""

    verifier: str
    topology: Any
    filters: Filters = PLAIN
    ends: tuple[int, ...] = ()
    delta: float = DELTA

    def __str__(self) -> str:
        f = self.filters
        shape = self.topology if isinstance(self.topology, str) else "ragged"
        parts = [self.verifier, shape, f"T{f.temperature:g}"]
        parts += [f"k{f.top_k}"] * bool(f.top_k) + [f"p{f.top_p:g}"] * (f.top_p < 1)
        return "-".join([*parts, *["eos"] * bool(self.ends)])


CASES = (
    Case("univer", "2x2"),
    Case("univer", RAGGED, Filters(0.5, top_p=0.9), (EOS,)),
    Case("greedy", "2x2", Filters(0.5), (EOS,)),
    Case("greedy", RAGGED, Filters(top_k=4)),
    Case("rrsw", "2x1", Filters(top_p=0.9)),
    Case("rrsw", RAGGED, Filters(0.5), (EOS,)),
    Case("traversal", "2x2", Filters(top_k=4), (EOS,)),
    Case("traversal", "chain:2", Filters(0.5)),
    Case("target_only", "dynamic:3x2:4", Filters(0.7), (EOS,), delta=0.2),
)


def models() -> tuple[Any, Any]:
    target, drafter = (tiny_llama(seed, vocabulary=VOCABULARY) for seed in SEEDS)
    return target, drafter


@cache
def tables() -> tuple[PrefixTable, PrefixTable]:
    target, drafter = models()
    return PrefixTable(target, PROMPT, TABLE_DEPTH), PrefixTable(drafter, PROMPT, TABLE_DEPTH)


def exact_laws(case: Case) -> dict[tuple[int, ...], tuple[float, NDArray[np.float64]]]:
    """Prefix -> (probability of visiting it and going beyond, the model's law there)."""
    target, _ = tables()
    laws: dict[tuple[int, ...], tuple[float, NDArray[np.float64]]] = {}
    visits: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(BUDGET):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, visit in visits.items():
            law = case.filters(target.rows[(*PROMPT, *prefix)]).numpy()
            laws[prefix] = (visit, law)
            for token, prob in enumerate(law):
                if prob > 0 and token not in case.ends:
                    longer[*prefix, token] = visit * prob
        visits = longer
    return laws


def registered(case: Case) -> dict[tuple[int, ...], tuple[float, NDArray[np.float64]]]:
    """The prefixes that are judged: only one that is visited this often can be so far off."""
    return {
        prefix: (visit, law)
        for prefix, (visit, law) in exact_laws(case).items()
        if visit >= case.delta and (law > 0).sum() > 1
    }


def texts_needed(case: Case) -> dict[tuple[int, ...], int]:
    """Prefix -> texts after which a TV of `delta` there has been caught (STATS 3)."""
    laws = registered(case)
    # `combine` takes half of the mean over the prefixes: the evidence at one of them must pay that.
    alpha = ALPHA_RUN / len(CASES) / (2 * len(laws))
    return {
        prefix: required_n(int((law > 0).sum()), case.delta, alpha, visit_prob=visit)
        for prefix, (visit, law) in laws.items()
    }


def cycles_of(case: Case, models: tuple[Any, Any], generator: torch.Generator) -> Iterator[Cycle]:
    """The cycles of one text of `generate`."""
    return decode(
        *models,
        PROMPT,
        verifier=case.verifier,
        topology=case.topology,
        filters=case.filters,
        max_new_tokens=BUDGET,
        eos_token_id=case.ends,
        generator=generator,
    )


def growing_counts(
    case: Case, needed: dict[tuple[int, ...], int], seed: int
) -> Iterator[Counter[tuple[int, ...]]]:
    """How often each prefix came up, text after text until all prefixes have what they need.

    A text is read on after a prefix that needs no more only if a longer one does; after one that
    nothing is registered at, in as many texts as any prefix needs.
    """
    generator, counts = torch.Generator().manual_seed(seed), Counter[tuple[int, ...]]()
    wanted: dict[tuple[int, ...], int] = {}
    for judged, texts in needed.items():
        for end in range(len(judged) + 1):
            wanted[judged[:end]] = max(wanted.get(judged[:end], 0), texts)
    least = min(needed.values())
    for text in range(max(needed.values())):
        prefix: tuple[int, ...] = ()
        for token in (t for c in cycles_of(case, tables(), generator) for t in c.record.tokens):
            prefix = (*prefix, token)
            counts[prefix] += 1
            if text >= wanted.get(prefix, least):
                break
        yield counts


def evidence(case: Case, counts: Counter[tuple[int, ...]]) -> float:
    """Evidence log E of the counts against the exact laws; infinite for a text that cannot come."""
    laws = exact_laws(case)
    if any(prefix[:-1] not in laws or laws[prefix[:-1]][1][prefix[-1]] == 0 for prefix in counts):
        return inf
    log_es = []
    for prefix, (visit, law) in registered(case).items():
        c = concentration(int((law > 0).sum()), visit, case.delta)
        log_es.append(log_e([counts[*prefix, token] for token in range(VOCABULARY)], law, c))
    return combine(log_es)


@pytest.mark.stat
@pytest.mark.parametrize("case", CASES, ids=str)
def test_law_of_the_first_tokens_is_the_models(case: Case) -> None:
    *_, counts = growing_counts(case, texts_needed(case), seed=2024)
    assert evidence(case, counts) < log(len(CASES) / ALPHA_RUN)


@pytest.mark.stat
def test_a_law_that_is_off_by_the_stated_tv_is_noticed() -> None:
    """Within the texts that are planned; the evidence may be looked at as often as one likes."""
    told = Case("univer", "2x2")
    done = Case("univer", "2x2", Filters(0.7))
    first = exact_laws(told)[()][1], exact_laws(done)[()][1]
    assert abs(first[0] - first[1]).sum() / 2 >= DELTA
    looks = islice(growing_counts(done, texts_needed(told), seed=2024), None, None, 50)
    found = (evidence(told, counts) for counts in looks)
    assert any(log(len(CASES) / ALPHA_RUN) <= value < inf for value in found)


def test_the_table_is_read_through_the_real_loop() -> None:
    for case in CASES:
        texts = []
        for pair in (tables(), models()):
            cycles = cycles_of(case, pair, torch.Generator().manual_seed(1))
            texts.append([cycle.record.tokens for cycle in cycles])
        assert texts[0] == texts[1]


def test_the_cycles_are_those_of_generate() -> None:
    for case in CASES:
        f, texts = case.filters, []
        for seed in range(5):
            cycles = cycles_of(case, tables(), torch.Generator().manual_seed(seed))
            texts.append(tuple(token for cycle in cycles for token in cycle.record.tokens))
            done = generate(
                *tables(),
                PROMPT,
                verifier=case.verifier,
                topology=case.topology,
                temperature=f.temperature,
                top_k=f.top_k,
                top_p=f.top_p,
                max_new_tokens=BUDGET,
                eos_token_id=case.ends,
                seed=seed,
            )
            assert done.tokens == texts[-1]
        assert len(set(texts)) > 1
