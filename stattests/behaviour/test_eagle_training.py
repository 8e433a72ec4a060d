"""Training an EAGLE head on a tiny model: seconds, no download."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from gpu_runs import train_eagle
from gpu_runs.eagle_learning import (
    Batch,
    acceptance,
    collate,
    guesses,
    loss_of,
    new_network,
    regress,
)
from gpu_runs.eagle_texts import (
    Chat,
    Lesson,
    read_chats,
    read_lessons,
    sample_chats,
    write_chats,
    write_lessons,
)
from gpu_runs.eagle_training import Point, Recipe, train
from gpu_runs.models import LoadedModel
from stattests.behaviour.tiny_models import tiny_llama
from univer import InputError
from univer.cached_model import CachedModel
from univer.drafters.eagle import EagleHead
from univer.drafting import DraftTree
from univer.topology import Topology

VOCABULARY = 32
RECIPE = Recipe(
    steps=40,
    batch=4,
    learning_rate=3e-3,
    warmup=5,
    top=8,
    negatives=8,
    measure_every=10,
    measured=4,
)


def tiny_target() -> Any:
    return tiny_llama(5, vocabulary=VOCABULARY, dtype=torch.float32)


def tiny_chats(model: Any, count: int, seed: int) -> list[Chat]:
    prompts = [[1 + i % 7, 3, 2] for i in range(count)]
    return sample_chats(model, prompts, copies=1, new_tokens=20, seed=seed)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_target()


@pytest.fixture(scope="module")
def lessons(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Lesson]]:
    folder, made = tmp_path_factory.mktemp("lessons"), {}
    for split, count, seed in (("train", 70, 1), ("heldout", 8, 2)):
        chats = tiny_chats(target, count, seed)
        write_lessons(target, chats, folder / split, top=16)
        made[split] = read_lessons(folder / split, chats)
    return made


def trained(
    target: Any, lessons: dict[str, list[Lesson]], folder: Path, **options: Any
) -> tuple[dict[str, Tensor], list[Point]]:
    network, curve = train(target, lessons["train"], lessons["heldout"], RECIPE, folder, **options)
    return network.state_dict(), curve


def test_loss_falls_and_acceptance_rises(
    target: Any, lessons: dict[str, list[Lesson]], tmp_path: Path
) -> None:
    _, curve = trained(target, lessons, tmp_path)
    assert [point.step for point in curve] == [0, 10, 20, 30, 40]
    assert curve[-1].loss < curve[1].loss
    assert curve[-1].acceptance > curve[0].acceptance
    assert (tmp_path / "curve.csv").read_text().count("\n") == len(curve) + 1


@pytest.mark.parametrize("stop", [7, 25])
def test_an_interrupted_run_ends_with_the_same_weights(
    stop: int, target: Any, lessons: dict[str, list[Lesson]], tmp_path: Path
) -> None:
    def interrupt(step: int, loss: float, curve: Any) -> None:
        del loss, curve
        if step == stop:
            raise KeyboardInterrupt

    whole, curve = trained(target, lessons, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(target, lessons, tmp_path / "broken", told=interrupt)
    broken, other = trained(target, lessons, tmp_path / "broken", resume=True)
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    assert [(p.step, p.acceptance) for p in curve] == [(p.step, p.acceptance) for p in other]


def test_a_run_is_not_overwritten_nor_continued_with_another_recipe(
    target: Any, lessons: dict[str, list[Lesson]], tmp_path: Path
) -> None:
    trained(target, lessons, tmp_path)
    with pytest.raises(InputError, match="pass --resume"):
        trained(target, lessons, tmp_path)
    with pytest.raises(InputError, match=r"started with noise 0\.1 \(now 0\.3\)"):
        train(
            target,
            lessons["train"],
            lessons["heldout"],
            replace(RECIPE, noise=0.3),
            tmp_path,
            resume=True,
        )


def test_training_and_drafting_see_the_same_pairs(
    target: Any, lessons: dict[str, list[Lesson]]
) -> None:
    network = new_network(target, final_norm=True, seed=0).eval()
    regress(network, target, lessons["train"], 1e-3)
    torch.nn.init.normal_(network.layers[0].self_attn.o_proj.weight, std=0.3)  # type: ignore
    lesson = lessons["heldout"][0]
    batch = collate([lesson, lessons["heldout"][1]], 8)
    with torch.no_grad():
        rows = target.lm_head(guesses(network, target, batch, batch.features))
    text = lesson.tokens.tolist()
    for row, at in enumerate(range(lesson.first, len(text))):
        session = EagleHead(network).start(CachedModel(target))
        tree = DraftTree(Topology.parse("chain:1"), torch.tensor([[text[at], -1]]))
        logits = session.logits(text[: at + 1], tree, (0,))[0, 0]
        # Lessons keep features in float16: 11 bits, on features and weights of about 1.
        torch.testing.assert_close(rows[row], logits, rtol=0, atol=2e-2)


def plain_loss(network: Any, target: Any, batch: Batch) -> Tensor:
    """The cross-entropy alone, without noise, all other tokens sampled."""
    generator = torch.Generator().manual_seed(0)
    return loss_of(
        network,
        target,
        batch,
        noise=0.0,
        feature_loss=0.0,
        negatives=VOCABULARY,
        generator=generator,
    )


def test_loss_is_the_cross_entropy_when_nothing_is_left_out(target: Any, tmp_path: Path) -> None:
    chats = tiny_chats(target, 4, 3)
    write_lessons(target, chats, tmp_path, top=VOCABULARY)
    own = read_lessons(tmp_path, chats)
    network = new_network(target, final_norm=False, seed=0)
    regress(network, target, own, 1e-3)
    batch = collate(own, VOCABULARY)
    with torch.no_grad():
        loss = plain_loss(network, target, batch)
        law = target.lm_head(guesses(network, target, batch, batch.features)).log_softmax(-1)
    exact = -(batch.top_probs * law.gather(1, batch.top_tokens)).sum(-1).mean()
    torch.testing.assert_close(loss, exact, rtol=1e-5, atol=1e-5)


def test_sampled_others_stand_for_all_others(target: Any, lessons: dict[str, list[Lesson]]) -> None:
    """All others sampled: the 9-cell law of top tokens and rest, computed on whole rows."""
    network = new_network(target, final_norm=False, seed=0)
    regress(network, target, lessons["train"], 1e-3)
    batch = collate(lessons["train"][:2], 2)
    with torch.no_grad():
        loss = plain_loss(network, target, batch)
        law = target.lm_head(guesses(network, target, batch, batch.features)).softmax(-1)
    named = law.gather(1, batch.top_tokens)
    p = torch.cat([batch.top_probs, 1 - batch.top_probs.sum(-1, keepdim=True)], -1)
    q = torch.cat([named, 1 - named.sum(-1, keepdim=True)], -1)
    torch.testing.assert_close(loss, -(p * q.log()).sum(-1).mean(), rtol=1e-4, atol=1e-4)


def test_acceptance_is_one_for_the_targets_own_features(
    target: Any, lessons: dict[str, list[Lesson]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = new_network(target, final_norm=False, seed=0)
    monkeypatch.setattr("gpu_runs.eagle_learning.guesses", lambda *args: args[2].truth)
    assert acceptance(network, target, lessons["heldout"]) == pytest.approx(1, abs=1e-6)


def test_the_command_trains_and_writes_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target()
    model = LoadedModel("tiny", target, None)
    monkeypatch.setattr(train_eagle, "load_model", lambda *_, **__: model)
    chats = {"train": tiny_chats(target, 16, 1), "heldout": tiny_chats(target, 4, 2)}
    write_chats(tmp_path / "texts.npz", chats)
    assert read_chats(tmp_path / "texts.npz", "train") == chats["train"]
    config = tmp_path / "run.toml"
    config.write_text(
        f'target = "tiny"\nfolder = "{tmp_path / "run"}"\n'
        f'[text]\nfile = "{tmp_path / "texts.npz"}"\n'
        "[training]\nsteps = 6\nbatch = 4\nmeasure_every = 3\ntop = 8\nnegatives = 4\n"
    )
    done = CliRunner().invoke(train_eagle.main, [str(config)])
    assert done.exit_code == 0, done.output
    EagleHead.from_pretrained(tmp_path / "run" / "head", target)
    card = (tmp_path / "run" / "head" / "README.md").read_text()
    assert "on 16 texts" in card
    again = CliRunner().invoke(train_eagle.main, [str(config)])
    assert (again.exit_code, "pass --resume" in again.output) == (2, True)


def test_without_a_file_the_target_writes_its_own_texts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bytes:
        """A tokenizer for the tiny vocabulary."""

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [byte % VOCABULARY for byte in text.encode()[:8]]}

    model = LoadedModel("tiny", tiny_target(), Bytes())
    text = train_eagle.Text(copies=2, new_tokens=6)
    config = train_eagle.Config(folder=str(tmp_path), text=text)
    chats = train_eagle.chats_of(config, model)
    assert len({chat.tokens for chat in chats["train"]}) > len(chats["train"]) // 2
    assert not {c.tokens for c in chats["train"]} & {c.tokens for c in chats["heldout"]}
    monkeypatch.delattr(train_eagle, "sample_chats")
    assert train_eagle.chats_of(config, model) == chats


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("steps = 3", "steps is unknown"),
        ("[training]\nstep = 3", r"training\.step is unknown"),
        ("[training]\nsteps = 0", "steps must be at least 1, got 0"),
        ("[training]\ntop = 65", r"training\.top must be at most 64"),
        ('[training]\nnoise = "much"', r"training\.noise must be a number, got 'much'"),
        ("target = ", "cannot read"),
    ],
)
def test_a_wrong_config_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        train_eagle.read_config(path)


def test_the_example_config_is_read() -> None:
    path = Path(train_eagle.__file__).parent / "configs" / "train_smollm2.toml"
    assert train_eagle.read_config(path).target == "smollm2"
