"""`univer certify` as users call it: each exit code, files, and verifiers that misbehave.

On few problems, which the verifier's own module sees to: it is imported where the gate runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stattests import cli, gate
from stattests.behaviour import HANGS
from stattests.gate import Report
from stattests.subject import load
from stattests.verdict import HarnessError
from univer import InputError

ROOT = Path(__file__).resolve().parents[2]

FEW = """
from stattests import gate
from stattests.behaviour.few_problems import few

gate.cases_for = few
"""
MINE = '''
import os, pathlib, time
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
        pathlib.Path("asked").touch()
        time.sleep(600)

class Chains(Good):
    chains_only = True

class Constructor(Good):
    def __init__(self):
        raise SystemExit(3)

class Property(Good):
    @property
    def drafting(self):
        raise RuntimeError("no GPU")

class Unhashable(Good):
    drafting = ["top_residual"]

class Flag(Good):
    batched = "no"

class Claims(Good):
    claims = ["univer"]

class Dies(Good):
    def verify(self, *arguments, uniforms):
        os._exit(7)
'''


@pytest.fixture
def certify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in a folder of one's own; the verifier lives in a worker process, as ever."""
    (tmp_path / "mine.py").write_text(FEW + MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: CliRunner().invoke(cli.main, ["certify", *arguments])


@pytest.mark.stat
def test_exit_0_for_a_verifier_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FEW + MINE)
    command = [sys.executable, "-m", "stattests.cli", "certify", "mine:Good", "--budget", "smoke"]
    done = subprocess.run(
        [*command, "--json", "report.json", "--junit", "report.xml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: CERTIFIED" in done.stdout
    assert "replay: univer certify mine:Good --budget smoke --seed" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "CERTIFIED"
    assert report["cycles_per_second"] > 0
    assert (tmp_path / "report.xml").read_text().startswith("<?xml")
    assert not (tmp_path / "univer-failures").exists()


@pytest.mark.stat
def test_exit_1_for_a_bias_with_everything_to_look_at_it(
    tmp_path: Path, certify: Callable[..., Result]
) -> None:
    done = certify("mine:Lossy", "--budget", "smoke", "--failures", "seen")
    assert done.exit_code == 1, done.output
    assert "verdict: BIASED" in done.stdout
    assert "where: " in done.stdout
    assert "def test_output_law_is_the_targets" in done.stdout
    assert list((tmp_path / "seen").glob("*.json"))


@pytest.mark.parametrize(
    ("verifier", "says"),
    [
        ("mine:Hangs", "no answer within 3 s"),
        ("mine:Dies", "its process ended with exit code 7"),
    ],
)
def test_exit_2_for_a_verifier_that_never_answers(
    certify: Callable[..., Result], verifier: str, says: str
) -> None:
    timeout = "3" if verifier == "mine:Hangs" else str(HANGS)  # loading takes time as well
    done = certify(verifier, "--budget", "smoke", "--timeout", timeout)
    assert done.exit_code == 2, done.output
    assert f"verdict: BROKEN ({says})" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("mine:Nothing",), "error: verifier: cannot load 'mine:Nothing'"),
        (("mine:Chains", "--topology", "2x2"), "at most 1 a node; give one such as chain:4"),
    ],
)
def test_exit_2_and_one_sentence_for_bad_input(
    certify: Callable[..., Result], arguments: tuple[str, ...], says: str
) -> None:
    done = certify(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("medusa",), "error: verifier: 'medusa' is unknown"),
        (("univer", "--budget", "huge"), "Invalid value for '--budget'"),
        (("univer", "--json", "."), "error: --json: . is a folder; give the name of a file"),
        (("univer", "--json", "no/such/folder/x.json"), "error: --json: there is no folder"),
        (("univer", "--junit", "."), "error: --junit: . is a folder; give the name of a file"),
        (("univer", "--failures", __file__), "is not a folder; give the name of one"),
        (("univer", "--seed", "-1"), "Invalid value for '--seed'"),
        (("univer", "--vocab", "-5"), "error: vocab: -5 is too small for 2x2; expected at least 4"),
        (("univer", "--topology", "none"), "error: topology: 'none' has no drafts to verify"),
        (("univer", "--topology", "9y9"), "error: topology: cannot read '9y9'"),
    ],
)
def test_bad_options_end_before_the_work(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    def here(spec: str, **options: Any) -> Report:
        del options["timeout"], options["printed"]
        return gate.certify(load(spec), **options)

    monkeypatch.setattr(cli, "certify_in_worker", here)
    done = CliRunner().invoke(cli.main, ["certify", *arguments])
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_a_timeout_that_is_none_starts_no_worker() -> None:
    done = CliRunner().invoke(cli.main, ["certify", "univer", "--timeout", "0"])
    assert done.exit_code == 2
    assert "error: timeout: expected a number > 0" in done.stderr


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("Constructor", "verifier: cannot load 'strange:Constructor': SystemExit: 3"),
        ("Property", "verifier: cannot load 'strange:Property': RuntimeError: no GPU"),
        ("Unhashable", "strange:Unhashable: its drafting is ['top_residual']; expected one of"),
        ("Flag", "strange:Flag: its batched is 'no'; expected True or False"),
        ("Claims", "strange:Claims: it claims ['univer']; known are"),
    ],
)
def test_strange_objects_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, says: str
) -> None:
    (tmp_path / "strange.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "strange", raising=False)
    with pytest.raises(InputError, match=re.escape(says)):
        load(f"strange:{attribute}")


def test_ctrl_c_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    running = subprocess.Popen(
        [sys.executable, "-m", "stattests.cli", "certify", "mine:Hangs"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + HANGS
    while not (tmp_path / "asked").exists():  # until the worker runs the verifier's own code
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    out, errors = running.communicate(timeout=HANGS)
    assert (running.returncode, out) == (130, "")
    assert errors == "interrupted: no verdict\n"


def test_a_failure_of_the_certification_itself_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise HarnessError("MemoryError")

    monkeypatch.setattr(cli, "certify_in_worker", failing)
    done = CliRunner().invoke(cli.main, ["certify", "univer"])
    assert done.exit_code == 2
    assert "the certification itself failed, which is no verdict: MemoryError" in done.stderr
    assert "verdict:" not in done.stdout


def test_exit_3_when_time_runs_out(certify: Callable[..., Result]) -> None:
    done = certify("mine:Good", "--max-minutes", "1e-12")  # less than a clock can show
    assert done.exit_code == 3, done.output
    assert "verdict: INCONCLUSIVE" in done.stdout


@pytest.mark.stat
def test_the_pytest_fixture_passes_and_fails(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FEW + MINE)
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
