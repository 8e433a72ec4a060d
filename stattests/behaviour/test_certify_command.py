"""`univer certify` as users call it: each exit code, files, and verifiers that misbehave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MINE = '''
import os, time
from functools import partial
from univer import verify

class Good:
    drafting = "top_residual"
    verify = staticmethod(partial(verify, "univer"))

class Lossy(Good):
    """Falls back to the other verifier's trees."""
    drafting = "without_replacement"

    def verify(self, tree, target, draft, *, uniforms):
        return verify("traversal", tree, target, target[:, list(tree.topology.internal)],
                      uniforms=uniforms)

class Hangs(Good):
    def verify(self, *arguments, uniforms):
        time.sleep(600)

class Dies(Good):
    def verify(self, *arguments, uniforms):
        os._exit(7)
'''


def certify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(MINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "stattests.cli", "certify", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.stat
def test_exit_0_for_a_verifier_from_the_working_folder(tmp_path: Path) -> None:
    files = ("--json", "report.json", "--junit", "report.xml")
    done = certify(tmp_path, "mine:Good", "--budget", "smoke", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: CERTIFIED" in done.stdout
    assert "replay: univer certify mine:Good --budget smoke --seed" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "CERTIFIED"
    assert report["cycles_per_second"] > 0
    assert (tmp_path / "report.xml").read_text().startswith("<?xml")
    assert not (tmp_path / "univer-failures").exists()


@pytest.mark.stat
def test_exit_1_for_a_bias_with_everything_to_look_at_it(tmp_path: Path) -> None:
    done = certify(tmp_path, "mine:Lossy", "--budget", "smoke", "--failures", "seen")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "verdict: BIASED" in done.stdout
    assert "where: after" in done.stdout
    assert "def test_output_law_is_the_targets" in done.stdout
    assert list((tmp_path / "seen").glob("*.json"))


@pytest.mark.parametrize(
    ("verifier", "says"),
    [("mine:Hangs", "no answer within 3 s"), ("mine:Dies", "its process ended with exit code 7")],
)
def test_exit_2_for_a_verifier_that_never_answers(tmp_path: Path, verifier: str, says: str) -> None:
    done = certify(tmp_path, verifier, "--budget", "smoke", "--timeout", "3")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"verdict: BROKEN ({says})" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("medusa",), "error: verifier: 'medusa' is unknown"),
        (("mine:Nothing",), "error: verifier: cannot load 'mine:Nothing'"),
        (("univer", "--budget", "huge"), "Invalid value for '--budget'"),
        (("univer", "--topology", "9y9"), "error: topology: cannot read '9y9'"),
        (("univer", "--json", "no/such/folder/x.json"), "error: --json: there is no folder"),
        (("univer", "--timeout", "0"), "error: timeout: expected a number > 0"),
    ],
)
def test_exit_2_and_one_sentence_for_bad_input(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = certify(tmp_path, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_exit_3_when_time_runs_out(tmp_path: Path) -> None:
    done = certify(tmp_path, "univer", "--max-minutes", "0.0001")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "verdict: INCONCLUSIVE" in done.stdout


@pytest.mark.stat
def test_the_pytest_fixture_passes_and_fails(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "test_mine.py").write_text(
        "def test_good(certify):\n    certify('mine:Good')\n"
        "def test_lossy(certify):\n    certify('mine:Lossy')\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "stattests.plugin", "--univer-seed", "5"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "mine:Lossy: BIASED" in done.stdout
    assert "seed 5" in done.stdout
