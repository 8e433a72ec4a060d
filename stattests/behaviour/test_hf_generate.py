"""`model.generate(custom_generate=speculative(...))` against Hugging Face's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation import logits_process
from transformers.generation.streamers import BaseStreamer

from stattests.behaviour.test_eagle import models as eagle_models
from stattests.behaviour.tiny_models import plain_logits, tiny_llama
from univer import PAPER, Filters, InputError
from univer.decoding import SpeculativeOutput, generate, seeded, speculative
from univer.drafters.layer_skip import layer_skip
from univer.hf_filters import as_filters

PROMPT = torch.tensor([[1, 5, 2]])
VOCABULARY = 8


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(3, layers=4)


@pytest.fixture(scope="module")
def drafter() -> Any:
    return tiny_llama(7, layers=1)


def plain(model: Any, **options: Any) -> Any:
    return model.generate(PROMPT, **{"do_sample": False, "max_new_tokens": 20} | options)


def ours(model: Any, drafter: Any, **options: Any) -> Any:
    loop = speculative(
        drafter,
        verifier=options.pop("verifier", "univer"),
        topology=options.pop("topology", "2x3"),
        generator=options.pop("generator", None),
    )
    return plain(model, custom_generate=loop, **options)


class Log(BaseStreamer):
    """What a streamer is told, call by call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        """Take the prompt [1, T] or a token [1]."""
        self.calls.append(value.tolist())

    def end(self) -> None:
        """Take the end."""
        self.calls.append("end")


class StopsAfter(StoppingCriteria):
    """Stops behind a token, and remembers the lengths that it was asked about."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.asked: list[int] = []

    def __call__(self, input_ids: Any, *_: Any, **__: Any) -> Any:
        """Whether the text [1, T] ends."""
        self.asked.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize("topology", ["2x3", "chain:4", "none"])
@pytest.mark.parametrize("verifier", PAPER)
def test_do_sample_false_gives_the_greedy_text(
    verifier: str, topology: str, target: Any, drafter: Any
) -> None:
    for source in (drafter, target, layer_skip(target, 1)):
        found = ours(target, source, verifier=verifier, topology=topology)
        assert found.tolist() == plain(target).tolist()
        assert found.dtype == torch.int64


def test_an_eagle_head_gives_the_greedy_text() -> None:
    target, head = eagle_models()
    assert ours(target, head).tolist() == plain(target).tolist()


def test_a_list_of_eos_tokens_ends_the_text(target: Any) -> None:
    text = plain(target)[0, 3:].tolist()
    for ends in ([text[5]], [text[9], text[6]], text[0]):
        options = {"eos_token_id": ends, "pad_token_id": 0}
        found = ours(target, target, topology="chain:4", **options)
        assert found.tolist() == plain(target, **options).tolist()


@pytest.mark.parametrize("at", range(1, 8))
def test_the_text_is_cut_where_the_plain_loop_stops(at: int, target: Any) -> None:
    token = plain(target)[0, 2 + at].item()
    runs = []
    for run in (plain, lambda model, **options: ours(model, model, topology="chain:4", **options)):
        criterion = StopsAfter(token)
        text = run(target, stopping_criteria=StoppingCriteriaList([criterion]))
        runs.append((text.tolist(), criterion.asked))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("options", [{"max_length": 11, "max_new_tokens": None}, {"max_time": 0.0}])
def test_limits_of_length_and_time_hold(options: dict[str, Any], target: Any) -> None:
    assert ours(target, target, **options).tolist() == plain(target, **options).tolist()


def test_the_streamer_hears_what_the_plain_loop_tells_it(target: Any, drafter: Any) -> None:
    logs = []
    for run in (plain, lambda model, **options: ours(model, drafter, **options)):
        logs.append(Log())
        run(target, streamer=logs[-1])
    assert logs[0].calls == logs[1].calls
    assert logs[1].calls[0] == PROMPT.tolist()
    assert logs[1].calls[-1] == "end"


def test_the_streamer_hears_each_cycle_before_the_next(target: Any, drafter: Any) -> None:
    log, heard = Log(), []
    hook = target.register_forward_pre_hook(lambda *_: heard.append(len(log.calls)))
    cycles = ours(target, drafter, streamer=log, return_dict_in_generate=True).cycles
    hook.remove()
    told = [1]
    for cycle in cycles[:-1]:
        told.append(told[-1] + len(cycle.tokens))
    assert heard == told


SHAPES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7},
    {"top_k": 3, "temperature": 1.3},
    {"top_p": 0.8},
    {"min_p": 0.1, "top_k": 5, "temperature": 0.9},
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("verifier", PAPER)
def test_sampling_is_univers_own_with_the_same_filters(
    verifier: str, shape: dict[str, Any], target: Any, drafter: Any
) -> None:
    found = ours(
        target,
        drafter,
        verifier=verifier,
        do_sample=True,
        generator=seeded(4),
        **{"top_k": 0} | shape,
    )
    own = generate(
        target,
        drafter,
        PROMPT,
        verifier=verifier,
        topology="2x3",
        max_new_tokens=20,
        generator=seeded(4),
        **shape,
    )
    assert found[0, 3:].tolist() == list(own.tokens)


FILTERS: dict[str, Callable[[], LogitsProcessor]] = {
    "temperature": lambda: logits_process.TemperatureLogitsWarper(0.6),
    "top-k": lambda: logits_process.TopKLogitsWarper(4),
    "top-p": lambda: logits_process.TopPLogitsWarper(0.7),
    "top-h": lambda: logits_process.TopHLogitsWarper(0.5),
    "min-p": lambda: logits_process.MinPLogitsWarper(0.2),
    "typical": lambda: logits_process.TypicalLogitsWarper(0.6),
    "epsilon": lambda: logits_process.EpsilonLogitsWarper(0.05),
    "eta": lambda: logits_process.EtaLogitsWarper(0.05),
    "suppress": lambda: logits_process.SuppressTokensLogitsProcessor([2, 5]),
    "invalid": lambda: logits_process.InfNanRemoveLogitsProcessor(),
    "normalise": lambda: logits_process.LogitNormalization(),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_gives_each_row_the_law_of_generate(name: str, target: Any) -> None:
    processor = FILTERS[name]()
    logits = plain_logits(target, range(VOCABULARY))
    found = as_filters([processor], greedy=False)(logits[None])[0]
    for row, law in zip(logits, found, strict=True):
        alone = processor(PROMPT, row[None].clone())
        torch.testing.assert_close(law, alone.softmax(-1)[0], atol=1e-12, rtol=0)


def test_the_laws_that_are_judged_are_those_of_generate(target: Any) -> None:
    config = GenerationConfig(do_sample=True, temperature=0.8, top_k=5, top_p=0.9)
    processors = target._get_logits_processor(config, input_ids_seq_length=3)
    shape = as_filters(processors, greedy=False)
    logits = plain_logits(target, PROMPT[0].tolist())[-1:]
    expected = processors(PROMPT, logits.clone()).softmax(-1)
    torch.testing.assert_close(shape(logits), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        shape(logits), Filters(0.8, top_k=5, top_p=0.9)(logits), atol=1e-12, rtol=0
    )


def test_processors_shape_the_greedy_text_as_well(target: Any, drafter: Any) -> None:
    banned = plain(target)[0, 3].item()
    options = {"suppress_tokens": [banned]}
    found = ours(target, drafter, **options)
    assert found.tolist() == plain(target, **options).tolist() != plain(target).tolist()


class Halves(LogitsProcessor):
    """A filter of one's own."""

    row_wise = True

    def __call__(self, _: Any, scores: Any) -> Any:
        """Half the scores [n, V]."""
        return scores / 2


