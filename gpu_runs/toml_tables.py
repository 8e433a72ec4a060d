"""TOML files into dataclasses: a key is known if the class has it, and has its default's type."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from univer import InputError

WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        InputError: no such file, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"config: cannot read {path}: {error}.") from error


def filled(kind: Any, given: Any, where: str = "", **parts: Any) -> Any:
    """A dataclass out of a table.

    Args:
        kind: the class; every field has a default, whose type a value must have. A tuple stands for
            a list of values of its first entry's type.
        given: the table.
        where: what error messages put before a key, such as "drafter.".
        parts: fields that the table does not give.

    Raises:
        InputError: no table, an unknown key, or a value of another type.
    """
    if not isinstance(given, dict):
        raise InputError(f"config: {where.rstrip('.')} must be a table, got {given!r}.")
    defaults = kind()
    known = {f.name: getattr(defaults, f.name) for f in fields(kind) if f.name not in parts}
    for key, value in given.items():
        if key not in known:
            names = ", ".join(f.name for f in fields(kind))
            raise InputError(f"config: {where}{key} is unknown; expected one of {names}.")
        default = known[key]
        if isinstance(default, tuple):
            one, wanted = type(default[0]), f"a list, each entry {WORDS[type(default[0])]}"
            fits = isinstance(value, list) and all(_fits(entry, one) for entry in value)
        else:
            wanted = WORDS[type(default)]
            fits = _fits(value, type(default))
        if not fits:
            raise InputError(f"config: {where}{key} must be {wanted}, got {value!r}.")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return kind(**values, **parts)


def _fits(value: Any, wanted: type) -> bool:
    return type(value) is wanted or (wanted is float and type(value) is int)
