"""Runs on real models: whole rows whatever happens, and what is in them.

The model is a tiny random Llama. Rows are compared without their milliseconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from gpu_runs.configuration import read_config
from gpu_runs.loading import load_pair
from gpu_runs.parts import SCHEMA, read_rows
from gpu_runs.plan import units
from gpu_runs.prompts import read_prompts
from gpu_runs.separate import PLAIN
from gpu_runs.tables import evidence
from gpu_runs.units import rows_of_unit
from stattests.behaviour import HANGS
from stattests.behaviour.tiny_models import plain_logits
from stattests.behaviour.tiny_runs import (
    assert_one_sentence,
    command,
    finished,
    rows,
    start,
    write_config,
)
from stattests.budget import ALPHA_RUN
from univer import PAPER, VERIFIERS, Filters, Topology, decoding, stop_law, verify

TWO_SETTINGS = [
    {"topology": "2x2", "temperature": 1.0, "prompts": 2},
    {"topology": "chain:3", "temperature": 0.5, "prompts": 1},
]


@pytest.fixture(scope="module")
def whole(model: str, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The rows of an unbroken run with TWO_SETTINGS."""
    return finished(write_config(tmp_path_factory.mktemp("whole"), model, settings=TWO_SETTINGS))


# A run that is killed as soon as it has written some parts: arguments are their number and a file.
KILLED = """
import os, signal, sys
from gpu_runs import __main__, run

write, left = run.write_part, int(sys.argv.pop(1))

def write_part(*arguments):
    global left
    path = write(*arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return path

run.write_part = write_part
__main__.main()
"""


def killed(config: Path, parts: int) -> pl.DataFrame:
    """The rows of a run that is killed when it has written this many parts."""
    started = command("gpu_runs", str(config))
    started["args"][1:3] = ["-c", KILLED, str(parts)]
    done = subprocess.run(**started, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return rows(config.parent / "rows")


def test_a_killed_run_ends_with_the_rows_of_an_unbroken_one(
    model: str, whole: pl.DataFrame, tmp_path: Path
) -> None:
    config = write_config(tmp_path, model, settings=TWO_SETTINGS)
    plan = units(read_config(config), read_prompts())
    assert killed(config, 3)["unit"].n_unique() == 3 < len(plan)
    half = tmp_path / "rows" / ".new-123-part-0-99.parquet"  # as if killed while writing
    half.write_bytes(b"half")
    assert_frame_equal(finished(config, "--resume"), whole)
    assert not half.exists()
    assert set(whole["unit"]) == {unit.name for unit in plan}
    assert whole.select("unit", "cycle", "verifier").is_unique().all()
    assert "0 for rank 0 of 1" in start(config, "--resume").stdout


def test_decoding_one_verifier_at_a_time_resumes_as_well(model: str, tmp_path: Path) -> None:
    broken = write_config(tmp_path / "broken", model, mode="decoding")
    unbroken = finished(write_config(tmp_path / "unbroken", model, mode="decoding"))
    folder = tmp_path / "broken" / "rows"
    finished(broken)
    for number in (0, 7, 29):  # all that matters to a restart is which parts there are
        (folder / f"part-0-{number}.parquet").unlink()
    assert_frame_equal(finished(broken, "--resume"), unbroken)
    assert set(unbroken["verifier"]) == {PLAIN, *PAPER}


def test_two_ranks_write_the_rows_of_one_process(
    model: str, whole: pl.DataFrame, tmp_path: Path
) -> None:
    config, folder = write_config(tmp_path, model, settings=TWO_SETTINGS), tmp_path / "rows"
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    with subprocess.Popen(**command(*torchrun, "gpu_runs", str(config))) as process:
        _, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors
    assert {path.name.split("-")[1] for path in folder.glob("part-*")} == {"0", "1"}
    assert_frame_equal(rows(folder), whole)
    (folder / "part-1-0.parquet").unlink()  # one process goes on where two ended
    assert_frame_equal(finished(config, "--resume"), whole)


def test_a_full_disk_is_one_sentence_and_loses_nothing_that_was_written(
    model: str, whole: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = write_config(tmp_path, model, settings=TWO_SETTINGS), tmp_path / "rows"
    sync = os.fsync

    def full(handle: int) -> None:
        if len(list(folder.glob("part-*"))) >= 4:
            raise OSError(28, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert_one_sentence(start(config), "No space left", "part-0-4.parquet", "--resume")
    assert not list(folder.glob(".new-*"))
    assert rows(folder)["unit"].n_unique() == 4
    assert_frame_equal(finished(config, "--resume"), whole)


def test_a_truncated_part_is_named_and_can_be_removed(model: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, model)
    before = finished(config)
    part = tmp_path / "rows" / "part-0-2.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    assert_one_sentence(start(config, "--resume"), str(part), "cannot be read", "remove it")
    part.unlink()
    assert_frame_equal(finished(config, "--resume"), before)


def test_a_run_grows_by_seeds_prompts_and_settings(
    model: str, whole: pl.DataFrame, tmp_path: Path
) -> None:
    finished(write_config(tmp_path, model))
    grown = write_config(tmp_path, model, seeds=[0, 5], settings=TWO_SETTINGS)
    result = start(grown, "--resume")
    assert result.exit_code == 0, result.output
    for part in ("seed 5", "chain:3/T0.5", "2x2/T1: 2 prompts a category, not 1", "6 done before"):
        assert part in result.stdout
    found = rows(tmp_path / "rows")
    assert_frame_equal(found.filter(found["seed"] == 0), whole)
    other = found.filter(found["seed"] == 5)
    assert set(other["unit"]) == {name.replace("seed0", "seed5") for name in whole["unit"]}
    assert other["expected_accepted"].to_list() != whole["expected_accepted"].to_list()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"tokens": 7}, ("tokens was 6", "is 7 now")),
        ({"verifiers": ["rrsw"]}, ("verifiers was",)),
        ({"seeds": [1]}, ("seeds: 0",)),
        ({"settings": TWO_SETTINGS[1:]}, ("2x2/T1 with 1 prompts",)),
        ({"drafter": {"kind": "layer_skip", "layers": 2}}, ("drafter was", "'layers': 2")),
    ],
)
def test_a_run_does_not_go_on_as_another(
    changes: dict[str, Any], parts: tuple[str, ...], model: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, model)
    before = finished(config)
    assert_one_sentence(start(config), "not empty", "--resume")
    write_config(tmp_path, model, **changes)
    assert_one_sentence(start(config, "--resume"), *parts)
    assert_frame_equal(rows(tmp_path / "rows"), before)


