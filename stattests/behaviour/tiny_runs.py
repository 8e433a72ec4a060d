"""Runs of `python -m gpu_runs` on a tiny model, in this process or in others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch
from click.testing import CliRunner, Result

from gpu_runs.__main__ import main
from gpu_runs.parts import TIMES, read_rows
from univer import __file__ as univer_file

DEFAULTS: dict[str, Any] = {
    "mode": "paired",
    "seeds": [0],
    "tokens": 6,
    "max_prompt_tokens": 20,
    "threads": 1,
    "write_seconds": 0,  # every unit a part
    "drafter": {"kind": "layer_skip", "layers": 1},
    "settings": [{"topology": "2x2", "temperature": 1.0, "prompts": 1}],
}


def write_config(folder: Path, target: str, /, **changes: Any) -> Path:
    """A configuration file in a new folder, its rows to go to `<folder>/rows`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.toml"
    path.write_text(toml(DEFAULTS | {"target": target, "folder": str(folder / "rows")} | changes))
    return path


def toml(table: Mapping[str, Any]) -> str:
    """A table of plain values, tables and lists of tables as TOML."""
    plain, tables = [], []
    for key, value in table.items():
        if isinstance(value, dict):
            tables.append(f"[{key}]\n{toml(value)}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [f"[[{key}]]\n{toml(entry)}" for entry in value]
        else:
            plain.append(f"{key} = {'true' if value is True else repr(value)}\n")
    return "".join([*plain, *tables])


def start(config: Path, *options: str) -> Result:
    """The command, in this process, whose threads it leaves as they were."""
    threads = torch.get_num_threads()
    try:
        return CliRunner().invoke(main, [str(config), *options])
    finally:
        torch.set_num_threads(threads)


def finished(config: Path, *options: str) -> pl.DataFrame:
    """The rows of a run that went well."""
    result = start(config, *options)
    assert result.exit_code == 0, result.output
    return rows(config.parent / "rows")


def rows(folder: Path) -> pl.DataFrame:
    """The rows in a folder, in one order, without what no two runs share."""
    return read_rows(folder).drop(TIMES).sort("unit", "cycle", "verifier")


def command(*module: str) -> dict[str, Any]:
    """Arguments of `subprocess.Popen` for a Python module with its options."""
    place = {"PYTHONPATH": str(Path(univer_file).parents[1]), "OMP_NUM_THREADS": "1"}
    return {
        "args": [sys.executable, "-m", *module],
        "env": {**os.environ, **place},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def assert_one_sentence(result: Result, *parts: str) -> None:
    """Exit code 2 and one line on stderr with these parts."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
