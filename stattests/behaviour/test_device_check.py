"""The device check, run on the CPU against itself: what it compares, and that it can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from gpu_runs import device_check, kernel_times
from gpu_runs.device_check import main
from univer import DraftTree, StopLaw, VerifyOutput, fused, stop_law, verify, verify_logits

SCRIPT = Path(device_check.__file__).with_suffix(".sh")


def check(monkeypatch: pytest.MonkeyPatch, *arguments: str, models: bool = False) -> Result:
    """The command on a small vocabulary and short texts."""
    if not models:
        monkeypatch.setattr(device_check, "models", lambda *_: ())
    monkeypatch.setattr(device_check, "TOKENS", 6)
    monkeypatch.setattr(device_check, "TREES", 2)
    monkeypatch.setattr(device_check, "LAYERS", 1)
    return CliRunner().invoke(main, ["--device", "cpu", "--vocabulary", "160", *arguments])


def test_the_cpu_agrees_with_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    result = check(monkeypatch, "--json", str(output), models=True)
    assert result.exit_code == 0, result.output
    found = json.loads(output.read_text())
    assert found["passed"]
    assert found["device"] == "cpu"
    assert len(found["findings"]) == 4 + 1 + 4 + 1


def test_decisions_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def other(verifier: Any, tree: DraftTree, *laws: Any, **options: Any) -> VerifyOutput:
        calls.append(verifier)
        out = verify(verifier, tree, *laws, **options)
        return replace(out, tokens=out.tokens + 1) if len(calls) == 2 else out

    monkeypatch.setattr(device_check, "verify", other)
    assert check(monkeypatch).exit_code == 1


def test_stop_laws_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def other(verifier: Any, tree: DraftTree, *laws: Any) -> StopLaw:
        calls.append(verifier)
        law = stop_law(verifier, tree, *laws)
        return replace(law, stop_probs=law.stop_probs + 1e-9) if len(calls) == 2 else law

    monkeypatch.setattr(device_check, "stop_law", other)
    assert check(monkeypatch).exit_code == 1


def test_a_device_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check(monkeypatch, "--device", "cuda:99")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: device")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("wrong", [0, 1])
def test_kernels_are_timed_and_compared_with_the_plain_path(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the plain path in their place, which needs no Triton; wrong tokens are found."""

    def kernels(*arguments: Any, **options: Any) -> VerifyOutput:
        out = verify_logits(*arguments, **options)
        return replace(out, tokens=out.tokens + wrong)

    cpu = torch.device("cpu")
    monkeypatch.setattr(kernel_times, "ROUNDS", 1)
    monkeypatch.setattr(kernel_times, "FLUSHED", 1000)
    monkeypatch.setattr(fused, "runs_kernels", lambda _: False)
    assert not list(kernel_times.findings(cpu))
    monkeypatch.setattr(fused, "runs_kernels", lambda _: True)
    monkeypatch.setattr(fused, "applies", lambda *_: False)
    monkeypatch.setattr(fused, "verify_logits_fused", kernels)
    rows = list(kernel_times.findings(cpu, 50, (1, 3)))
    assert len(rows) == 8
    assert [row.holds for row in rows if row.n == 3] == [not wrong] * 4
    assert "kernels, eagle, 3 trees, bfloat16 logits" in {row.claim for row in rows}
    assert all("softmax" in row.found and "floor" in row.found for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_the_script_says_so() -> None:
    found = subprocess.run(
        ["sh", str(SCRIPT)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 3
    assert "no CUDA device" in found.stdout