def test_every_verifier_writes_in_every_category(model: str, tmp_path: Path) -> None:
    settings = [{"topology": "2x2", "temperature": 1.0, "prompts": 4}]
    plan = units(read_config(write_config(tmp_path, model, settings=settings)), read_prompts())
    writers = Counter((unit.prompt.category, unit.writer) for unit in plan)
    assert len(writers) == 24 == len(plan)


def test_paired_rows_share_trees_and_have_one_writer(whole: pl.DataFrame) -> None:
    for _, context in whole.group_by("unit", "cycle"):
        assert sorted(context["verifier"]) == sorted(PAPER)
        trees = dict(context.select("verifier", "tree_id").iter_rows())
        assert trees["univer"] == trees["greedy"] != trees["rrsw"] == trees["traversal"]
        assert context["drives_text"].sum() == 1
    silent = whole.filter(~whole["drives_text"])
    assert silent["num_accepted"].is_null().all()
    for column in ("pit", "log_prob", "entropy", "log_prob_variance"):
        assert (silent[column].list.len() == 0).all()
    wrote = whole.filter(whole["drives_text"])
    for _, text in wrote.group_by("unit"):
        assert text["verifier"].n_unique() == 1
        assert text["pit"].list.len().sum() <= 6
    assert wrote.group_by("unit").agg(pl.col("pit").list.len().sum())["pit"].max() == 6


