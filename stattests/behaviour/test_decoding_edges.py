"""Where a cycle ends early, what `generate` refuses, and what it must not touch."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from stattests.behaviour.tiny_models import plain_logits, tiny_llama
from stattests.crosscheck.both import fitting
from univer import PAPER, VERIFIERS, InputError
from univer.cached_model import CachedModel
from univer.decoding import Decoder, decode, generate
from univer.drafters.layer_skip import layer_skip
from univer.drafters.small_model import SmallModel

PROMPT = [1, 5, 2]
RAGGED = [[0], [1], [2], [1, 0], [1, 1], [1, 1, 0]]
TOPOLOGIES = ["2x3", "chain:4", RAGGED, "3x1", "9x2", "none"]


@cache
def greedy_text(model: Any, length: int) -> list[int]:
    """The model's greedy text by plain forwards."""
    text = list(PROMPT)
    for _ in range(length):
        text.append(int(plain_logits(model, text)[-1].argmax()))
    return text[len(PROMPT) :]


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(3, layers=4)


@pytest.fixture(scope="module")
def drafter() -> Any:
    return tiny_llama(7, layers=1)


def greedy(target: Any, drafter: Any, **options: Any) -> Any:
    usual: dict[str, Any] = {
        "temperature": 0.0,
        "eos_token_id": (),
        "seed": 1,
        "topology": "2x3",
    }
    return generate(target, drafter, PROMPT, **usual | options)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_temperature_0_gives_the_greedy_text(
    verifier: str, topology: Any, target: Any, drafter: Any
) -> None:
    shape = fitting(verifier, topology)
    # What drafts does not ask who decides: the other rows meet one drafter.
    for source in (drafter, target, layer_skip(target, 1))[: 3 if verifier in PAPER else 1]:
        done = greedy(target, source, verifier=verifier, topology=shape, max_new_tokens=20)
        assert list(done.tokens) == greedy_text(target, 20)
        assert done.finished == "budget"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("verifier", PAPER)
def test_temperature_0_gives_the_greedy_text_on_cuda(verifier: str, target: Any) -> None:
    on_cuda = copy.deepcopy(target).to("cuda")
    done = greedy(on_cuda, layer_skip(on_cuda, 1), verifier=verifier, max_new_tokens=20)
    assert list(done.tokens) == greedy_text(target, 20)


@pytest.mark.parametrize("verifier", PAPER)
def test_a_perfect_drafter_is_accepted_whole_with_its_bonus_token(
    verifier: str, target: Any
) -> None:
    done = greedy(target, target, verifier=verifier, topology="chain:4", max_new_tokens=20)
    assert [len(cycle.tokens) for cycle in done.cycles] == [5, 5, 5, 5]
    assert [cycle.num_accepted for cycle in done.cycles] == [4, 4, 4, 4]
    assert done.acceptance_length == 5


@pytest.mark.parametrize("verifier", PAPER)
@pytest.mark.parametrize("budget", range(1, 8))
def test_nothing_beyond_the_budget_is_emitted_or_counted(
    verifier: str, budget: int, target: Any
) -> None:
    done = greedy(target, target, verifier=verifier, topology="chain:4", max_new_tokens=budget)
    assert list(done.tokens) == greedy_text(target, budget)
    last = done.cycles[-1]
    # The first cycle accepts four tokens and adds a fifth; the second starts at the sixth.
    assert last.num_accepted == min((budget - 1) % 5 + 1, 4)
    assert sum(len(cycle.tokens) for cycle in done.cycles) == budget


@pytest.mark.parametrize("verifier", PAPER)
@pytest.mark.parametrize("at", range(7))
def test_nothing_after_eos_is_emitted_or_counted(verifier: str, at: int, target: Any) -> None:
    text = greedy_text(target, 12)
    eos = text[at]
    end = text.index(eos) + 1  # the token may have come up before
    done = greedy(
        target,
        target,
        verifier=verifier,
        topology="chain:4",
        max_new_tokens=12,
        eos_token_id=[eos, 6] if 6 not in text[:end] else eos,
    )
    assert list(done.tokens) == text[:end]
    assert done.finished == "eos"
    assert done.cycles[-1].num_accepted == min((end - 1) % 5 + 1, 4)


