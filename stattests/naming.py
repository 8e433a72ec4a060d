"""How a command line names a verifier, and what is said of a name that is none."""

from __future__ import annotations

import inspect
import os
from typing import Any

from stattests.printed import shown
from univer import VERIFIERS, InputError


def kind_of(thing: Any) -> str:
    """What a thing that is no verifier is."""
    if inspect.isroutine(thing):
        return "a function"
    if inspect.ismodule(thing):
        return "a module"
    return f"{type(thing).__name__} {shown(repr(thing), 60)}"


def needed(thing: Any) -> list[str]:
    """The arguments without which it cannot be called."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # some of C's functions
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in several]


def not_made(spec: str, attribute: str, thing: Any, needs: list[str]) -> str:
    """Why what needs arguments is no verifier, and what to do."""
    taken = ", ".join(needs)
    if inspect.isclass(thing):
        return (
            f"verifier: {spec!r} is a class that is made with arguments ({taken}); name an instance"
            " of it, or a function without arguments that returns one."
        )
    return (
        f"verifier: {spec!r} is a function of ({taken}); expected an object with `drafting` and"
        " `verify`, or a function without arguments that returns one. A verify function is wrapped"
        f' so: class Mine: drafting = "without_replacement"; verify = staticmethod({attribute}).'
    )


def named(spec: str) -> tuple[str, str]:
    """The module and the attribute that a command line names.

    Raises:
        InputError: it names no such, but perhaps a file.
    """
    module, colon, attribute = spec.partition(":")
    attribute = attribute.lstrip(":")
    if module.endswith(".py") or "/" in module or os.sep in module:
        place, name = os.path.split(os.path.relpath(module.removesuffix(".py")))
        parts = place.split(os.sep) if place else []
        inside = all(part.isidentifier() for part in parts)
        meant = f"{'.'.join([*parts, name]) if inside else name}:{attribute or 'ATTRIBUTE'}"
        where = "" if inside else f" in the folder {os.path.abspath(place)}"
        raise InputError(
            f"verifier: {spec!r} names a file; expected a module's name, so give {meant}{where}."
        )
    if not colon or not module or not attribute:
        hint = " (module.attribute is written module:attribute)" if "." in module else ""
        raise InputError(
            f"verifier: {spec!r} is unknown; expected one of {', '.join(VERIFIERS)} or"
            f" module:attribute{hint}."
        )
    return module, attribute
