"""A run's rows on disk: Parquet parts, each whole or absent, each with whole units only.

One row is one verifier in one cycle. A unit's rows are all in one part, so that a unit is done if
any of them is found.

| column | what it holds |
|---|---|
| unit | the text's name in the plan |
| verifier, topology, temperature, category, prompt_id, seed | of the row; "plain" on topology "none" is plain decoding |
| cycle | number of the cycle in its text, from 0 |
| tree_id | one tree: rows that share it were judged on the same tree and context |
| drives_text | whether this verifier's decision went on with the text |
| num_accepted | drafted tokens that it accepted; null where it did not decide |
| expected_accepted | its mean given the tree, exact |
| draft_ms, target_ms | of the tree, milliseconds; a text's first ones contain the prompt |
| verify_ms, keep_ms | of the decision and of the caches' compaction; null where not taken |
| pit, log_prob, entropy, log_prob_variance | one number an emitted token, under the target's filtered law, in nats |

num_accepted counts the whole decision; the lists stop at EOS and at the text's number of tokens.
"""  # noqa: E501 - rows of a table

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gpu_runs.results import NEW, write_whole
from univer import InputError

SCHEMA: dict[str, Any] = {
    "unit": pl.String,
    "verifier": pl.String,
    "topology": pl.String,
    "temperature": pl.Float64,
    "category": pl.String,
    "prompt_id": pl.String,
    "seed": pl.Int64,
    "cycle": pl.Int32,
    "tree_id": pl.String,
    "drives_text": pl.Boolean,
    "num_accepted": pl.Int32,
    "expected_accepted": pl.Float64,
    "draft_ms": pl.Float64,
    "target_ms": pl.Float64,
    "verify_ms": pl.Float64,
    "keep_ms": pl.Float64,
    "pit": pl.List(pl.Float64),
    "log_prob": pl.List(pl.Float64),
    "entropy": pl.List(pl.Float64),
    "log_prob_variance": pl.List(pl.Float64),
}
TIMES = ("draft_ms", "target_ms", "verify_ms", "keep_ms")  # all that two runs may differ in
PART = re.compile(r"part-(\d+)-(\d+)\.parquet")


def parts(folder: Path) -> dict[tuple[int, int], Path]:
    """(rank, number) -> part, in this order."""
    found = ((PART.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted(((int(m[1]), int(m[2])), path) for m, path in found if m))


def write_part(folder: Path, rank: int, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as the rank's next part.

    Raises:
        InputError: it cannot be written, say because the disk is full; nothing of it is left.
    """
    numbers = [number for owner, number in parts(folder) if owner == rank]
    path = folder / f"part-{rank}-{max(numbers, default=-1) + 1}.parquet"
    buffer = io.BytesIO()
    pl.DataFrame(rows, schema=SCHEMA, orient="row").write_parquet(buffer, compression="zstd")
    try:
        write_whole(path, buffer.getvalue())
    except OSError as error:
        raise InputError(
            f"folder: cannot write {path}: {error.strerror or error}; the parts before it are"
            " whole, so make room and go on with --resume."
        ) from error
    return path


def read_rows(folder: Path, columns: Iterable[str] = tuple(SCHEMA)) -> pl.DataFrame:
    """These columns of all rows in a folder; none without parts.

    Raises:
        InputError: a part that is truncated, or no part of a run.
    """
    wanted = list(columns)
    frames = [pl.DataFrame(schema={name: SCHEMA[name] for name in wanted})]
    for path in parts(folder).values():
        try:
            frames.append(pl.read_parquet(path.read_bytes(), columns=wanted))
            pl.concat(frames[-2:])
        except Exception as error:  # polars raises anything for a file that is none of its own
            why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise InputError(
                f"folder: {path} cannot be read ({why}); remove it and go on with --resume, which"
                " does its units again."
            ) from error
    return pl.concat(frames)


def done_units(folder: Path) -> set[str]:
    """The units whose rows are in the folder.

    Raises:
        InputError: as in `read_rows`.
    """
    return set(read_rows(folder, ["unit"])["unit"].unique().to_list())


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in folder.glob(f"{NEW}*"):
        path.unlink(missing_ok=True)
