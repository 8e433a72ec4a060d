"""What a subject's own code raises, in one line: the kind, the message, and where."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from traceback import walk_tb

from stattests.printed import shown

# Code that a subject calls, or that calls it; not its own.
OTHERS = tuple(
    f"{path}{os.sep}"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(str(Path(__file__).resolve().parents[1] / name) for name in ("univer", "stattests")),
    }
)


def raised(error: BaseException, package: str = "", most: int = 300) -> str:
    """The kind of an error, its message and the innermost place in the subject's own code.

    Args:
        error: what was raised.
        package: the subject's own top-level package, wherever it is installed.
        most: letters of the message.
    """
    try:
        text = shown(" ".join(str(error).split()), most)
    except Exception:
        text = "its message cannot be read"
    place = own_place(error, package)
    said = type(error).__name__ + (f": {text}" if text else "")
    return f"{said} ({place})" if place else said


def own_place(error: BaseException, package: str = "") -> str | None:
    """file:line of the innermost frame in a subject's own code; None if there is none."""
    place = None
    trace = error.__traceback__
    for frame, line in walk_tb(trace.tb_next if trace else None):  # without who catches it
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        own = not file.startswith(("<", *OTHERS))
        if own or (package and module.partition(".")[0] == package):
            place = f"{_short(file)}:{line}"
    return place


def _short(file: str) -> str:
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def package_of(function: object) -> str:
    """The top-level package that a function or an object's class is from."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]
