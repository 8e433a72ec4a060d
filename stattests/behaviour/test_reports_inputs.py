"""Bad and odd inputs of `python -m reports`: a clear sentence or a note, never a wrong table."""

from __future__ import annotations

import json
from collections.abc import Callable
from errno import ENOSPC
from math import inf, nan
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("matplotlib", reason="the extra `reports` is not installed")
pytest.importorskip("jinja2", reason="the extra `reports` is not installed")

from matplotlib.figure import Figure

from reports import page
from reports.__main__ import main
from reports.runs import LISTS
from stattests.behaviour.synthetic_runs import SETTINGS, rows, write_run

ONE = SETTINGS[:1]


@pytest.fixture(autouse=True)
def _no_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is drawn, as SVG: the PNG is the same one again, and test_reports.py has it."""
    whole = Figure.savefig

    def save(figure: Figure, path: Path, **options: Any) -> None:
        if path.suffix == ".png":
            path.touch()
        else:
            whole(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", save)


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


def with_cut_lists(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    pl.read_parquet(path).with_columns(pl.col("entropy").list.head(0)).write_parquet(path)


def with_a_doubled_row_in_a_lost_one_s_place(folder: Path) -> None:
    path = folder / "part-0-0.parquet"
    cycle = pl.when(pl.col("cycle") == 2).then(1).otherwise("cycle").cast(pl.Int32)
    pl.read_parquet(path).with_columns(cycle.alias("cycle")).write_parquet(path)


def with_a_text_twice_in_another_category(folder: Path) -> None:
    frame = pl.read_parquet(folder / "part-0-0.parquet")
    frame.with_columns(category=pl.lit("other")).write_parquet(folder / "part-1-0.parquet")


def without_settings(folder: Path) -> None:
    record = json.loads((folder / "run.json").read_text())
    record["config"]["settings"] = [{"topology": "2x5"}]
    (folder / "run.json").write_text(json.dumps(record))


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
        (with_cut_lists, ("entropy", "one number a token")),
        (with_a_doubled_row_in_a_lost_one_s_place, ("doubled",)),
        (with_a_text_twice_in_another_category, ("doubled",)),
        (without_settings, ("run.json is no run's record", "'temperature' is missing")),
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


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("temperature", nan),
        ("expected_accepted", -1.0),
        ("expected_accepted", 5.5),  # deeper than the tree
        ("num_accepted", -1),
        ("num_accepted", 6),
        ("num_accepted", None),
        ("target_ms", nan),
        ("target_ms", inf),
        ("target_ms", -1.0),
        ("keep_ms", None),
        ("cycle", None),
        ("prompt_id", None),
        ("drives_text", None),
        ("log_prob", [nan]),
        ("entropy", [inf]),
        ("pit", [0.5] * 8),  # more tokens than were accepted
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_refused(tmp_path: Path, column: str, value: object) -> None:
    frame = rows("decoding", settings=ONE, prompts=2)
    here = (pl.col("verifier") == "greedy") & (pl.col("cycle") == 1)
    bad = pl.lit(value, frame.schema[column])
    if isinstance(value, list) and column != "pit":
        bad = pl.col("pit").list.eval(pl.lit(value[0]))
    frame = frame.with_columns(pl.when(here).then(bad).otherwise(column).alias(column))
    folder = write_run(tmp_path / "run", frame, "decoding", settings=[])
    refused(report(folder, output=tmp_path / "out"), "5 deep" if value in (5.5, 6) else column)


def test_prompts_are_told_apart_whatever_their_names(tmp_path: Path) -> None:
    """a/b of category c is not b of category c/a: eight cycles of two texts are all counted."""
    frame = rows(settings=ONE, prompts=1, cycles=4, verifiers=("univer",))
    names = {"qa": ("c", "a/b"), "mt_bench": ("c/a", "b")}
    texts = [
        frame.filter(category=old).with_columns(category=pl.lit(new), prompt_id=pl.lit(prompt))
        for old, (new, prompt) in names.items()
    ]
    done = report(write_run(tmp_path / "run", pl.concat(texts)), output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    lengths = pl.read_csv(tmp_path / "out" / "tables" / "lengths-run-2x5-T-1.csv")
    means = [1 + text["expected_accepted"].to_numpy().mean() for text in texts]
    assert lengths["average"][0] == pytest.approx(sum(means) / 2)


def test_parts_without_rows_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=1), parts=1)
    path = folder / "part-0-0.parquet"
    pl.read_parquet(path).head(0).write_parquet(path)
    refused(report(folder, output=tmp_path / "out"), "holds no rows")


def test_columns_and_parts_of_another_version_do_not_matter(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2))
    path = folder / "part-0-1.parquet"
    frame = pl.read_parquet(path)
    frame.select(reversed(frame.columns)).with_columns(new=pl.lit(1)).write_parquet(path)
    done = report(folder, output=tmp_path / "out")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("topology", ["mine", "9x99999999999", "chain:99999999999", "[[0]]"])
def test_a_topology_that_is_strange_is_shown(tmp_path: Path, topology: str) -> None:
    frame = rows(settings=((topology, 1.0),), prompts=1, cycles=2)
    frame = frame.with_columns(
        expected_accepted=pl.lit(0.5),
        num_accepted=pl.col("num_accepted").clip(0, 1),
        **{name: pl.col(name).list.head(1) for name in LISTS},
    )
    done = report(write_run(tmp_path / "run", frame), output=tmp_path / "out")
    assert done.exit_code == 0, done.output


def test_a_report_that_cannot_be_finished_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2))
    assert report(folder, output=tmp_path / "out").exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}

    def full(*_: object) -> str:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(page, "render", full)
    for output in (tmp_path / "out", tmp_path / "new"):
        refused(report(folder, output=output), "cannot be written", "No space left")
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    assert not (tmp_path / "new").exists()


def test_places_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(report(tmp_path / "empty", output=tmp_path / "out"), "holds no run")
    refused(report(tmp_path / "none", output=tmp_path / "out"), "no folder")
    (tmp_path / "file").write_text("")
    refused(report(tmp_path / "file", output=tmp_path / "out"), "no folder")


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
    (output / "mine.txt").rename(tmp_path / "mine.txt")
    assert report(folder, output=output).exit_code == 0
    (tmp_path / "mine.txt").rename(output / "figures" / "mine.txt")
    refused(report(folder, output=output), "figures/mine.txt")
    (output / "figures" / "mine.txt").rename(output / "mine.txt")
    refused(report(folder, output=output / "mine.txt"), "is a file")
    refused(report(folder, output=output / "mine.txt" / "out"), "cannot be written")


def test_json_that_is_broken_is_refused_and_other_json_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "run", rows(settings=ONE, prompts=2))
    (tmp_path / "all" / "x.json").write_text("{}")
    done = report(tmp_path / "all", output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "neither a theorem report nor a gate report" in done.output
    theorems = {"target": "", "drafter": "", "plan": {}, "held": True, "findings": [{}]}
    (tmp_path / "all" / "x.json").write_text(json.dumps(theorems))
    refused(report(tmp_path / "all", output=tmp_path / "out"), "x.json", "no whole theorem report")
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
    lengths = (tmp_path / "out" / "tables" / "lengths-run-2x5-T-1.md").read_text()
    assert "± n/a" in lengths
    assert "n/a: a single prompt has none" in lengths
    assert "unknown: one prompt" in (tmp_path / "out" / "index.html").read_text()


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


def test_what_the_configuration_does_not_say_is_noted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows(settings=ONE, prompts=2), settings=[])
    record = json.loads((folder / "run.json").read_text())
    record["earlier"] = [{"device": "another", "git_revision": record["git_revision"]}]
    (folder / "run.json").write_text(json.dumps(record))
    done = report(folder, output=tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "its configuration does not name 2x5, T = 1" in done.output
    assert "on several devices: another, cpu (test)" in done.output
    assert "several versions" not in done.output


def test_runs_that_do_not_match_are_not_compared(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", rows("decoding", settings=ONE, prompts=2), "decoding")
    new = write_run(tmp_path / "new", rows(settings=ONE, prompts=2))
    other = write_run(tmp_path / "other", rows(settings=SETTINGS[3:4], prompts=2))
    output = tmp_path / "out"
    refused(report(new, "--against", old, output=output), "cannot be compared")
    refused(report(new, "--against", other, output=output), "no setting and verifier")
    refused(report(new, "--against", other, "--against", old, output=output), "same name")