def test_rows_are_the_laws_own_numbers(model: str, tmp_path: Path) -> None:
    settings = [{"topology": "3x2", "temperature": 0.7, "prompts": 1}]
    changes = {"mode": "decoding", "tokens": 20, "settings": settings}
    config = read_config(write_config(tmp_path, model, **changes))
    pair = load_pair(config, torch.device("cpu"), lambda _: None)
    prompt, filters = [2, 5, 7], Filters(0.7)
    for unit in units(config, read_prompts())[:5]:
        found = rows_of_unit(config, pair, unit, prompt)
        plain = unit.writer == PLAIN
        cycles = decoding.decode(
            pair.target.model,
            pair.drafter,
            prompt,
            verifier="univer" if plain else unit.writer,
            topology=Topology.parse("none" if plain else "3x2"),
            filters=filters,
            max_new_tokens=20,
            generator=(generator := unit.generator()),
        )
        text = list(prompt)
        for row, cycle in zip(found, cycles, strict=True):
            drawn, tokens = cycle.drawn, cycle.record.tokens
            laws = (drawn.tree, drawn.target_probs, drawn.draft_probs)
            expected = 0.0 if plain else stop_law(unit.writer, *laws).expected_accepted.item()
            assert row["expected_accepted"] == expected
            assert row["num_accepted"] == cycle.output.num_accepted.item()
            for at, token in enumerate(tokens):
                law = filters(plain_logits(pair.target.model, text)[-1]).double()
                logs = law.log()
                assert row["log_prob"][at] == pytest.approx(logs[token].item(), abs=1e-4)
                entropy = -(law * logs).sum()
                assert row["entropy"][at] == pytest.approx(entropy.item(), abs=1e-4)
                variance = (law * (logs + entropy) ** 2).sum().item()
                assert row["log_prob_variance"][at] == pytest.approx(variance, abs=1e-3)
                text.append(token)
            assert len(row["pit"]) == len(tokens)
            torch.rand(len(tokens), generator=generator, dtype=torch.float64)  # its PIT took them


def test_paired_lengths_are_the_stop_laws_own(model: str, tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, model))
    pair, shape = load_pair(config, torch.device("cpu"), lambda _: None), Topology.parse("2x2")
    for unit in units(config, read_prompts()):
        found = pl.DataFrame(rows_of_unit(config, pair, unit, [2, 5, 7]), schema=SCHEMA)
        generator = unit.generator()
        decoder = decoding.Decoder(
            pair.target.model, pair.drafter, [2, 5, 7], filters=Filters(), max_new_tokens=9
        )
        own = VERIFIERS[unit.writer].drafting
        other = next(row.drafting for row in VERIFIERS.values() if row.drafting != own)
        for _, rows_here in found.group_by("cycle", maintain_order=True):
            trees = {law: decoder.draw(law, shape, generator=generator) for law in (other, own)}
            for row in rows_here.iter_rows(named=True):
                drawn = trees[VERIFIERS[row["verifier"]].drafting]
                laws = (drawn.tree, drawn.target_probs, drawn.draft_probs)
                expected = stop_law(row["verifier"], *laws).expected_accepted.item()
                assert row["expected_accepted"] == expected
                assert row["drives_text"] == (row["verifier"] == unit.writer)
            mine = trees[own]
            laws = (mine.tree, mine.target_probs, mine.draft_probs)
            output = verify(unit.writer, *laws, generator=generator)
            decoder.advance(output)
            wrote = rows_here.row(by_predicate=pl.col("drives_text"), named=True)
            assert wrote["num_accepted"] == output.num_accepted.item()
            torch.rand(len(wrote["pit"]), generator=generator, dtype=torch.float64)


def test_every_unit_has_a_stream_of_its_own(model: str, tmp_path: Path) -> None:
    def firsts(**changes: Any) -> dict[str, float]:
        config = read_config(write_config(tmp_path, model, **changes))
        plan = units(config, read_prompts())
        return {unit.name: torch.rand(1, generator=unit.generator()).item() for unit in plan}

    few, many = firsts(seeds=[3]), firsts(seeds=[0, 3], settings=TWO_SETTINGS)
    assert len(set(many.values())) == len(many) == 36
    assert few.items() <= many.items()


@pytest.mark.stat
def test_texts_of_every_verifier_look_lossless(model: str, tmp_path: Path) -> None:
    """False alarms: the e-test's, and a normal deviate beyond 6.5, both at most 1e-9 or so."""
    settings = [{"topology": "2x2", "temperature": 1.0, "prompts": 1}]
    changes = {"mode": "decoding", "tokens": 40, "settings": settings}
    found = finished(write_config(tmp_path, model, **changes))
    for (name,), text in found.group_by("verifier"):
        values, own, entropy, variance = (
            text[column].explode().to_numpy()
            for column in ("pit", "log_prob", "entropy", "log_prob_variance")
        )
        assert evidence(values.tolist()) < np.log(1 / ALPHA_RUN), name
        assert abs((own + entropy).sum()) < 6.5 * np.sqrt(variance.sum()), name
    assert read_rows(tmp_path / "rows")["keep_ms"].is_not_null().all()
