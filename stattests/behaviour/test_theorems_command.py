"""`python -m gpu_runs.theorems` as users call it: its report, exit codes and bad options."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_runs import theorems
from gpu_runs.theorems import main
from gpu_runs.theorems_direct import (
    direct_findings,
    planted,
)
from stattests.behaviour.tiny_runs import assert_one_sentence, rows_of_text, write_run

SMALL = ("--trees", "64", "--nodes", "128", "--cycles", "640", "--prompts", "1")


def command(model: str, *arguments: str) -> Result:
    chosen = ("--target", model, "--drafter", "skip:1", "--topology", "2x2", *SMALL)
    return CliRunner().invoke(main, [*chosen, *arguments])


def test_the_command_reports_and_writes_json(model: str, tmp_path: Path) -> None:
    runs = write_run(tmp_path / "run", rows_of_text(1.0, 400, 0))
    output = tmp_path / "found.json"
    result = command(
        model, "--parts", "layers,lengths,text,direct", "--runs", str(runs), "--json", str(output)
    )
    found = json.loads(output.read_text())
    assert result.exit_code == (0 if found["held"] else 1), result.output
    rows = found["findings"]
    assert found["held"] == all(row["holds"] for row in rows)
    claims = " ".join(row["claim"] for row in rows)
    for part in ("Theorem 3, float32", "Theorem 5, float64", "Theorem 6, 2x2", "Lemma 1", "PIT"):
        assert part in claims
    # A tiny random model may leave Theorem 6 open: these are exact, or tests of lossless verifiers.
    assert all(row["holds"] for row in rows if "E[N_" not in row["claim"])


def test_a_biased_verifier_makes_the_command_fail(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = {"biased": planted("ratio-inverted")}
    monkeypatch.setattr(theorems, "direct_findings", partial(direct_findings, boxes=boxes))
    result = command(model, "--parts", "direct", "--cycles", "4000")
    assert result.exit_code == 1
    assert "NOT" in result.stdout


BAD = {
    "part": (("--parts", "layers,proofs"), ("parts", "'proofs'")),
    "text-without-runs": (("--parts", "text"), ("parts", "--runs")),
    "topology": (("--topology", "2by2"), ("topology", "'2by2'")),
    "nodes": (("--nodes", "0"), ("nodes", "got 0")),
    "greedy": (("--temperature", "0"), ("temperature", "direct")),
    "no-drafts": (("--direct-topology", "none"), ("direct_topology",)),
    "head": (("--drafter", "eagle:./nothing"), ("drafter", "./nothing")),
    "target": (("--target", "./nothing"), ("model", "./nothing")),
    "runs": (("--runs", "/no/such/run"), ("runs", "/no/such/run")),
    "json": (("--json", "/no/such/folder/x.json"), ("output", "/no/such/folder")),
    "seed": (("--seed", "-1"), ("seed", "got -1")),
    "threads": (("--threads", "-1"), ("threads", "got -1")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_option_is_one_sentence_and_exit_code_2(case: str, model: str) -> None:
    arguments, parts = BAD[case]
    assert_one_sentence(command(model, *arguments), *parts)