def test_the_greedy_text_has_enough_different_tokens_for_these_tests(target: Any) -> None:
    text = greedy_text(target, 7)
    assert len({text.index(token) for token in text}) >= 4


def test_eos_as_the_last_token_of_the_budget_is_eos(target: Any) -> None:
    text = greedy_text(target, 1)
    assert greedy(target, target, max_new_tokens=1, eos_token_id=text[0]).finished == "eos"


def test_eos_comes_from_the_model_unless_given(drafter: Any) -> None:
    model = tiny_llama(3)
    first = greedy_text(model, 1)[0]
    model.generation_config.eos_token_id = [first, 0]
    assert greedy(model, drafter, max_new_tokens=9, eos_token_id=None).tokens == (first,)
    assert len(greedy(model, drafter, max_new_tokens=9).tokens) == 9
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = first
    assert greedy(model, drafter, max_new_tokens=9, eos_token_id=None).tokens == (first,)


@pytest.mark.parametrize("verifier", PAPER)
def test_seeds_are_reproducible_and_differ(verifier: str, target: Any, drafter: Any) -> None:
    def text(seed: int) -> tuple[int, ...]:
        return generate(
            target,
            drafter,
            PROMPT,
            verifier=verifier,
            topology="2x2",
            max_new_tokens=30,
            eos_token_id=(),
            seed=seed,
        ).tokens

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) == 4


def test_a_generator_goes_on_and_no_global_one_is_touched(target: Any, drafter: Any) -> None:
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(1)
    texts = [
        generate(target, drafter, PROMPT, max_new_tokens=20, generator=generator).tokens
        for _ in range(2)
    ]
    assert texts[0] == generate(target, drafter, PROMPT, max_new_tokens=20, seed=1).tokens
    assert texts[0] != texts[1]
    assert torch.equal(before, torch.get_rng_state())


def test_models_and_prompt_are_left_as_they_were(target: Any, drafter: Any) -> None:
    prompt = torch.tensor([PROMPT])
    states = [copy.deepcopy(model.state_dict()) for model in (target, drafter)]
    configs = [model.config.to_dict() for model in (target, drafter)]
    generate(target, drafter, prompt, max_new_tokens=10, seed=0)
    assert prompt.tolist() == [PROMPT]
    for model, state, config in zip((target, drafter), states, configs, strict=True):
        assert model.config.to_dict() == config
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        assert not model.training
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("prompt", [PROMPT, tuple(PROMPT), torch.tensor(PROMPT)], ids=type)
def test_prompts_of_every_form_mean_the_same(prompt: Any, target: Any, drafter: Any) -> None:
    expected = generate(target, drafter, torch.tensor([PROMPT]), max_new_tokens=9, seed=0)
    done = generate(target, drafter, prompt, max_new_tokens=9, seed=0)
    assert done.tokens == expected.tokens


