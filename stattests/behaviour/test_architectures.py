"""Texts of any architecture are the model's own, or a sentence comes before the first forward."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stattests.behaviour.tiny_architectures import (
    ARCHITECTURES,
    CHAINS,
    NOTHING,
    STEPS,
    TAKES,
    TREES,
    alike,
    document,
    tiny,
)
from stattests.behaviour.tiny_models import LAW_TOLERANCE, plain_logits
from univer import DraftTree, Filters, InputError, Topology, layer_kinds, model_check
from univer.cached_model import AGAIN, CachedModel
from univer.decoding import Decoder, decode, generate, speculative
from univer.drafters.eagle import EagleHead
from univer.drafters.eagle_network import EagleNetwork
from univer.drafters.layer_skip import layer_skip

PROMPT = [3, 11, 25, 7, 30]
NEW = 60  # tokens: far beyond windows of 6 or 7
NOISE = 0.03  # on a drafter's weights: right now and then
# Rounding moves these logits by some 1e-6, which would decide between two that all but tie.
MARGIN = 1e-4
DOCUMENT = Path(__file__).parents[2] / "docs" / "MODELS.md"
# One model a kind of layers: full, sliding, mixed, chunked, sinks, MLA, experts; slots; states.
KINDS_OF_TREES = ("llama", "mistral", "gemma3_text", "llama4_text", "gpt_oss", "deepseek_v2")
KINDS_OF_CHAINS = ("gpt_neo", "bloom", "qwen3_next", "lfm2", "falcon_h1", "mamba")
STATES = ("qwen3_next", "lfm2", "mamba2", "mamba", "zamba2")
EXPERTS = ("mixtral", "qwen3_moe")


def greedy(target: Any, drafter: Any, topology: Any, **options: Any) -> Any:
    usual: dict[str, Any] = {
        "temperature": 0.0,
        "max_new_tokens": NEW,
        "eos_token_id": (),
        "seed": 0,
    }
    return generate(target, drafter, PROMPT, topology=topology, **usual | options)


def is_greedy_text(model: Any, tokens: tuple[int, ...]) -> bool:
    """Whether each token is the first choice after the ones before it, in one plain forward."""
    logits = plain_logits(model, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > MARGIN
    return logits.argmax(-1).tolist() == list(tokens)


def forbid_forwards(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    def forward(*_: Any, **__: Any) -> None:
        raise AssertionError("a forward ran")

    monkeypatch.setattr(model, "forward", forward)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("topology", ["chain:4", "2x3"])
def test_text_at_temperature_0_is_the_models_own_or_refused(
    name: str, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, takes = tiny(name), ARCHITECTURES[name]
    if takes == TREES or (takes != NOTHING and topology == "chain:4"):
        done = greedy(model, alike(model, NOISE), topology)
        assert is_greedy_text(model, done.tokens)
        assert len(set(done.tokens)) >= 4
        return
    forbid_forwards(monkeypatch, model)
    said = "neither trees nor chains" if takes == NOTHING else "takes no trees, but chains"
    with pytest.raises(InputError, match=said) as refused:
        greedy(model, model, topology)
    assert repr(name.split()[0]) in str(refused.value)


@pytest.mark.parametrize("name", ["gptj", "gpt_oss", "gpt_neo", "bloom", *STATES])
def test_a_perfect_drafter_is_accepted_whole(name: str) -> None:
    done = greedy(tiny(name), tiny(name), "chain:4")
    assert [len(cycle.tokens) for cycle in done.cycles] == [5] * 12


@pytest.mark.parametrize("name", [*KINDS_OF_TREES, *KINDS_OF_CHAINS, *EXPERTS])
def test_laws_handed_to_the_verifier_are_those_of_plain_forwards(name: str) -> None:
    model = tiny(name)
    drafter = alike(model, NOISE)
    topology = "2x3" if ARCHITECTURES[name] == TREES else "chain:4"
    generator, text = torch.Generator().manual_seed(4), list(PROMPT)
    for cycle in decode(
        model, drafter, PROMPT, topology=topology, max_new_tokens=20, generator=generator
    ):
        tree, filters = cycle.drawn.tree, Filters()
        for node, token in enumerate(tree.tokens[0].tolist()):
            if token < 0:
                continue
            path = [*text, *tree.tokens[0, path_to(tree.topology, node)].tolist()]
            pairs = [(model, cycle.drawn.target_probs[0, node])]
            if node in tree.topology.internal:
                row = tree.topology.internal.index(node)
                pairs.append((drafter, cycle.drawn.draft_probs[0, row]))
            for source, law in pairs:
                plain = filters(plain_logits(source, path)[-1])
                torch.testing.assert_close(law, plain, rtol=0, atol=LAW_TOLERANCE[torch.float32])
        text += cycle.record.tokens
    assert len(text) == len(PROMPT) + 20


def path_to(topology: Topology, node: int) -> list[int]:
    path: list[int] = []
    while node:
        path.insert(0, node)
        node = topology.parents[node]
    return path


@pytest.mark.parametrize("name", STATES)
def test_rejections_bring_back_the_state_and_no_tail_grows(name: str) -> None:
    model, drafter, fed = tiny(name), tiny(name, 5), []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: fed.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        prompt = [*PROMPT, *range(20)]
        tokens = generate(
            model,
            drafter,
            prompt,
            topology="chain:4",
            temperature=0.0,
            max_new_tokens=40,
            eos_token_id=(),
            seed=0,
        ).tokens
    finally:
        hook.remove()
    logits = plain_logits(model, [*prompt, *tokens])[len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == list(tokens)
    assert max(fed[1:]) <= AGAIN + 4


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_neo", *STATES])
def test_a_tree_is_drawn_as_often_as_wanted_in_one_context(name: str) -> None:
    model = tiny(name)
    decoder = Decoder(model, model, PROMPT, filters=Filters(), max_new_tokens=20)
    shape = Topology.parse("chain:3")
    for _ in range(3):
        laws = [
            decoder.draw("top_residual", shape, generator=torch.Generator().manual_seed(1))
            for _ in range(2)
        ]
        torch.testing.assert_close(*[drawn.target_logits for drawn in laws], rtol=0, atol=1e-4)
        torch.testing.assert_close(*[drawn.draft_logits for drawn in laws], rtol=0, atol=1e-4)
        output = decoder.decide("univer", laws[1], generator=torch.Generator().manual_seed(2))
        decoder.advance(output)
    assert len(decoder.text) > len(PROMPT)


ABSENT = {  # a topology, tokens with absent nodes anywhere, the path that is kept
    "2x2": ([5, 6, 8, -1, -1, 9, 4], [2, 5]),
    "2x3": ([5, 6, -1, 8, -1, -1, -1, -1, 9, -1, -1, -1, -1, -1, -1], [1, 3]),
    "chain:4": ([5, 6, 8, -1, -1], [1, 2]),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *product(KINDS_OF_TREES, ABSENT),
        *product((*STATES, "gpt_neo"), ["chain:4"]),
    ],
)
def test_absent_nodes_leave_the_rows_of_present_ones_alone(name: str, shape: str) -> None:
    model, topology, (tokens, kept) = tiny(name), Topology.parse(shape), ABSENT[shape]
    session, text = CachedModel(model), [*PROMPT, 1, 2, 5]
    tree = DraftTree(topology, torch.tensor([tokens]))
    for tree_again in (tree, tree):
        rows = session.logits(text, tree_again, range(topology.num_nodes))[0]
        for node, token in enumerate(tokens):
            if token >= 0:
                path = [*text, *(tokens[v] for v in path_to(topology, node))]
                plain = plain_logits(model, path)[-1]
                torch.testing.assert_close(rows[node], plain, rtol=0, atol=1e-4)
        session.keep(kept)
        text = [*text, *(tokens[v] for v in kept), tokens[0]]


def test_a_drafter_that_takes_no_trees_is_named() -> None:
    with pytest.raises(InputError, match=r"^drafter: .*linear_attention.*takes no trees"):
        greedy(tiny("llama"), tiny("qwen3_next"), "2x3")
    done = greedy(tiny("llama"), tiny("qwen3_next"), "chain:3")
    assert is_greedy_text(tiny("llama"), done.tokens)
    done = greedy(tiny("lfm2"), tiny("gemma3_text"), "chain:3")
    assert is_greedy_text(tiny("lfm2"), done.tokens)


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_neo", "qwen3_next", "lfm2"])
def test_an_eagle_head_reads_the_features_of_every_kind(name: str) -> None:
    model = tiny(name)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = EagleHead(EagleNetwork(tiny("llama").config).eval())
    assert is_greedy_text(model, greedy(model, head, "chain:3").tokens)


class Wrapped(torch.nn.Module):
    """A model inside another one, which names no arguments and makes no masks."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config
        self.device, self.dtype = inner.device, inner.dtype
        self.get_input_embeddings = inner.get_input_embeddings
        self.get_output_embeddings = inner.get_output_embeddings

    def forward(self, **given: Any) -> Any:
        """What the inner one gives."""
        return self.inner(**given)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "llama4_text"])
