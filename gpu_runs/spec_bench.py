"""Spec-Bench's question.jsonl: the first turn of every question, in six categories.

The file has 13 category names; the eight of ten questions each are MT-bench.

Source: Xia et al. 2024, Unlocking Efficiency in Large Language Model Inference: A Comprehensive
Survey of Speculative Decoding.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from gpu_runs.prompts import Prompt
from univer import InputError

MT_BENCH = "mt_bench"
MT_BENCH_NAMES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)


def read_spec_bench(path: Path) -> tuple[Prompt, ...]:
    """All questions, first turn; in MT-bench its eight kinds in turn, else in the file's order.

    Raises:
        InputError: no such file, no question in it, or a line that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"questions: cannot read {path}: {error}.") from error
    by_name: dict[str, list[Prompt]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            name, prompt = _question(line, f"line {number} of {path}")
            by_name[name].append(prompt)
    if not by_name:
        raise InputError(
            f"questions: {path} holds no question; expected Spec-Bench's question.jsonl."
        )
    prompts = [
        *chain.from_iterable(zip_longest(*(by_name.pop(name, []) for name in MT_BENCH_NAMES))),
        *chain.from_iterable(by_name.values()),
    ]
    return tuple(prompt for prompt in prompts if prompt is not None)


def _question(line: str, where: str) -> tuple[str, Prompt]:
    """The category's own name and the prompt in a line."""
    try:
        entry: dict[str, Any] = json.loads(line)
        number, name, turn = entry["question_id"], entry["category"], entry["turns"][0]
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"questions: {where} is no question of Spec-Bench; expected JSON with question_id,"
            " category and turns."
        ) from error
    if not (isinstance(name, str) and isinstance(turn, str) and turn.strip()):
        raise InputError(f"questions: {where} has no category or an empty first turn.")
    category = MT_BENCH if name in MT_BENCH_NAMES else name
    return name, Prompt(f"{category}-{number}", category, (turn,))
