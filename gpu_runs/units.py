"""A unit of work into rows, in either mode: one row for each verifier judged in a cycle.

Paired: every verifier judged on the tree of its draft law, in each context of the text that one of
them writes. Decoding: one verifier writes, alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpu_runs.configuration import PAIRED, Config
from gpu_runs.loading import Pair
from gpu_runs.paired import visit
from gpu_runs.pit import pit_of_cycle, surprise_of_cycle
from gpu_runs.plan import Unit
from gpu_runs.separate import NO_TREE, PLAIN, decode_as
from univer import VERIFIERS, Filters, Topology, stop_law
from univer.decoding import Drawn, eos_ids
from univer.verifiers import VerifyOutput

Row = dict[str, Any]  # the columns of parts.SCHEMA


def rows_of_unit(config: Config, pair: Pair, unit: Unit, prompt: Sequence[int]) -> list[Row]:
    """All rows of a unit.

    Args:
        config: the run.
        pair: its models.
        unit: what to do.
        prompt: the token ids that its text starts with.
    """
    make = _paired_rows if config.mode == PAIRED else _decoding_rows
    rows = make(config, pair, unit, prompt, unit.generator())
    common = {
        "unit": unit.name,
        "topology": unit.topology,
        "temperature": unit.temperature,
        "category": unit.prompt.category,
        "prompt_id": unit.prompt.prompt_id,
        "seed": unit.seed,
    }
    return [common | row for row in rows]


def _paired_rows(
    config: Config, pair: Pair, unit: Unit, prompt: Sequence[int], generator: torch.Generator
) -> list[Row]:
    contexts = visit(
        pair.target.model,
        pair.drafter,
        prompt,
        topology=Topology.parse(unit.topology),
        filters=Filters(unit.temperature),
        driver=unit.writer,
        tokens=config.tokens,
        ends=eos_ids(None, pair.target.model),
        generator=generator,
        verifiers=config.verifiers,
    )
    rows = []
    for cycle, judged in enumerate(contexts):
        wrote = _text_columns(judged.drawn, judged.output, judged.tokens, generator)
        wrote |= {"verify_ms": judged.verify_ms}
        for name in config.verifiers:
            law = VERIFIERS[name].drafting
            row = _row(unit, name, cycle, law, judged.trees[law], judged.expected[name])
            rows.append(row | (wrote if name == judged.driver else SILENT))
    return rows


def _decoding_rows(
    config: Config, pair: Pair, unit: Unit, prompt: Sequence[int], generator: torch.Generator
) -> list[Row]:
    cycles = decode_as(
        unit.writer,
        pair.target.model,
        pair.drafter,
        prompt,
        topology=Topology.parse(unit.topology),
        filters=Filters(unit.temperature),
        max_new_tokens=config.tokens,
        generator=generator,
    )
    rows = []
    for number, cycle in enumerate(cycles):
        drawn, law, expected = cycle.drawn, str(NO_TREE), 0.0
        if unit.writer != PLAIN:
            law = VERIFIERS[unit.writer].drafting
            laws = (drawn.target_probs, drawn.draft_probs)
            expected = stop_law(unit.writer, drawn.tree, *laws).expected_accepted.item()
        row = _row(unit, unit.writer, number, law, drawn, expected)
        record = cycle.record
        row |= _text_columns(drawn, cycle.output, record.tokens, generator)
        rows.append(row | {"verify_ms": record.verify_ms, "keep_ms": record.keep_ms})
    return rows


# The columns of a verifier that was only judged on a tree.
SILENT: Row = {
    "drives_text": False,
    "num_accepted": None,
    "verify_ms": None,
    "pit": [],
    "log_prob": [],
    "entropy": [],
    "log_prob_variance": [],
}


def _row(unit: Unit, name: str, cycle: int, law: str, drawn: Drawn, expected: float) -> Row:
    return {
        "verifier": name,
        "cycle": cycle,
        "tree_id": f"{unit.name}/{cycle}/{law}",
        "expected_accepted": expected,
        "draft_ms": drawn.draft_ms,
        "target_ms": drawn.target_ms,
        "keep_ms": None,
    }


def _text_columns(
    drawn: Drawn, output: VerifyOutput, tokens: Sequence[int], generator: torch.Generator
) -> Row:
    surprise = surprise_of_cycle(drawn, output, tokens)
    return {
        "drives_text": True,
        "num_accepted": output.num_accepted.item(),
        "pit": pit_of_cycle(drawn, output, tokens, generator).tolist(),
        "log_prob": list(surprise.log_prob),
        "entropy": list(surprise.entropy),
        "log_prob_variance": list(surprise.variance),
    }
