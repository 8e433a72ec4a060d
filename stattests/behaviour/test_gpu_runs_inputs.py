"""What a user can get wrong with `python -m gpu_runs`: one sentence, exit code 2, rows intact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

import gpu_runs
from gpu_runs.configuration import read_config
from gpu_runs.models import DTYPES
from gpu_runs.units import rows_of_unit
from stattests.behaviour.tiny_runs import assert_one_sentence, finished, start, write_config

SETTING = {"topology": "2x2", "temperature": 1.0, "prompts": 1}
CONFIGS = sorted((Path(gpu_runs.__file__).parent / "configs").glob("*.toml"))


@pytest.fixture(scope="module")
def done(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, with its configuration beside `rows`."""
    folder = tmp_path_factory.mktemp("done")
    finished(write_config(folder, model))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "key": ({"topology": "2x2"}, ("topology is unknown", "verifiers, seeds")),
    "key-of-setting": ({"settings": [SETTING | {"top_k": 3}]}, ("settings 1.top_k is unknown",)),
    "key-of-drafter": ({"drafter": {"name": "x"}}, ("drafter.name is unknown", "kind, model")),
    "type": ({"tokens": "many"}, ("tokens must be a whole number", "'many'")),
    "type-bool": ({"tokens": True}, ("tokens must be a whole number", "True")),
    "type-entry": ({"seeds": [1, "two"]}, ("seeds must be a list, each entry a whole number",)),
    "type-list": ({"verifiers": "rrsw"}, ("verifiers must be a list, each entry a text",)),
    "type-table": ({"drafter": 3}, ("drafter must be a table",)),
    "settings-missing": ({"settings": []}, ("settings must be one table",)),
    "settings-twice": ({"settings": [SETTING, SETTING]}, ("settings: '2x2/T1' is given twice",)),
    "topology": ({"settings": [SETTING | {"topology": "2by2"}]}, ("settings 1", "'2by2'")),
    "temperature": ({"settings": [SETTING | {"temperature": -1}]}, ("settings 1", "got -1")),
    "prompts": ({"settings": [SETTING | {"prompts": 0}]}, ("settings 1.prompts", "got 0")),
    "prompts-many": ({"settings": [SETTING | {"prompts": 9}]}, ("9 prompts a category", "has 8")),
    "mode": ({"mode": "both"}, ("mode: 'both'", "paired, decoding")),
    "dtype": ({"dtype": "int4"}, ("dtype: 'int4'", *DTYPES)),
    "verifier": ({"verifiers": ["rrsw", "eagle"]}, ("verifiers: 'eagle'", "univer")),
    "verifiers-none": ({"verifiers": []}, ("verifiers is empty",)),
    "seeds-twice": ({"seeds": [3, 3]}, ("seeds: 3 is given twice",)),
    "seed-negative": ({"seeds": [-3]}, ("seeds must be from 0", "-3")),
    "tokens": ({"tokens": 0}, ("tokens must be at least 1, got 0",)),
    "write-inf": ({"write_seconds": float("inf")}, ("write_seconds", "got inf")),
    "threads": ({"threads": 10**6}, ("threads must be at most", "1000000")),
    "device": ({"device": "abacus"}, ("device", "'abacus'")),
    "drafter-kind": ({"drafter": {"kind": "ngram"}}, ("drafter.kind: 'ngram'", "layer_skip")),
    "drafter-key": ({"drafter": {"kind": "eagle"}}, ("drafter.model is missing",)),
    "drafter-other": (
        {"drafter": {"kind": "eagle", "model": "x", "layers": 3}},
        ("drafter.layers is not for kind 'eagle'",),
    ),
    "drafter-vocabulary": (
        {"drafter": {"kind": "layer_skip", "layers": 1, "vocabulary": "ids.json"}},
        ("drafter.vocabulary is not for kind 'layer_skip'",),
    ),
    "target-missing": ({"target": "./no/model"}, ("target: there is no model folder ./no/model",)),
    "head-missing": (
        {"drafter": {"kind": "eagle", "model": "no/such/head"}},
        ("drafter: there is no folder no/such/head",),
    ),
    "drafter-missing": (
        {"drafter": {"kind": "model", "model": "./no/model"}},
        ("drafter: there is no model folder ./no/model",),
    ),
    "layers": ({"drafter": {"kind": "layer_skip", "layers": 9}}, ("keep", "from 1 to 2")),
    "questions-missing": ({"questions": "/no/question.jsonl"}, ("questions", "/no/question.jsonl")),
    "positions": ({"tokens": 300}, ("target: it has 256 positions", "max_prompt_tokens")),
    "chat-template": ({"chat_template": "{{ nothing.at.all }}"}, ("cannot encode the prompt",)),
    "template-changed": ({"chat_template": "the {{ messages }}"}, ("chat_template was ''",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_configuration_is_one_sentence_and_rows_stay(
    case: str, model: str, done: Path, tmp_path: Path
) -> None:
    changes, parts = WRONG[case]
    rows, before = done / "rows", contents(done / "rows")
    config = write_config(tmp_path, model, **changes)
    assert_one_sentence(start(config, "--resume", "--output", str(rows)), *parts)
    assert contents(rows) == before


QUESTION = '{"question_id": 1, "category": "qa", "turns": ["What is it?"]}'
NO_QUESTIONS = {
    "empty": ("", "holds no question"),
    "blank": ("\n\n", "holds no question"),
    "not-json": (f"{QUESTION}\nWhat?", "line 2"),
    "no-turns": ('{"question_id": 1, "category": "qa", "turns": []}', "line 1"),
    "no-category": ('{"question_id": 1, "turns": ["What?"]}', "line 1"),
    "empty-turn": ('{"question_id": 1, "category": "qa", "turns": [" "]}', "empty first turn"),
}


@pytest.mark.parametrize("case", NO_QUESTIONS)
def test_a_file_without_questions_is_one_sentence(
    case: str, model: str, done: Path, tmp_path: Path
) -> None:
    text, part = NO_QUESTIONS[case]
    (tmp_path / "question.jsonl").write_text(text)
    config, before = write_config(tmp_path, model), contents(done / "rows")
    options = ("--resume", "--questions", str(tmp_path / "question.jsonl"))
    result = start(config, *options, "--output", str(done / "rows"))
    assert_one_sentence(result, "questions: ", "question.jsonl", part)
    assert contents(done / "rows") == before


NO_FOLDER = '[drafter]\nkind = "layer_skip"\nlayers = 1\n[[settings]]'
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-toml": (lambda path: path.write_text("target = "), "cannot read"),
    "no-file": (lambda path: path.unlink(), "cannot read"),
    "no-folder": (lambda path: path.write_text(NO_FOLDER), "folder is missing"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_configuration_is_one_sentence(
    case: str, model: str, tmp_path: Path
) -> None:
    change, part = FILES[case]
    config = write_config(tmp_path, model)
    change(config)
    assert_one_sentence(start(config), "config: ", part)


def test_a_folder_that_cannot_be_made_is_one_sentence(model: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, model, folder="/proc/rows")
    assert_one_sentence(start(config), "folder: cannot write /proc/rows")
    (tmp_path / "file").write_text("")
    config = write_config(tmp_path, model, folder=str(tmp_path / "file"))
    assert_one_sentence(start(config), "folder: cannot write")


def test_a_folder_that_another_run_writes_to_is_one_sentence(done: Path) -> None:
    with FileLock(done / "rows" / ".lock"):
        assert_one_sentence(start(done / "config.toml", "--resume"), "another process is writing")


@pytest.mark.parametrize("text", ["", "[]", '{"config": {}}'])
def test_a_folder_without_its_record_is_one_sentence(
    text: str, done: Path, tmp_path: Path, model: str
) -> None:
    shutil.copytree(done / "rows", tmp_path / "rows")
    config = write_config(tmp_path, model)
    record = tmp_path / "rows" / "run.json"
    record.write_text(text)
    assert_one_sentence(start(config, "--resume"), "run.json is no run's record")
    record.unlink()
    assert_one_sentence(start(config, "--resume"), "has rows but no run.json")


def test_other_weights_or_prompts_behind_the_same_names_are_one_sentence(
    done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done / "rows", tmp_path / "rows")
    record = json.loads((tmp_path / "rows" / "run.json").read_text())
    options = ("--resume", "--output", str(tmp_path / "rows"))
    for key, name, part in (
        ("fingerprints", "drafter", "drafter: its weights"),
        ("prompts", "translation-0", "the prompt translation-0"),
    ):
        changed = record | {key: record[key] | {name: 1}}
        (tmp_path / "rows" / "run.json").write_text(json.dumps(changed))
        assert_one_sentence(start(done / "config.toml", *options), part)


def test_ctrl_c_keeps_whole_units(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, model, write_seconds=60)
    asked: list[Any] = []

    def interrupted(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return rows_of_unit(*arguments)

    monkeypatch.setattr("gpu_runs.run.rows_of_unit", interrupted)
    result = start(config)
    assert result.exit_code == 130
    assert result.stderr == "interrupted; go on with --resume.\n"
    monkeypatch.undo()
    assert "2 done before" in start(config, "--resume").stdout


def test_the_record_says_where_rows_come_from(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "rows", tmp_path / "rows")
    options = ("--resume", "--output", str(tmp_path / "rows"))
    assert start(done / "config.toml", *options).exit_code == 0
    record = json.loads((tmp_path / "rows" / "run.json").read_text())
    assert record["seeds"] == [0]
    assert record["config"]["drafter"] == {
        "kind": "layer_skip",
        "model": "",
        "layers": 1,
        "vocabulary": "",
    }
    assert record["versions"]["torch"] == torch.__version__
    assert record["device"].startswith("cpu")
    assert {"git_revision", "ranks", "prompts", "fingerprints"} <= set(record)
    assert [start["ranks"] for start in record["earlier"]] == [1]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configurations_are_read(path: Path) -> None:
    if path.stem.startswith("train"):
        pytest.skip("a training's configuration has a test of its own")
    assert read_config(path).folder == f"runs/{path.stem}"
