"""The EAGLE drafter on tiny random models: tree and cache against plain recomputation, files.

The plain side feeds one path at a time to the network, without cache, with a causal mask; it shares
the network's weights with the drafter and none of its bookkeeping.

Letters: T text, d width, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stattests.behaviour.tiny_models import tiny_llama
from univer import PAPER, VERIFIERS, Filters, InputError, Topology, verify
from univer.cached_model import CachedModel, tree_mask
from univer.decoding import Decoder, generate
from univer.drafters.eagle import EagleHead, EagleSession
from univer.drafters.eagle_network import EagleNetwork
from univer.drafting import DraftTree, draft_tree

TEXT = (5, 1, 6, 2, 3)
SHAPES = ("2x3", "eagle", [[0], [1], [1, 0], [1, 1]])
# The order of sums is all that differs: some 1e-15 in the logits of these float64 models.
TOLERANCE = 1e-10


def models(seed: int = 3, **options: Any) -> tuple[Any, EagleHead]:
    """A tiny target and a random head of its width."""
    target = tiny_llama(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = EagleNetwork(target.config, **options)
        for name, weight in network.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(weight, std=0.3)
    return target, EagleHead(network.to(torch.float64).eval())


@torch.no_grad()
def plain_path(target: Any, head: EagleHead, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """Logits [V] after text and path, by one causal forward per drafted token."""
    ids = torch.tensor([list(text)])
    truth = target(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
    features, tokens = list(truth[:-1]), list(text[1:])
    if not features:
        features, tokens = [torch.zeros(truth.shape[1]).double()], list(text)
    guess = None
    for token in (None, *path):
        if token is not None:
            assert guess is not None
            features.append(guess)
            tokens.append(token)
        rows = len(tokens)
        mask = torch.full((rows, rows), -torch.inf).double().triu(1)[None, None]
        guess = head.network(
            target.model.embed_tokens(torch.tensor([tokens])),
            torch.stack(features)[None],
            mask=mask,
            positions=torch.arange(rows)[None],
        )[0, -1]
    assert guess is not None
    logits: Tensor = target.lm_head(guess)
    return logits


def drafted(
    session: EagleSession, text: Sequence[int], shape: Any, drafting: str, seed: int = 0
) -> tuple[DraftTree, Tensor]:
    """A tree behind the text and its draft logits [I, V], as the decoding loop asks for them."""
    rows = []

    def next_law(tree: DraftTree, nodes: tuple[int, ...]) -> tuple[Tensor, None]:
        logits = session.logits(text, tree, nodes)
        rows.append(logits[0])
        return logits.softmax(-1), None

    topology, generator = Topology.parse(shape), torch.Generator().manual_seed(seed)
    root = torch.tensor([text[-1]])
    tree, _ = draft_tree(drafting, topology, root, next_law, generator=generator)
    return tree, torch.cat(rows)


def deviation(text: Sequence[int], shape: Any, drafting: str = "without_replacement") -> float:
    """Largest difference in the logits of one tree, level by level against path by path."""
    target, head = models()
    tree, rows = drafted(head.start(CachedModel(target)), text, shape, drafting)
    worst = 0.0
    for row, node in zip(rows, tree.topology.internal, strict=True):
        path = [int(tree.tokens[0, v]) for v in tree.topology.path(node)]
        if -1 not in path:
            worst = max(worst, float((row - plain_path(target, head, text, path)).abs().max()))
    return worst


LAWS = sorted({VERIFIERS[name].drafting for name in PAPER})


@pytest.mark.parametrize("drafting", LAWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_tree_equals_path_by_path(drafting: str, shape: Any, length: int) -> None:
    assert deviation(TEXT[:length], shape, drafting) < TOLERANCE


def test_siblings_that_see_each_other_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:

    def blind(*args: Any, **options: Any) -> Tensor:
        mask = tree_mask(*args, **options)
        return mask if args[3] else torch.zeros_like(mask)

    monkeypatch.setattr("univer.drafters.eagle.tree_mask", blind)
    assert deviation(TEXT, "2x3") > 1e-2


def test_features_off_by_one_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CachedModel.features

    def late(self: CachedModel, text: Sequence[int]) -> Tensor:
        rows = right(self, text)
        return torch.cat([rows[:1], rows[:-1]])

    monkeypatch.setattr(CachedModel, "features", late)
    assert deviation(TEXT, "2x3") > 1e-2


def test_depths_that_all_stand_at_one_position_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EagleSession._forward

    def flat(
        self: EagleSession, tokens: Tensor, features: Tensor, mask: Tensor, places: Sequence[int]
    ) -> Tensor:
        places = places if len(set(places)) > 1 else [0] * len(places)
        return right(self, tokens, features, mask, places)

    monkeypatch.setattr(EagleSession, "_forward", flat)
    assert deviation(TEXT, "2x3") > 1e-2


@pytest.mark.parametrize("prompt", [TEXT, TEXT[:1]], ids=["text", "one-token"])
@pytest.mark.parametrize("verifier", PAPER)
def test_cycles_with_the_cache_equal_a_fresh_session(
    verifier: str, prompt: tuple[int, ...]
) -> None:
    """Also: two trees in one context, as when several verifiers are judged there."""
    target, head = models()
    decoder = Decoder(target, head, prompt, filters=Filters(), max_new_tokens=30)
    generator = torch.Generator().manual_seed(7)
    shape, rule = Topology.parse("2x3"), VERIFIERS[verifier]
    accepted = 0
    for _ in range(6):
        for drafting in LAWS:
            drawn = decoder.draw(drafting, shape, generator=generator)
        drawn = decoder.draw(rule.drafting, shape, generator=generator)
        internal = shape.internal
        fresh = Decoder(target, head, decoder.text, filters=Filters(), max_new_tokens=1)
        session = fresh._drafter
        levels = [[v for v in level if v in internal] for level in shape.levels]
        rows = [session.logits(fresh.text, drawn.tree, v) for v in levels if v]
        laws = torch.cat(rows, 1).softmax(-1)
        present = drawn.tree.tokens[0, list(internal)] >= 0
        torch.testing.assert_close(
            drawn.draft_probs[0, present], laws[0, present], rtol=0, atol=TOLERANCE
        )
        output = verify(
            rule, drawn.tree, drawn.target_probs, drawn.draft_probs, generator=generator
        )
        accepted += int(output.num_accepted)
        decoder.advance(output)
    assert accepted > 0


def test_features_of_kept_text_are_those_of_a_plain_forward() -> None:
    target, head = models()
    decoder = Decoder(target, head, TEXT, filters=Filters(), max_new_tokens=30)
    generator, shape = torch.Generator().manual_seed(1), Topology.parse("2x3")

    accepted = 0
    for _ in range(8):
        drawn = decoder.draw("without_replacement", shape, generator=generator)
        output = verify(
            "rrsw", drawn.tree, drawn.target_probs, drawn.draft_probs, generator=generator
        )
        accepted += int(output.num_accepted)
        decoder.advance(output)
        ids = torch.tensor([decoder.text])
        with torch.no_grad():
            truth = target(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, :-1]
        held = decoder._target.features(decoder.text)
        torch.testing.assert_close(held, truth, rtol=0, atol=TOLERANCE)
    assert accepted > 0


@pytest.mark.parametrize("verifier", PAPER)
def test_temperature_0_gives_the_greedy_text(verifier: str) -> None:
    target, head = models()
    text = list(TEXT)
    with torch.no_grad():
        for _ in range(20):
            text.append(int(target(input_ids=torch.tensor([text])).logits[0, -1].argmax()))
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 20, "seed": 0}
    done = generate(target, head, TEXT, verifier=verifier, topology="2x3", **options)
    assert list(done.tokens) == text[len(TEXT) :]
    assert done.acceptance_length > 1


def test_caller_s_config_is_not_changed() -> None:
    target = tiny_llama(3, attention="eager")
    EagleNetwork(target.config)
    assert target.config._attn_implementation == "eager"


def write_published(folder: Path, head: EagleHead, target: Any, name: str) -> None:
    """The head as EAGLE's authors lay theirs out, with the target's embedding beside it."""
    weights = {k: v.clone() for k, v in head.network.state_dict().items()}
    weights["embed_tokens.weight"] = target.model.embed_tokens.weight.detach().clone()
    llama = {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": 16,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.28.1",
        "vocab_size": 8,
        "bias": head.network.fc.bias is not None,
    }
    (folder / "config.json").write_text(json.dumps(llama), encoding="utf-8")
    if name.endswith(".bin"):
        torch.save(weights, folder / name)
    else:
        save_file(weights, folder / name)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("options", [{}, {"fc_bias": False}, {"qkv_bias": True}], ids=str)
def test_published_layout_is_read(tmp_path: Path, name: str, options: dict[str, bool]) -> None:
    target, head = models(**options)
    write_published(tmp_path, head, target, name)
    back = EagleHead.from_pretrained(tmp_path, target)
    assert back.network.state_dict().keys() == head.network.state_dict().keys()
    one = drafted(head.start(CachedModel(target)), TEXT, "2x3", "top_residual")
    other = drafted(back.start(CachedModel(target)), TEXT, "2x3", "top_residual")
    # The published tensors went through no rounding but that of a float32 network.
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("final_norm", [False, True])
def test_our_layout_reads_back_equal(tmp_path: Path, final_norm: bool) -> None:
    target, head = models(final_norm=final_norm, fc_bias=False)
    head.save_pretrained(tmp_path / "head")
    back = EagleHead.from_pretrained(tmp_path / "head", target)
    for (name, old), new in zip(
        head.network.state_dict().items(), back.network.state_dict().values(), strict=True
    ):
        assert torch.equal(old.half().double(), new), name
    assert back.network.rotary.inv_freq.tolist() == head.network.rotary.inv_freq.tolist()
    raw = load_file(tmp_path / "head" / "model.safetensors")
    assert {tensor.dtype for tensor in raw.values()} == {torch.float16}


Weights = dict[str, Tensor]


def _drop(weights: Weights, config: dict[str, Any]) -> None:
    del config, weights["layers.0.mlp.up_proj.weight"]


def _reshape(weights: Weights, config: dict[str, Any]) -> None:
    del config
    weights["fc.weight"] = torch.zeros(16, 31)


def _extra(weights: Weights, config: dict[str, Any]) -> None:
    del config
    weights["layers.0.input_layernorm.weight"] = torch.ones(16)


def _vocabulary(weights: Weights, config: dict[str, Any]) -> None:
    del weights
    config["vocab_size"] = 9


def _layers(weights: Weights, config: dict[str, Any]) -> None:
    del weights
    config["num_hidden_layers"] = 2


def _heads(weights: Weights, config: dict[str, Any]) -> None:
    del weights
    config["num_attention_heads"] = 3


SPOILT: dict[str, tuple[Callable[[Weights, dict[str, Any]], None], str]] = {
    "missing key": (_drop, r"lacks layers\.0\.mlp\.up_proj\.weight"),
    "wrong shape": (_reshape, r"fc\.weight .* shape \[16, 31\]; its config makes it \[16, 32\]"),
    "unknown key": (_extra, r"input_layernorm\.weight, which is no part"),
    "other vocabulary": (_vocabulary, r"vocabulary has 9 tokens, but the target's has 8"),
    "two layers": (_layers, r"has 2 layers; an EAGLE-1 head has one"),
    "heads that do not divide the width": (_heads, r"describes no Llama layer"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_spoilt_folder_is_refused(fault: str, tmp_path: Path) -> None:
    target, head = models()
    head.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    spoil, sentence = SPOILT[fault]
    spoil(weights, config)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=sentence):
        EagleHead.from_pretrained(tmp_path, target)


def test_files_that_are_not_there_or_not_readable_are_refused(tmp_path: Path) -> None:
    target, head = models()
    with pytest.raises(InputError, match=r"cannot read .*config\.json"):
        EagleHead.from_pretrained(tmp_path, target)
    head.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        EagleHead.from_pretrained(tmp_path, target)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"cannot read .*pytorch_model\.bin"):
        EagleHead.from_pretrained(tmp_path, target)


def test_a_head_of_another_width_or_vocabulary_is_refused() -> None:
    target, head = models()
    with pytest.raises(InputError, match="vocabulary has 8 tokens, but the target's has 12"):
        head.start(CachedModel(tiny_llama(3, vocabulary=12)))
    config = target.config.__class__(vocab_size=8, hidden_size=24, num_attention_heads=2)
    with pytest.raises(InputError, match="width is 24, but the target's is 16"):
        EagleHead(EagleNetwork(config)).start(CachedModel(target))
