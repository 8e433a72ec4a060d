"""The file of results: refused before the work if it cannot be written, whole or absent later."""

from __future__ import annotations

import json
import os
import tempfile
from math import isfinite
from pathlib import Path
from typing import Any

from univer import InputError

NEW = ".new-"


def check_writable(path: Path) -> None:
    """Refuse a place where `write_json` could not put a file.

    Raises:
        InputError: a folder or a device, no folder around it, or one that takes no files.
    """
    try:
        _refuse_special(path)
        with tempfile.NamedTemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_json(path: Path, results: Any) -> None:
    """Write the results as JSON, atomically; numbers that are not finite become null.

    Raises:
        InputError: as in `check_writable`, or the disk is full.
    """
    text = json.dumps(_finite(results), indent=1, allow_nan=False)
    try:
        _refuse_special(path)
        write_whole(path, text.encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or absent, whenever the process or the machine ends.

    A killed process may leave a file named NEW + anything beside it. Raises OSError.
    """
    place = path.resolve()  # a link stays one; the file that it names is replaced
    new = place.with_name(f"{NEW}{os.getpid()}-{place.name}")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _refuse_special(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise InputError(f"output: there is no folder {path.absolute().parent}.")
    if path.is_dir():
        raise InputError(f"output: {path} is a folder; give the name of a file.")
    if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
        raise InputError(f"output: {path} cannot be written; give the name of another file.")


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(f"output: cannot write {path}: {error.strerror or error}.")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
