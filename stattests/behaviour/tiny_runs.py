"""Runs of `python -m gpu_runs` on a tiny model, in this process or in others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from click.testing import CliRunner, Result

from gpu_runs.__main__ import main
from gpu_runs.parts import TIMES, read_rows, write_part
from stattests.etest import pit_values
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


def rows_of_text(heat: float, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Rows as a run writes them; the text is drawn at another temperature than it claims."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(tokens // 4):
        laws = rng.dirichlet(np.full(8, 0.5), 4)
        hot = laws ** (1 / heat)
        hot /= hot.sum(1, keepdims=True)
        drawn = np.array([rng.choice(8, p=row) for row in hot])
        logs = np.log(laws)
        entropy = -(laws * logs).sum(1)
        own = logs[np.arange(4), drawn]
        rows.append(
            {
                "verifier": "univer",
                "drives_text": True,
                "pit": pit_values(
                    laws, rng.dirichlet(np.ones(8), 4), drawn, rng.random(4)
                ).tolist(),
                "log_prob": own.tolist(),
                "entropy": entropy.tolist(),
                "log_prob_variance": ((laws * logs**2).sum(1) - entropy**2).tolist(),
            }
        )
        empty: dict[str, list[float]] = {
            name: [] for name in ("pit", "log_prob", "entropy", "log_prob_variance")
        }
        rows.append({"verifier": "greedy", "drives_text": False, **empty})
    return rows


def write_run(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run's folder with these rows, in the parts of two ranks."""
    folder.mkdir()
    half = len(rows) // 2
    for rank, part in enumerate((rows[:half], rows[half:])):
        write_part(folder, rank, part)
    return folder
