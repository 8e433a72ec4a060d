"""A module broken on purpose in one place, to show that a test can fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Fault:
    """One replacement in a module's source: `line` must occur there exactly once."""

    name: str
    module: ModuleType
    line: str
    broken: str

    def __str__(self) -> str:
        return self.name


def plant(fault: Fault) -> ModuleType:
    """A fresh copy of the fault's module with the fault in it; the module itself stays whole."""
    source = Path(str(fault.module.__file__)).read_text()
    if source.count(fault.line) != 1:
        raise ValueError(
            f"{fault.name}: {fault.line!r} occurs {source.count(fault.line)} times in"
            f" {fault.module.__name__}; a fault needs exactly one place."
        )
    copy = ModuleType(fault.module.__name__)
    copy.__file__ = fault.module.__file__
    exec(compile(source.replace(fault.line, fault.broken), fault.name, "exec"), copy.__dict__)
    return copy
