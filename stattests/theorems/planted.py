"""A named fault: one line of a module replaced, to show that a test can fail."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from stattests import planting


@dataclass(frozen=True)
class Fault:
    """One replacement in a module's source: `line` must occur there exactly once."""

    name: str
    module: ModuleType
    line: str
    broken: str

    def __str__(self) -> str:
        return self.name

    def plant(self) -> dict[str, ModuleType]:
        """Fresh copies, by name, of the faulty module and of those that build on it."""
        return planting.plant(planting.Patch(self.module.__name__, self.line, self.broken))


def plant(fault: Fault) -> ModuleType:
    """A fresh copy of the fault's own module."""
    return fault.plant()[fault.module.__name__]
