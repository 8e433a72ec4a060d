"""Run folders: found, checked at the door, and opened lazily, so that their size does not matter.

What is wrong with a folder is said in one sentence; nothing is guessed from half a run. Here too is
how a folder and the commands behind it are written for people.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from reports.names import visible

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = "gpu_runs/configs"
PART = re.compile(r"part-(\d+)-(\d+)\.parquet")
RECORD = "run.json"
TIMES = ("draft_ms", "target_ms", "verify_ms", "keep_ms")
LISTS = ("pit", "log_prob", "entropy", "log_prob_variance")
SCHEMA: dict[str, Any] = {
    "unit": pl.String,
    "verifier": pl.String,
    "topology": pl.String,
    "temperature": pl.Float64,
    "category": pl.String,
    "prompt_id": pl.String,
    "seed": pl.Int64,
    "cycle": pl.Int32,
    "drives_text": pl.Boolean,
    "num_accepted": pl.Int32,
    "expected_accepted": pl.Float64,
    **dict.fromkeys(TIMES, pl.Float64),
    **dict.fromkeys(LISTS, pl.List(pl.Float64)),
}


class ReportError(Exception):
    """The input or the output folder is not usable; the text says why and what to do."""


@dataclass(frozen=True)
class Run:
    """A run's folder.

    name: of the folder; unique in a report.
    folder: as it was given.
    record: run.json.
    parts: the files with rows, in order.
    rows: how many there are.
    """

    name: str
    folder: Path
    record: Mapping[str, Any]
    parts: tuple[Path, ...]
    rows: int

    @property
    def config(self) -> Mapping[str, Any]:
        """What the run was asked to do."""
        config: Mapping[str, Any] = self.record["config"]
        return config

    @property
    def paired(self) -> bool:
        """Whether all verifiers were judged in the same contexts."""
        return bool(self.config["mode"] == "paired")

    @property
    def device(self) -> str:
        """What it ran on."""
        return visible(str(self.record.get("device") or "a device that is not said"))

    def lazy(self) -> pl.LazyFrame:
        """The rows, numbered in the order of the files, unread."""
        frames = pl.scan_parquet(
            list(self.parts), glob=False, row_index_name="row", extra_columns="ignore"
        )
        return frames.select("row", *SCHEMA)


def find(paths: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """All runs in these places, and the JSON files that lie beside them.

    Args:
        paths: run folders, or folders that hold some.

    Raises:
        ReportError: a place without runs, a run given twice, or a folder that is not readable.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ReportError(f"{path} is no folder; give the folder of a run, or one of runs.")
        if _is_run(path):
            folders.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.is_dir() and _is_run(p))
        if not inside:
            raise ReportError(
                f"{path} holds no run: neither {RECORD} and part-*.parquet nor folders with them."
            )
        folders += inside
    seen: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        if name in seen:
            raise ReportError(
                f"{seen[name]} and {folder} have the same name; give each run once, each under its"
                " own name."
            )
        seen[name] = folder
    beside = [p for path in paths if not _is_run(path) for p in sorted(path.glob("*.json"))]
    return [open_run(folder) for folder in folders], beside


def open_run(folder: Path) -> Run:
    """A run's folder, checked: its record, and that every part can be read and has all columns.

    Raises:
        ReportError: says what is missing.
    """
    parts = _parts(folder)
    if not parts:
        raise ReportError(f"{folder} holds no part-*.parquet; the run in it has no rows yet.")
    record = _record(folder / RECORD)
    rows = sum(_checked(path) for path in parts)
    if not rows:
        raise ReportError(f"{folder} holds no rows: its parts are empty.")
    return Run(visible(folder.resolve().name), folder, record, parts, rows)


def _is_run(folder: Path) -> bool:
    return (folder / RECORD).is_file() or bool(_parts(folder))


def _parts(folder: Path) -> tuple[Path, ...]:
    found = [(PART.fullmatch(path.name), path) for path in folder.iterdir()]
    numbered = sorted(((int(m[1]), int(m[2])), path) for m, path in found if m)
    return tuple(path for _, path in numbered)


def _record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config = record["config"]
        config["mode"], config["target"], config["tokens"]
        config["drafter"]["kind"], list(config["seeds"])
        for setting in config["settings"]:
            hash((setting["topology"], float(setting["temperature"]), int(setting["prompts"])))
    except FileNotFoundError as error:
        raise ReportError(
            f"{path} is missing: without it nobody can say what the rows come from."
        ) from error
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ReportError(f"{path} is no run's record ({why}).") from error
    if config["mode"] not in ("paired", "decoding"):
        raise ReportError(f"{path}: mode is {config['mode']!r}; paired and decoding are known.")
    return record


def _checked(path: Path) -> int:
    """The number of rows of a part that has the columns it must have."""
    try:
        has = pl.read_parquet_schema(path)
        rows = int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
    except Exception as error:  # polars raises anything for a file that is none of its own
        raise _broken(path, error) from error
    if missing := [name for name in SCHEMA if name not in has]:
        raise ReportError(
            f"{path} lacks the column {missing[0]}; it was not written by this version of gpu_runs."
        )
    for name, dtype in SCHEMA.items():
        if has[name] != dtype:
            raise ReportError(f"{path}: the column {name} is {has[name]}, not {dtype}.")
    return rows


def unreadable(run: Run, error: Exception) -> ReportError:
    """The sentence for a run whose rows could not be read to their end: names the broken part."""
    for path in run.parts:
        try:
            pl.read_parquet(path, columns=list(SCHEMA))
        except Exception as why:  # whatever it is, this is the one
            return _broken(path, why)
    return ReportError(f"{run.folder} cannot be summed ({_reason(error)}).")


def _broken(path: Path, error: Exception) -> ReportError:
    return ReportError(
        f"{path} cannot be read ({_reason(error)}); remove it and let the run go on with --resume,"
        " which does its texts again."
    )


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def shown_path(path: Path) -> str:
    """The path from the repository's root if it is in there, else as it was given."""
    try:
        return visible(path.resolve().relative_to(ROOT).as_posix())
    except ValueError:
        return visible(path.as_posix())


def rows_of(run: Run) -> str:
    """The files with a run's rows."""
    return f"{shown_path(run.folder)}/part-*.parquet"


def run_command(run: Run) -> str:
    """The command that made a run's rows, as far as its name and its record say it."""
    config = f"{CONFIGS}/{run.name}.toml"
    if not (ROOT / config).is_file():
        config = "<the configuration in run.json>"
    questions = str(run.config.get("questions", "own"))
    own = questions == "own"  # the prompts that gpu_runs brings
    return f"python -m gpu_runs {config}" + ("" if own else f" --questions {questions}")


def report_command(paths: Sequence[Path], output: Path, against: Sequence[Path]) -> str:
    """The command that makes this report."""
    words = ["python", "-m", "reports", *map(shown_path, paths), "-o", shown_path(output)]
    for path in against:
        words += ["--against", shown_path(path)]
    return shlex.join(words)