def test_a_filter_of_ones_own_is_taken_at_its_word(target: Any, drafter: Any) -> None:
    found = ours(
        target, drafter, do_sample=True, top_k=0, generator=seeded(1), logits_processor=[Halves()]
    )
    told = ours(target, drafter, do_sample=True, top_k=0, generator=seeded(1), temperature=2.0)
    assert found.tolist() == told.tolist()


def test_the_output_object_has_a_record_a_cycle(target: Any, drafter: Any) -> None:
    found = ours(target, drafter, return_dict_in_generate=True)
    assert isinstance(found, SpeculativeOutput)
    assert found.sequences.tolist() == plain(target).tolist()
    tokens = [token for cycle in found.cycles or () for token in cycle.tokens]
    assert tokens == found.sequences[0, 3:].tolist()
    assert found.acceptance_length == 20 / len(found.cycles or ())


def test_the_global_seed_holds_and_a_greedy_text_leaves_it_alone(target: Any, drafter: Any) -> None:
    texts = []
    with torch.random.fork_rng():
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            texts.append(ours(target, drafter, do_sample=True, top_k=0).tolist())
        before = torch.get_rng_state()
        ours(target, drafter)
        assert torch.equal(before, torch.get_rng_state())
    assert texts[0] == texts[1] != texts[2]


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "repetition": ({"repetition_penalty": 1.2}, ("logits_processor", "RepetitionPenalty")),
    "n-gram": ({"no_repeat_ngram_size": 2}, ("logits_processor", "NoRepeatNGram")),
    "least-length": (
        {"min_new_tokens": 4, "eos_token_id": 1, "pad_token_id": 0},
        ("logits_processor", "MinLength"),
    ),
    "beams": ({"num_beams": 2}, ("input_ids", "[2, 3]", "num_beams")),
    "returned": (
        {"do_sample": True, "num_return_sequences": 2},
        ("input_ids", "num_return_sequences"),
    ),
    "padding": ({"attention_mask": torch.tensor([[0, 1, 1]])}, ("attention_mask", "padding")),
    "positions": ({"position_ids": torch.tensor([[1, 2, 3]])}, ("position_ids",)),
    "scores": ({"output_scores": True, "return_dict_in_generate": True}, ("output_scores",)),
    "length": ({"max_new_tokens": 80}, ("max_new_tokens", "64")),
    "subclass": (
        {"logits_processor": [type("Mine", (logits_process.TopKLogitsWarper,), {})(3)]},
        ("logits_processor", "Mine", "row_wise"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(case: str, target: Any, drafter: Any) -> None:
    options, parts = REFUSED[case]
    with pytest.raises(InputError) as caught:
        ours(target, drafter, **options)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_texts_are_refused(target: Any, drafter: Any) -> None:
    with pytest.raises(InputError, match="batch 1"):
        target.generate(PROMPT.expand(2, 3), custom_generate=speculative(drafter), max_new_tokens=3)


@pytest.mark.parametrize("bad", [{"verifier": "best"}, {"topology": "2by5"}])
def test_a_bad_choice_is_refused_when_the_loop_is_made(bad: dict[str, Any], drafter: Any) -> None:
    with pytest.raises(InputError):
        speculative(drafter, **bad)