def test_windows_of_a_wrapped_model_are_known(name: str, check: bool) -> None:
    model = Wrapped(tiny(name)).eval()
    done = greedy(model, tiny(name, 5), "2x3", check_model=check, max_new_tokens=30)
    assert is_greedy_text(tiny(name), done.tokens)


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_neo", "qwen3_next"])
def test_hugging_faces_own_call_gives_the_same_text(name: str) -> None:
    model, ids = tiny(name), torch.tensor([PROMPT])
    loop = speculative(alike(model, NOISE), topology="chain:4")
    told = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    own = model.generate(ids, **told)
    assert torch.equal(model.generate(ids, custom_generate=loop, **told), own)


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "lfm2", "gpt_neo"])
def test_layers_of_every_kind_may_be_skipped(name: str) -> None:
    model = tiny(name)
    done = greedy(model, layer_skip(model, 1), "chain:4", max_new_tokens=20)  # both of its layers
    assert done.acceptance_length == 5


def test_layer_types_that_cannot_be_chosen_are_a_sentence() -> None:
    with pytest.raises(InputError, match="JambaConfig works out the types of its layers"):
        layer_skip(tiny("jamba"), 1)


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_neo", "llama"])
def test_auto_leaves_out_what_a_model_does_not_take(name: str) -> None:
    model = tiny(name)
    done = greedy(model, alike(model, NOISE), "auto", max_new_tokens=60)
    assert is_greedy_text(model, done.tokens)
    assert done.choice is not None
    widest = max(row.topology.max_arity for row in done.choice.rows)
    assert (widest > 1) == (ARCHITECTURES[name] == TREES)


