"""Code that is broken on purpose: one line of a real module replaced, the rest as it is.

`plant` makes fresh copies of the patched modules and of those that build on them; the modules
themselves stay whole. So a fault is a line of text, and it breaks what users run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from univer import rules


def _text(module: str) -> str:
    return Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")


# Rules that build on no other come first.
_RULES = sorted(
    (f"{rules.__name__}.{path.stem}" for path in Path(rules.__path__[0]).glob("[a-z]*.py")),
    key=lambda name: (f"from {rules.__name__}." in _text(name), name),
)
# Later modules import from earlier ones: a copy of one needs copies of all that follow.
CHAIN = (
    "univer.rows",
    "univer.indices",
    "univer.sampling",
    *_RULES,
    "univer.allocation",
    "univer.composition",
    "univer.tree_rows",
    "univer.verifiers",
)


@dataclass(frozen=True)
class Patch:
    """One replacement: `line` must occur exactly once in the module's source."""

    module: str
    line: str
    broken: str


def plant(*patches: Patch) -> dict[str, ModuleType]:
    """Fresh copies, by name, of the patched modules and of the verifiers built on them.

    Raises:
        ValueError: a patch's line does not occur exactly once.
    """
    patched = {patch.module for patch in patches}
    first = min((i for i, name in enumerate(CHAIN) if name in patched), default=len(CHAIN))
    names = [*sorted(patched - set(CHAIN)), *CHAIN[first:]]
    copies: dict[str, ModuleType] = {}
    with _restored(names):
        for name in names:
            original = importlib.import_module(name)
            copy = ModuleType(name)
            copy.__file__ = original.__file__
            # While the copies are made, imports among them find the copies.
            sys.modules[name] = copies[name] = copy
            text = _source(original, (patch for patch in patches if patch.module == name))
            exec(compile(text, f"<planted {name}>", "exec"), copy.__dict__)
    return copies


def _source(module: ModuleType, patches: Iterable[Patch]) -> str:
    text = _text(module.__name__)
    for patch in patches:
        if text.count(patch.line) != 1:
            raise ValueError(
                f"{patch.line!r} occurs {text.count(patch.line)} times in {patch.module};"
                " a fault needs exactly one place"
            )
        text = text.replace(patch.line, patch.broken)
    return text


@contextmanager
def _restored(names: Iterable[str]) -> Iterator[None]:
    kept = {name: importlib.import_module(name) for name in names}
    try:
        yield
    finally:
        sys.modules.update(kept)
