"""Bad and odd inputs of `python -m reports`: a clear sentence or a note, never a wrong table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("matplotlib", reason="the extra `reports` is not installed")
pytest.importorskip("jinja2", reason="the extra `reports` is not installed")

from reports.__main__ import main
from stattests.behaviour.synthetic_runs import SETTINGS, rows, write_run

ONE = SETTINGS[:1]


def report(*arguments: Path | str, output: Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments), "-o", str(output)])


def refused(done: Result, *words: str) -> None:
    """Exit 2, one sentence, these words in it, no traceback."""
    assert done.exit_code == 2, done.output
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert last.endswith(".")
    for word in words:
        assert word in last, last


def no_parts(folder: Path) -> None:
    for path in folder.glob("part-*"):
        path.unlink()


def cut_off_at_the_end(folder: Path) -> None:
    path = folder / "part-0-1.parquet"
    path.write_bytes(path.read_bytes()[:-100])


def cut_off_in_the_middle(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes(len(data) // 4) + data[200 + len(data) // 4 :])


def without_a_column(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    pl.read_parquet(path).drop("expected_accepted").write_parquet(path)


def with_another_type(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    frame = pl.read_parquet(path).with_columns(pl.col("temperature").cast(pl.String))
    frame.write_parquet(path)


def with_rows_twice(folder: Path) -> None:
    (folder / "part-1-0.parquet").write_bytes((folder / "part-0-0.parquet").read_bytes())


def with_lost_rows(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    pl.read_parquet(path).filter(pl.col("cycle") != 2).write_parquet(path)


def without_record(folder: Path) -> None:
    (folder / "run.json").unlink()


def with_half_a_record(folder: Path) -> None:
    (folder / "run.json").write_text('{"config": {"mode": "pai')


def with_another_mode(folder: Path) -> None:
    record = json.loads((folder / "run.json").read_text())
    record["config"]["mode"] = "other"
    (folder / "run.json").write_text(json.dumps(record))


def with_lengths_that_are_none(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    frame = pl.read_parquet(path)
    frame.with_columns(pl.lit(None, pl.Float64).alias("expected_accepted")).write_parquet(path)


def with_impossible_pit_values(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    frame = pl.read_parquet(path)
    frame.with_columns(pl.col("pit").list.eval(pl.element() + 1)).write_parquet(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_parts, ("no part-*.parquet",)),
        (cut_off_at_the_end, ("part-0-1.parquet", "cannot be read", "--resume")),
        (cut_off_in_the_middle, ("part-0-0.parquet", "cannot be read", "--resume")),
        (without_a_column, ("part-0-0.parquet", "expected_accepted")),
        (with_another_type, ("temperature", "String")),
        (with_rows_twice, ("doubled",)),
        (with_lost_rows, ("lost",)),
        (without_record, ("run.json is missing",)),
        (with_half_a_record, ("run.json is no run's record",)),
        (with_another_mode, ("mode is 'other'",)),
        (with_lengths_that_are_none, ("expected_accepted", "not a number")),
        (with_impossible_pit_values, ("PIT",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_spoiled_run_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2))
    spoil(folder)
    refused(report(folder, output=tmp_path / "out"), *words)
    assert not (tmp_path / "out" / "index.html").exists()


def test_places_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(report(tmp_path / "empty", output=tmp_path / "out"), "holds no run")
    refused(report(tmp_path / "none", output=tmp_path / "out"), "no folder")


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2))
    refused(report(folder, folder, output=tmp_path / "out"), "same name")


def test_a_folder_that_is_no_report_is_not_touched(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2))
    output = tmp_path / "out"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    refused(report(folder, output=output), "mine.txt", "no part of a report")
    assert [path.name for path in output.iterdir()] == ["mine.txt"]
    refused(report(folder, output=output / "mine.txt"), "cannot be written")


def test_json_that_is_broken_is_refused_and_other_json_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "run", rows(settings=ONE, prompts=2))
    (tmp_path / "all" / "x.json").write_text("{}")
    done = report(tmp_path / "all", output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "neither a theorem report nor a gate report" in done.output
    (tmp_path / "all" / "x.json").write_text("{")
    refused(report(tmp_path / "all", output=tmp_path / "out"), "x.json")


@pytest.mark.parametrize("name", ["univer", "rrsw", "somebody's own"])
def test_one_verifier_is_enough(tmp_path: Path, name: str) -> None:
    frame = rows(settings=ONE, prompts=2, verifiers=(name,), gain={name: 0.0})
    folder = write_run(tmp_path / "run", frame)
    done = report(folder, output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert ("no RRSw rows" in done.output) == (name != "rrsw")
    assert "No figure of UniVer - Greedy" in done.output


def test_one_prompt_has_no_error(tmp_path: Path) -> None:
    frame = rows(settings=ONE, prompts=1).filter(pl.col("category") == "qa")
    folder = write_run(tmp_path / "run", frame)
    done = report(folder, output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "n/a" in (tmp_path / "out" / "tables" / "lengths-run-2x5-T-1.md").read_text()


def test_plain_decoding_alone_has_no_lengths(tmp_path: Path) -> None:
    frame = rows("decoding", settings=ONE, prompts=2).filter(pl.col("verifier") == "plain")
    done = report(write_run(tmp_path / "run", frame, "decoding"), output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "No row has a tree" in (tmp_path / "out" / "index.html").read_text()


def test_a_verifier_with_fewer_contexts_is_noted(tmp_path: Path) -> None:
    gone = (pl.col("verifier") == "greedy") & (pl.col("prompt_id") == "qa-0")
    frame = rows(settings=ONE, prompts=2).filter(~gone)
    done = report(write_run(tmp_path / "run", frame), output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "not judged in the same contexts" in done.output


def test_decoding_with_fewer_texts_is_noted(tmp_path: Path) -> None:
    gone = (pl.col("verifier") == "greedy") & (pl.col("prompt_id") == "qa-0")
    frame = rows("decoding", settings=ONE, prompts=2).filter(~gone)
    done = report(write_run(tmp_path / "run", frame, "decoding"), output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "not judged in the same texts" in done.output


def test_topologies_that_are_lists_have_files_of_their_own(tmp_path: Path) -> None:
    frame = rows(settings=(("[[0],[0,0],[0,0,0]]", 1.0), ("[[0,0],[0],[0,0,0]]", 1.0)), prompts=2)
    done = report(write_run(tmp_path / "run", frame), output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out" / "tables").glob("lengths-run-*.csv"))) == 2


def test_names_that_collide_are_refused(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a b", rows(settings=ONE, prompts=2))
    b = write_run(tmp_path / "a-b", rows(settings=ONE, prompts=2))
    refused(report(a, b, output=tmp_path / "out"), "rename the folder")


def test_runs_of_different_models_are_shown_apart_with_a_note(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "a", rows(settings=ONE, prompts=2))
    write_run(tmp_path / "all" / "b", rows(settings=ONE, prompts=2), target="other")
    done = report(tmp_path / "all", output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "different targets or drafters" in done.output
    assert (tmp_path / "out" / "tables" / "lengths-a-2x5-T-1.csv").exists()
    assert (tmp_path / "out" / "tables" / "lengths-b-2x5-T-1.csv").exists()


def test_an_unfinished_run_is_noted(tmp_path: Path) -> None:
    asked = [{"topology": "2x5", "temperature": 1.0, "prompts": 9}]
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2), settings=asked)
    done = report(folder, output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "run is not finished: 2x5, T = 1: 6 of 27 prompts" in done.output


def test_runs_that_do_not_match_are_not_compared(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", rows("decoding", settings=ONE, prompts=2), "decoding")
    new = write_run(tmp_path / "new", rows(settings=ONE, prompts=2))
    other = write_run(tmp_path / "other", rows(settings=SETTINGS[3:4], prompts=2))
    output = tmp_path / "out"
    refused(report(new, "--against", old, output=output), "cannot be compared")
    refused(report(new, "--against", other, output=output), "no setting and verifier")
    refused(report(new, "--against", other, "--against", old, output=output), "same name")