def test_a_text_does_not_go_from_short_rotary_angles_to_long_ones() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]}
    given = {
        **tiny("phi3").config.to_dict(),
        "rope_parameters": factors | {"rope_type": "longrope", "rope_theta": 1e4},
        "original_max_position_embeddings": 20,
        "sliding_window": None,
    }
    config = type(tiny("phi3").config)(**given)
    model = type(tiny("phi3"))(config).eval()
    model.load_state_dict(tiny("phi3").state_dict())
    for start, new in ((5, 15), (21, 30)):
        prompt = [*PROMPT, *range(16)][:start]
        done = generate(
            model,
            model,
            prompt,
            topology="2x3",
            temperature=0.0,
            max_new_tokens=new,
            eos_token_id=(),
            seed=0,
        )
        for end, token in enumerate(done.tokens):
            plain = plain_logits(model, [*prompt, *done.tokens[:end]])[-1]
            assert token == plain.argmax()
    with pytest.raises(InputError, match=r"more than 20 tokens.*take at most 15 new ones"):
        greedy(model, model, "2x3", max_new_tokens=16)


def counted(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[int]:
    """The tokens of every forward from now on, whether hooks see it or not."""
    forward, seen = type(model).forward, []

    def counting(*_: Any, **given: Any) -> Any:
        seen.append(given["input_ids"].numel())
        return forward(model, **given)

    monkeypatch.setattr(model, "forward", counting)
    return seen


@pytest.mark.parametrize(("topology", "tokens"), [("2x2", [6, 3, 12]), ("chain:2", [4, 3, 6])])
def test_the_check_is_three_short_forwards_once_a_model(
    topology: str, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = alike(tiny("llama"), 0.0)
    seen, others = counted(monkeypatch, model), []
    model.register_forward_pre_hook(lambda *_: others.append(1))
    greedy(model, tiny("llama"), topology, max_new_tokens=2)
    assert seen[:3] == tokens
    assert len(seen) == len(others) + 3  # hooks see the text's own forwards alone
    for options in ({}, {"check_model": False}):
        seen.clear()
        others.clear()
        greedy(model, tiny("llama"), topology, max_new_tokens=2, **options)
        assert len(seen) == len(others)


def test_nothing_is_checked_when_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any, **__: Any) -> str:
        raise AssertionError("a check ran")

    monkeypatch.setattr(model_check, "check_model", check)
    model = tiny("llama")
    greedy(model, model, "2x2", max_new_tokens=3, check_model=False)
    for _ in decode(
        model, model, PROMPT, max_new_tokens=3, generator=torch.Generator(), check_model=False
    ):
        pass
    loop = speculative(model, check_model=False)
    model.generate(torch.tensor([PROMPT]), custom_generate=loop, max_new_tokens=3, pad_token_id=0)


def test_the_check_finds_slots_taken_for_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt_neo without what is known of it: its local layers would be fed trees."""
    model = alike(tiny("gpt_neo"), 0.0)
    monkeypatch.setattr(layer_kinds, "_types", lambda *_: ["full_attention"] * 2)
    wrong = greedy(model, alike(model, NOISE), "2x3", check_model=False)
    assert not is_greedy_text(model, wrong.tokens)
    with pytest.raises(InputError, match=r"trees of .*'gpt_neo'.*'eager', layers of type full"):
        greedy(model, model, "2x3")
    assert is_greedy_text(model, greedy(model, model, "chain:4").tokens)


def _no_window(_: Any, sees: torch.Tensor, *__: Any) -> torch.Tensor:
    return layer_kinds.additive(sees, torch.float32)


def _by_slots(self: Any, sees: torch.Tensor, *_: Any) -> Any:
    rows, slots = sees.shape
    at = torch.arange(slots)
    return RIGHT(self, sees, at[slots - rows :], at, torch.float32)


def _siblings_see_each_other(self: Any, sees: torch.Tensor, *given: Any) -> Any:
    return RIGHT(self, torch.ones_like(sees).tril(sees.shape[1] - sees.shape[0]), *given)


RIGHT = layer_kinds.Layers.masks
FAULTS = {
    "no window": _no_window,
    "by slots": _by_slots,
    "siblings": _siblings_see_each_other,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "llama4_text", "gpt_oss"])
def test_the_check_finds_a_wrong_mask(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_kinds.Layers, "masks", FAULTS[fault])
    model = alike(tiny(name), 0.0)
    with pytest.raises(InputError, match="cannot be verified exactly"):
        greedy(model, model, "2x3")
    # A chain is read as plain text then.
    assert is_greedy_text(model, greedy(model, model, "chain:4").tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mixtral", "lfm2", "qwen3_next"])
def test_the_check_passes_models_of_every_dtype(name: str, dtype: torch.dtype) -> None:
    if name in ("mixtral", "qwen3_next") and dtype == torch.float64:
        pytest.skip("experts have no float64 arithmetic in transformers on a CPU")
    model = alike(tiny(name), 0.0).to(dtype)
    topology = "2x3" if ARCHITECTURES[name] == TREES else "chain:4"
    assert len(greedy(model, model, topology, max_new_tokens=5).tokens) == 5


def test_the_check_reaches_beyond_windows_of_up_to_its_longest_text() -> None:
    config = tiny("mistral").config
    lengths = {}
    for window in (7, 64, 1024, 4096):
        config = type(config)(**config.to_dict() | {"sliding_window": window})
        lengths[window] = model_check._text_length(config, None)
    assert lengths == {7: 5, 64: 62, 1024: 1022, 4096: 2}


def test_the_table_holds_fifty_architectures_and_every_answer() -> None:
    assert len(ARCHITECTURES) >= 50
    assert set(TAKES) == {TREES, CHAINS, STEPS, NOTHING}


def test_the_document_is_up_to_date() -> None:
    if f"transformers {transformers.__version__} " not in DOCUMENT.read_text():
        pytest.skip("docs/MODELS.md was written with another version of transformers")
    assert document() == DOCUMENT.read_text()
