"""`univer certify` and processes: what a verifier prints, how it ends, and that it ends with us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stattests import cli
from stattests.behaviour import HANGS
from stattests.lifeline import ENDS
from stattests.subject import load
from univer import InputError

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = """
import ctypes, os, pathlib, sys, threading, time
from functools import partial
from univer import verify

print_c = ctypes.CDLL(None).puts

class Good:
    drafting = "top_residual"
    verify = staticmethod(partial(verify, "univer"))

def printing(how):
    class Prints(Good):
        def verify(self, *arguments, uniforms):
            how()
            raise ValueError("[/red] \\x1b[31m \\udcff")
    return Prints

def in_a_thread():
    thread = threading.Thread(target=print, args=("said",))
    thread.start()
    thread.join()

Python = printing(lambda: print("said"))
Errors = printing(lambda: print("said", file=sys.stderr))
Descriptor = printing(lambda: os.write(2, b"said\\n"))
Child = printing(lambda: os.system("echo said"))
Thread = printing(in_a_thread)
Floods = printing(lambda: [os.write(1, b"x" * 10**6) for _ in range(30)] + [print("\\nsaid")])
Silent = printing(lambda: None)

class Dies(Good):
    def verify(self, *arguments, uniforms):
        print("said")
        os._exit(7)

class Constructor(Good):
    def __init__(self):
        print("said")
        raise OSError("no weights")

class Property(Good):
    class Answer:
        accepted_nodes = property(lambda self: sys.exit(4))

    def verify(self, *arguments, uniforms):
        return self.Answer()

class Needs(Good):
    def __init__(self, model): ...

class Undrafted:
    verify = Good.verify

def plain(tree, target, draft, *, uniforms): ...

def nothing(): ...

class Hangs(Good):
    def verify(self, *arguments, uniforms):
        pathlib.Path("new").write_text(str(os.getpid()))
        os.rename("new", "asked")
        while True:
            time.sleep(1)
"""


@pytest.fixture
def certify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in a folder of its own, with the verifiers above."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    return lambda name, *options: CliRunner().invoke(
        cli.main, ["certify", f"hostile:{name}", "--failures", "seen", *options]
    )


PRINTING = ("Python", "Errors", "Descriptor", "Child", "Thread", "Floods", "Dies")


@pytest.mark.parametrize("name", PRINTING)
def test_what_a_verifier_prints_is_kept_beside_the_report(
    name: str, certify: Callable[..., Result]
) -> None:
    done = certify(name, "--json", "report.json")
    assert done.exit_code == 2
    log = Path("seen") / f"hostile_{name}.log"
    content = log.read_bytes()
    assert len(content) < 1_000_000
    assert b"said\n" in content
    assert "  its last words: said\n" in done.stdout
    assert f"what the verifier printed: {log}" in done.stdout
    assert len(done.stdout) < 10_000
    printed = json.loads(Path("report.json").read_text())["printed"]
    assert (printed["file"], printed["last_lines"][-1]) == (str(log), "said")
    assert printed["cut"] == (name == "Floods")
    if printed["cut"]:
        assert content.splitlines()[-1].startswith(b"[cut: %d,000,006 bytes came" % 30)


def test_a_verifier_that_prints_nothing_has_no_log(certify: Callable[..., Result]) -> None:
    done = certify("Silent", "--json", "report.json")
    assert not list(Path("seen").glob("*.log"))
    assert json.loads(Path("report.json").read_text())["printed"] is None
    assert "hostile.py:" in done.stdout  # where it was raised
    assert r"[/red] \x1b[31m \udcff" in done.stdout


def test_what_was_printed_before_an_error_is_kept_too(certify: Callable[..., Result]) -> None:
    done = certify("Constructor")
    assert done.exit_code == 2
    assert "OSError: no weights (hostile.py:" in done.stderr
    assert (Path("seen") / "hostile_Constructor.log").read_text() == "said\n"


def test_an_exit_is_the_verifiers_own_wherever_it_comes_from(
    certify: Callable[..., Result],
) -> None:
    done = certify("Property")
    assert (done.exit_code, "raised SystemExit: 4 (hostile.py:" in done.stdout) == (2, True)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("hostile:Needs", "is a class that is made with arguments (model)"),
        ("hostile:plain", "verify = staticmethod(plain)"),
        ("hostile:nothing", "expected an object with `drafting` and `verify`, got NoneType"),
        ("hostile:Undrafted", "it has no drafting; give it one of"),
        ("hostile.py:Good", "so give hostile:Good."),
        ("./hostile.py:Good", "so give hostile:Good."),
        ("folder/hostile.py:Good", "so give folder.hostile:Good."),
        ("../other.py:Good", "so give other:Good in the folder "),
        ("hostile.py", "so give hostile:ATTRIBUTE."),
        ("hostile.Good", "(module.attribute is written module:attribute)"),
    ],
)
def test_what_names_no_verifier_is_told_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, says: str
) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    with pytest.raises(InputError) as refused:
        load(spec)
    assert says in str(refused.value)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds; it does unless a process hangs."""
    late = time.monotonic() + HANGS
    while not holds():
        assert time.monotonic() < late
        time.sleep(0.05)


EVERY = """
import sys
from stattests import every
every.VERIFIERS = {"hostile:Hangs": every.VERIFIERS["univer"]}
every.main()
"""
COMMANDS = {
    "certify": ["-m", "stattests.cli", "certify", "hostile:Hangs"],
    "every": ["-c", EVERY, "--budget", "smoke"],
}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from Linux")
@pytest.mark.parametrize("number", [*ENDS, signal.SIGKILL, signal.SIGINT], ids=str)
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_ends_the_command_ends_its_worker(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    running = subprocess.Popen(
        [sys.executable, *COMMANDS[command]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "asked").exists)
    worker = int((tmp_path / "asked").read_text())
    running.send_signal(number)
    out, errors = running.communicate(timeout=HANGS)
    until(lambda: not runs(worker))
    assert out == ""
    if number == signal.SIGKILL:
        assert running.returncode == -number
    else:
        assert running.returncode == 128 + number
        assert errors.count("\n") == 1
        assert "no verdict" in errors
