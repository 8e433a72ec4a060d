"""Run folders as gpu_runs writes them, with made-up rows, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl

from gpu_runs.parts import SCHEMA

VERIFIERS = ("rrsw", "traversal", "greedy", "univer")
CATEGORIES = ("mt_bench", "translation", "qa")
SETTINGS = (("2x5", 1.0), ("2x5", 0.6), ("2x5", 0.0), ("2x3", 1.0), ("3x3", 1.0), ("eagle", 1.0))
GAIN = {"rrsw": 0.0, "traversal": 0.03, "greedy": -0.02, "univer": 0.08}


def rows(
    mode: str = "paired",
    *,
    verifiers: Sequence[str] = VERIFIERS,
    settings: Sequence[tuple[str, float]] = SETTINGS,
    prompts: int = 4,
    cycles: int = 6,
    seed: int = 0,
    gain: Mapping[str, float] = GAIN,
    bias: float = 1.0,
) -> pl.DataFrame:
    """Rows of a run.

    Args:
        mode: "paired" or "decoding".
        verifiers: those with rows.
        settings: topology and temperature of each.
        prompts: a category.
        cycles: a text.
        seed: of the numbers.
        gain: verifier -> what it accepts more.
        bias: exponent of the PIT values; 1 for a lossless text.
    """
    writers = verifiers if mode == "paired" else ("plain", *verifiers)
    found = []
    for topology, temperature in settings:
        for category, place in product(CATEGORIES, range(prompts)):
            base = stream(seed, topology, temperature, category, place).uniform(0.6, 1.4)
            for cycle, (at, name) in product(range(cycles), enumerate(writers)):
                shape = "none" if name == "plain" else topology
                # Each row has its own numbers: what one verifier accepts changes no other row.
                rng = stream(seed, topology, temperature, category, place, cycle, name)
                expected = 0.0 if name == "plain" else base + gain[name] + rng.uniform(-0.1, 0.1)
                drives = mode != "paired" or place % len(writers) == at
                prompt = f"{category}-{place}"
                unit = f"{shape}/T{temperature:g}/{prompt}/seed0"
                found.append(
                    {
                        "unit": unit if mode == "paired" else f"{unit}/{name}",
                        "verifier": name,
                        "topology": shape,
                        "temperature": temperature,
                        "category": category,
                        "prompt_id": prompt,
                        "seed": 0,
                        "cycle": cycle,
                        "tree_id": f"{unit}/{cycle}/{name}",
                        "drives_text": drives,
                        "expected_accepted": expected,
                        "draft_ms": 0.0 if name == "plain" else rng.uniform(1, 2),
                        "target_ms": rng.uniform(4, 5),
                        "verify_ms": rng.uniform(0.1, 0.2) if drives else None,
                        "keep_ms": None if mode == "paired" else 0.1,
                        **_text(expected, drives, bias, rng),
                    }
                )
    frame = pl.DataFrame(found, schema=SCHEMA, orient="row")
    return frame.unique(["unit", "verifier", "cycle"], keep="first", maintain_order=True)


def write_run(
    folder: Path, frame: pl.DataFrame, mode: str = "paired", parts: int = 2, **config: Any
) -> Path:
    """A run's folder with these rows in some parts, and its record."""
    folder.mkdir(parents=True)
    size = -(-len(frame) // parts)
    for number, part in enumerate(frame.iter_slices(size)):
        part.write_parquet(folder / f"part-0-{number}.parquet", compression="zstd")
    trees = frame.filter(pl.col("topology") != "none")
    settings = trees.select("topology", "temperature").unique(maintain_order=True)
    asked = {
        "mode": mode,
        "target": "tiny",
        "drafter": {"kind": "eagle", "model": "tiny-head"},
        "settings": [
            {**row, "prompts": 1} for row in settings.sort(pl.all()).iter_rows(named=True)
        ],
        "tokens": 8,
        "seeds": [0],
    }
    record = {"config": asked | config, "device": "cpu (test)", "git_revision": "0" * 40}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def stream(*key: object) -> np.random.Generator:
    """Random numbers of this name."""
    return np.random.default_rng(crc32(repr(key).encode()))


def _text(expected: float, drives: bool, bias: float, rng: np.random.Generator) -> dict[str, Any]:
    accepted = int(min(rng.poisson(expected), 3))
    n = accepted + 1 if drives else 0
    return {
        "num_accepted": accepted if drives else None,
        "pit": (rng.random(n) ** bias).tolist(),
        "log_prob": (-rng.exponential(1.0, n)).tolist(),
        "entropy": [1.0] * n,
        "log_prob_variance": [1.0] * n,
    }
