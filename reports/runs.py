"""Run folders: found, checked at the door, and opened lazily, so that their size does not matter.

What is wrong with a folder is said in one sentence; nothing is guessed from half a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from reports.errors import ReportError

PART = re.compile(r"part-(\d+)-(\d+)\.parquet")
RECORD = "run.json"
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
    "draft_ms": pl.Float64,
    "target_ms": pl.Float64,
    "verify_ms": pl.Float64,
    "keep_ms": pl.Float64,
    **{name: pl.List(pl.Float64) for name in LISTS},
}


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

    def lazy(self) -> pl.LazyFrame:
        """The rows, numbered in the order of the files, unread."""
        frames = pl.scan_parquet(list(self.parts), glob=False, row_index_name="row")
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
    return Run(folder.resolve().name, folder, record, parts, rows)


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
        for key in ("mode", "target", "drafter", "settings", "tokens", "seeds"):
            config[key]
    except FileNotFoundError as error:
        raise ReportError(
            f"{path} is missing: without it nobody can say what the rows come from."
        ) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ReportError(f"{path} is no run's record ({error}).") from error
    if config["mode"] not in ("paired", "decoding"):
        raise ReportError(f"{path}: mode is {config['mode']!r}; paired and decoding are known.")
    return record


def _checked(path: Path) -> int:
    """The number of rows of a part that has the columns it must have."""
    try:
        has = pl.read_parquet_schema(path)
        rows = int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
    except Exception as error:  # polars raises anything for a file that is none of its own
        raise unreadable(path, error) from error
    if missing := [name for name in SCHEMA if name not in has]:
        raise ReportError(
            f"{path} lacks the column {missing[0]}; it was not written by this version of gpu_runs."
        )
    for name, dtype in SCHEMA.items():
        if has[name] != dtype:
            raise ReportError(f"{path}: the column {name} is {has[name]}, not {dtype}.")
    return rows


def broken_part(run: Run) -> Path:
    """The part that cannot be read to its end, once a run could not; its folder if all can."""
    for path in run.parts:
        try:
            pl.read_parquet(path, columns=list(SCHEMA))
        except Exception:  # whatever it is, this is the one
            return path
    return run.folder


def unreadable(path: Path, error: Exception) -> ReportError:
    """The sentence for a part that is cut off or no Parquet file."""
    why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return ReportError(
        f"{path} cannot be read ({why}); remove it and let the run go on with --resume, which does"
        " its texts again."
    )
