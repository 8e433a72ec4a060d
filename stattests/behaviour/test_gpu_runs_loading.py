"""Where a run's prompts, models and devices come from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_runs import loading
from gpu_runs.configuration import read_config
from gpu_runs.models import LoadedModel
from gpu_runs.ranks import Ranks
from gpu_runs.spec_bench import MT_BENCH_NAMES, read_spec_bench
from stattests.behaviour.tiny_models import tiny_llama
from stattests.behaviour.tiny_runs import finished, write_config
from univer import InputError
from univer.drafters.eagle import EagleHead
from univer.drafters.eagle_network import EagleNetwork


def test_spec_bench_has_six_categories_and_mt_bench_its_kinds_in_turn(tmp_path: Path) -> None:
    names = [*(name for name in MT_BENCH_NAMES for _ in range(2)), "qa", "rag", "qa"]
    lines = [
        json.dumps({"question_id": n, "category": name, "turns": [f"Question {n}?", "And then?"]})
        for n, name in enumerate(names)
    ]
    (tmp_path / "question.jsonl").write_text("\n".join(lines))
    prompts = read_spec_bench(tmp_path / "question.jsonl")
    assert Counter(prompt.category for prompt in prompts) == {"mt_bench": 16, "qa": 2, "rag": 1}
    assert [prompt.turns for prompt in prompts[:9]] == [
        (f"Question {n}?",) for n in (*range(0, 16, 2), 1)
    ]
    assert prompts[-1].prompt_id == "rag-17"


def test_long_prompts_keep_their_last_tokens(model: str, tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, model))
    pair = loading.load_pair(config, torch.device("cpu"), lambda _: None)
    prompts = loading.load_prompts("own")
    whole = loading.encoded(prompts, pair.target, 10**6)
    cut = loading.encoded(prompts, pair.target, 7)
    assert all(cut[name] == ids[-7:] for name, ids in whole.items())
    assert max(map(len, whole.values())) > 7


def test_a_chat_template_is_for_tokenizers_without_one(model: str, tmp_path: Path) -> None:
    template = "{% for message in messages %}is {{ message.content }}{% endfor %}"
    found = []
    for text in ("", template):
        config = read_config(write_config(tmp_path, model, chat_template=text))
        pair = loading.load_pair(config, torch.device("cpu"), lambda _: None)
        found.append(loading.encoded(loading.load_prompts("own")[:1], pair.target, 99))
    assert found[0] != found[1]


def test_every_kind_of_drafter_runs(model: str, tmp_path: Path) -> None:
    target = tiny_llama(3, vocabulary=12, layers=4, dtype=torch.float32, max_positions=256)
    EagleHead(EagleNetwork(target.config).eval()).save_pretrained(tmp_path / "head")
    for kind, name in (("eagle", str(tmp_path / "head")), ("model", model)):
        drafter = {"kind": kind, "model": name}
        found = finished(write_config(tmp_path / kind, model, drafter=drafter))
        assert found["expected_accepted"].to_numpy().mean() > 0.3


def test_a_published_head_is_fetched_by_its_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "snapshot_download", lambda name, **_: str(tmp_path / name))
    assert loading.head_folder("someone/EAGLE-head") == tmp_path / "someone" / "EAGLE-head"

    def gone(*_: Any, **__: Any) -> None:
        raise OSError("no such repository\nand more")

    monkeypatch.setattr(loading, "snapshot_download", gone)
    with pytest.raises(InputError, match=r"no such hub id could be fetched: no such repository\.$"):
        loading.head_folder("someone/EAGLE-head")


def test_a_rank_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Ranks(5, 8, 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (rank.device("auto"), rank.device("cpu")) == ("cuda:1", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank.device("auto") == "cpu"


def test_a_fingerprint_is_the_weights_own() -> None:
    one, same, other = (
        loading.Pair(LoadedModel("x", tiny_llama(seed), None), tiny_llama(9)).fingerprints()
        for seed in (3, 3, 4)
    )
    assert one == same
    assert one["target"] != other["target"]
    assert one["drafter"] == other["drafter"]
