"""Where files are, as people read it, and the commands that make them."""

from __future__ import annotations

import shlex
from pathlib import Path

from reports.runs import Run

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = "gpu_runs/configs"


def shown_path(path: Path) -> str:
    """The path from the repository's root if it is in there, else as it was given."""
    try:
        return path.resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return path.as_posix()


def rows_of(run: Run) -> str:
    """The files with a run's rows."""
    return f"{shown_path(run.folder)}/part-*.parquet"


def run_command(run: Run) -> str:
    """The command that made a run's rows, as far as its name says it."""
    config = f"{CONFIGS}/{run.name}.toml"
    known = (ROOT / config).is_file()
    return f"python -m gpu_runs {config if known else '<the configuration in run.json>'}"


def report_command(paths: list[Path], output: Path, against: list[Path]) -> str:
    """The command that makes this report."""
    words = ["python", "-m", "reports", *map(shown_path, paths), "-o", shown_path(output)]
    for path in against:
        words += ["--against", shown_path(path)]
    return shlex.join(words)