def test_a_drafter_object_and_its_model_mean_the_same(target: Any, drafter: Any) -> None:
    texts = [
        generate(target, source, PROMPT, max_new_tokens=9, seed=0).tokens
        for source in (drafter, SmallModel(drafter))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("verifier", PAPER)
def test_a_tree_wider_than_the_vocabulary_has_absent_nodes(
    verifier: str, target: Any, drafter: Any
) -> None:
    cycles = list(
        decode(
            target,
            drafter,
            PROMPT,
            verifier=verifier,
            topology="10x2",
            max_new_tokens=12,
            generator=torch.Generator().manual_seed(0),
        )
    )
    assert all((cycle.drawn.tree.tokens[:, 1:] < 0).any() for cycle in cycles)
    assert sum(len(cycle.record.tokens) for cycle in cycles) == 12
    assert all(0 <= token < 8 for cycle in cycles for token in cycle.record.tokens)


@pytest.mark.parametrize("verifier", PAPER)
def test_the_text_may_fill_every_position_of_the_models(verifier: str) -> None:
    model = tiny_llama(3, max_positions=16)
    longer = tiny_llama(3, max_positions=64)
    for topology in ("2x3", "chain:4"):
        done = greedy(model, model, verifier=verifier, topology=topology, max_new_tokens=13)
        assert list(done.tokens) == greedy_text(longer, 13)


@pytest.mark.parametrize("verifier", PAPER)
def test_no_token_is_fed_twice(verifier: str) -> None:
    fed: dict[str, list[int]] = {"target": [], "drafter": []}
    target, drafter = tiny_llama(3), tiny_llama(3)
    for name, model in (("target", target), ("drafter", drafter)):
        model.register_forward_pre_hook(
            lambda _, __, given, name=name: fed[name].append(given["input_ids"].shape[1]),
            with_kwargs=True,
        )
    greedy(target, drafter, verifier=verifier, topology="chain:4", max_new_tokens=15)
    # The prompt once, then the root and four drafts; all are accepted each time.
    assert fed["target"] == [len(PROMPT) + 4, 5, 5]
    # The drafter never saw the fourth draft: it is fed with the next root.
    assert fed["drafter"] == [len(PROMPT), 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]


def test_a_window_is_no_limit_and_means_nothing_to_a_model_without_one(drafter: Any) -> None:
    model = tiny_llama(3)
    model.config.sliding_window = 4  # Llama has no such layers
    assert CachedModel(model).max_positions == 64
    assert list(greedy(model, drafter, max_new_tokens=20).tokens) == greedy_text(model, 20)


def test_timings_and_counts_are_recorded(target: Any, drafter: Any) -> None:
    done = generate(target, drafter, PROMPT, max_new_tokens=12, seed=0, topology="2x2")
    assert done.tokens == tuple(token for cycle in done.cycles for token in cycle.tokens)
    for cycle in done.cycles:
        assert 0 <= cycle.num_accepted <= 2
        assert len(cycle.tokens) in (cycle.num_accepted, cycle.num_accepted + 1)
        assert min(cycle.draft_ms, cycle.target_ms, cycle.verify_ms, cycle.keep_ms) > 0
        parts = (cycle.draft_ms, cycle.target_ms, cycle.verify_ms, cycle.keep_ms)
        assert cycle.total_ms == pytest.approx(sum(parts))


def test_the_timings_hold_the_compaction_of_the_caches(
    target: Any, drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, slow = Decoder.advance, []

    def advance_slowly(self: Decoder, output: Any) -> None:
        advance(self, output)
        slow.append(1.0)

    monkeypatch.setattr(Decoder, "advance", advance_slowly)
    monkeypatch.setattr(Decoder, "now", lambda _: sum(slow))
    cycles = generate(target, drafter, PROMPT, max_new_tokens=12, seed=0, topology="2x2").cycles
    assert len(slow) == len(cycles) - 1 > 1
    assert all(cycle.keep_ms == 1000 for cycle in cycles[:-1])
    assert cycles[-1].total_ms == 0


def _training() -> Any:
    return tiny_llama(3).train()


def _flash() -> Any:
    model = tiny_llama(3)
    model.config._attn_implementation = "flash_attention_2"
    return model


def _recurrent() -> Any:
    model = tiny_llama(3)
    model.config.layer_types = ["full_attention", "linear_attention"]
    return model


# Models are functions that build them: collecting the tests must not.
BAD_INPUT: dict[str, tuple[dict[str, Any], str]] = {
    "verifier": ({"verifier": "eagle"}, r"verifier: 'eagle' is unknown.*univer"),
    "topology": ({"topology": "2by5"}, r"topology: .*'2by5'"),
    "temperature": ({"temperature": -1.0}, r"temperature: expected a number >= 0, got -1.0"),
    "top-k": ({"top_k": -1}, r"top_k: "),
    "top-p": ({"top_p": 0.0}, r"top_p: "),
    "min-p": ({"min_p": 2.0}, r"min_p: "),
    "no-randomness": ({"seed": None}, r"generator, seed: .* got neither"),
    "seed": ({"seed": "x"}, r"seed: expected an integer from 0 .*, got 'x'"),
    "seed-bool": ({"seed": True}, r"seed: .*, got True"),
    "seed-negative": ({"seed": -1}, r"seed: expected an integer from 0 to 2\*\*63 - 1, got -1"),
    "seed-large": ({"seed": 2**70}, r"seed: expected an integer .*, got 1180591620717411303424"),
    "two-randomness": ({"generator": torch.Generator()}, r"generator, seed: .* got both"),
    "budget-0": ({"max_new_tokens": 0}, r"max_new_tokens: expected an integer >= 1, got 0"),
    "budget-float": ({"max_new_tokens": 2.5}, r"max_new_tokens: .* got 2.5"),
    "budget-positions": (
        {"max_new_tokens": 62},
        r"max_new_tokens: .*65 positions, .*target has 64",
    ),
    "budget-drafter": (
        {"drafter": lambda: tiny_llama(7, max_positions=8), "max_new_tokens": 6},
        r"max_new_tokens: .*9 positions, but the drafter has 8",
    ),
    "prompt-empty": ({"prompt": []}, r"prompt: it is empty"),
    "prompt-empty-tensor": ({"prompt": torch.zeros(1, 0, dtype=torch.int64)}, r"prompt: it is emp"),
    "prompt-text": ({"prompt": "hello"}, r"prompt: expected token ids, got str"),
    "prompt-number": ({"prompt": 5}, r"prompt: expected token ids, got int"),
    "prompt-float": ({"prompt": torch.zeros(3)}, r"prompt: expected integer token ids"),
    "prompt-batch": (
        {"prompt": torch.ones(2, 3, dtype=torch.int64)},
        r"prompt: .*batch 1.*\[2, 3\]",
    ),
    "prompt-range": ({"prompt": [1, 8]}, r"prompt: entry 1 is 8; expected a token id in \[0, 8\)"),
    "prompt-negative": ({"prompt": [-1, 2]}, r"prompt: entry 0 is -1"),
    "eos": ({"eos_token_id": [1, -2]}, r"eos_token_id: expected token ids"),
    "eos-text": ({"eos_token_id": "</s>"}, r"eos_token_id: expected token ids"),
    "vocabulary": (
        {"drafter": lambda: tiny_llama(7, vocabulary=9)},
        r"drafter: its vocabulary has 9 tokens but the target's has 8",
    ),
    "drafter-type": ({"drafter": object()}, r"drafter: expected a causal LM .* got object"),
    "target-type": ({"target": object()}, r"target: expected a causal LM .* got object"),
    "target-training": ({"target": _training}, r"target: .*training mode; call .eval"),
    "drafter-training": ({"drafter": _training}, r"drafter: .*training mode"),
    "attention": (
        {"target": _flash},
        r"target: attention 'flash_attention_2' takes no tree mask",
    ),
    "recurrent": ({"target": _recurrent}, r"target: layers of type linear_attention"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_by_name(case: str, target: Any, drafter: Any) -> None:
    options, message = BAD_INPUT[case]
    built = {name: value() if callable(value) else value for name, value in options.items()}
    arguments = {"target": target, "drafter": drafter, "prompt": PROMPT, "seed": 0} | built
    with pytest.raises(InputError, match=message):
        generate(**{"max_new_tokens": 4} | arguments)


@pytest.mark.parametrize("keep", [0, 3, -1, 1.0, True])
def test_layer_skip_refuses_what_does_not_fit(keep: Any, target: Any) -> None:
    with pytest.raises(InputError, match=r"keep: expected an integer from 1 to 2"):
        layer_skip(target, keep)


def test_padded_vocabularies_count_by_their_logits() -> None:
    target, drafter = tiny_llama(3, vocabulary=10), tiny_llama(7, vocabulary=10)
    for model in (target, drafter):
        model.config.vocab_size = 8  # what a tokenizer would say
    assert len(generate(target, drafter, [9, 1], max_new_tokens=9, seed=0).tokens) == 9
