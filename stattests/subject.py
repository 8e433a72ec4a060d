"""Whatever is to be certified, seen the same way: what it drafts with and how it decides.

A subject is a built-in verifier or anything with `drafting` and `verify` (DESIGN, "A verifier that
others bring"). Every answer is checked before it is used: a wrong type, an id out of range or a
path that is not in the tree raises ContractError, as do changed inputs.

Letters: B trees, N nodes, I internal nodes, V vocabulary, D depth.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stattests.answers import Decisions, check_law, check_output, check_single
from stattests.naming import kind_of, named, needed, not_made
from stattests.raised import package_of, raised
from stattests.verdict import ContractError, Reason
from univer import (
    DRAFTING,
    VERIFIERS,
    DraftTree,
    InputError,
    StopLaw,
    Topology,
    Verifier,
    stop_law,
    verify,
)

INPUTS = ("tree.tokens", "target_probs", "draft_probs", "uniforms")
WATCHED_CALLS = 512  # calls after each of which the inputs are compared with copies
WATCH_EVERY = 8  # after those, every eighth call
REMEMBERED = 16  # watched calls whose inputs are looked at a last time that many calls later,
REMEMBERED_NUMBERS = 2**24  # unless they hold more numbers than that together


def _unwatched(started: bool) -> None:
    del started


@dataclass
class Subject:
    """A verifier under test.

    name: what it is called in reports.
    drafting: a name in DRAFTING, or a callable (draft_probs [n, V], arity, uniforms [n, arity]).
    verify: its own function.
    stop_law: its own, or None.
    batched: whether it takes B trees at once.
    own_randomness: whether it ignores uniforms.
    claims: the verifier whose length it promises, or None.
    max_arity: most children of a node that it takes; 1 for chains, None for any number.
    full_trees: whether it takes only trees of which no slot is empty.
    """

    name: str
    drafting: str | Callable[..., Any]
    verify: Callable[..., Any]
    stop_law: Callable[..., Any] | None = None
    batched: bool = True
    own_randomness: bool = False
    claims: str | None = None
    max_arity: int | None = None
    full_trees: bool = False
    calls: int = 0
    on_call: Callable[[bool], None] = field(default=_unwatched, repr=False)
    _watched: deque[list[tuple[str, Any, Any]]] = field(default_factory=deque, repr=False)

    @property
    def drafting_name(self) -> str | None:
        """The name of its draft law; None for its own drafter."""
        return self.drafting if isinstance(self.drafting, str) else None

    @property
    def measure(self) -> str | None:
        """The claimed verifier, if lengths can be compared tree by tree: both draw by one law."""
        if self.claims is None or VERIFIERS[self.claims].drafting != self.drafting:
            return None
        return self.claims

    def decide(
        self, topology: Topology, tokens: Tensor, target: Tensor, draft: Tensor, uniforms: Tensor
    ) -> Decisions:
        """Its decisions, checked. Inputs are copied first: they stay what they are here."""
        vocab, numbers = target.shape[2], None if self.own_randomness else uniforms
        if self.batched:
            out = self._ask(DraftTree, topology, tokens, target, draft, numbers)
            return check_output(out, topology, tokens, vocab)
        rows = []
        for b, ids in enumerate(tokens.numpy()):
            eta = None if numbers is None else numbers[b].numpy()
            out = self._ask(SingleTree, topology, ids, target[b].numpy(), draft[b].numpy(), eta)
            rows.append(check_single(out, topology, ids, vocab))
        stop, next_token = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        return Decisions(torch.from_numpy(stop.copy()), torch.from_numpy(next_token.copy()))

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the subject's code: time is watched, and whatever it raises is its own fault."""
        self.calls += 1
        self.on_call(True)
        try:
            return function(*arguments, **named)
        except BaseException as error:  # a verifier that calls sys.exit ends nothing but itself
            inner = function.func if isinstance(function, partial) else function
            name = getattr(inner, "__name__", type(inner).__name__)
            said = raised(error, package_of(inner))
            raise ContractError(Reason.RAISED, f"{name} raised {said}") from error
        finally:
            self.on_call(False)

    def _ask(self, make_tree: Callable[..., Any], topology: Topology, *own: Any) -> Any:
        """What it returns for copies of tokens, target, draft and uniforms."""
        tokens, target, draft, uniforms = given = [_copy(part) for part in own]
        out = self.call(self.verify, make_tree(topology, tokens), target, draft, uniforms=uniforms)
        self._look_again(own, given)
        return out

    def law(self, topology: Topology, tokens: Tensor, target: Tensor, draft: Tensor) -> StopLaw:
        """Its own stop law of B trees, checked; in the type that it computes in."""
        assert self.stop_law is not None
        if self.batched:
            tree = DraftTree(topology, tokens.clone())
            out = self.call(self.stop_law, tree, target.clone(), draft.clone())
            fields = [getattr(out, name, None) for name in ("stop_probs", "next_token_probs")]
            if callable(fields[1]):
                fields[1] = self.call(fields[1])
            return check_law(fields[0], fields[1], target.shape, topology)
        rows = []
        for parts in zip(tokens, target, draft, strict=True):
            ids, p, q = (part.numpy().copy() for part in parts)
            out = self.call(self.stop_law, SingleTree(topology, ids), p, q)
            if not isinstance(out, tuple | list) or len(out) != 2:
                seen = f"stop_law returned {type(out).__name__}; expected (stop, next token) laws"
                raise ContractError(Reason.REFUSED_RETURN, seen)
            rows.append(check_law([out[0]], [out[1]], (1, *target.shape[1:]), topology))
        stop, length = (
            torch.cat([getattr(row, part) for row in rows])
            for part in ("stop_probs", "expected_accepted")
        )
        given = torch.cat([row.next_token_probs() for row in rows])
        return StopLaw(stop, lambda: given, length)

    def _look_again(self, own: Sequence[Any], given: Sequence[Any]) -> None:
        """Compare what was given with our own: now, at the next watched call, and much later."""
        if self.calls > WATCHED_CALLS and self.calls % WATCH_EVERY:
            return
        pairs = [pair for pair in zip(INPUTS, own, given, strict=True) if pair[1] is not None]
        _unchanged(pairs)
        if self._watched:
            _unchanged(self._watched[-1])
        self._watched.append(pairs)
        while len(self._watched) > 1 and (
            len(self._watched) > REMEMBERED or _numbers(self._watched) > REMEMBERED_NUMBERS
        ):
            _unchanged(self._watched.popleft())


def _unchanged(pairs: Sequence[tuple[str, Any, Any]]) -> None:
    for name, mine, theirs in pairs:
        same = torch.equal if isinstance(mine, Tensor) else np.array_equal
        if not same(mine, theirs):
            raise ContractError(Reason.CHANGED_INPUTS, f"{name} was changed in place by verify")


def _numbers(calls: Iterable[Sequence[tuple[str, Any, Any]]]) -> int:
    return sum(math.prod(mine.shape) for pairs in calls for _, mine, _ in pairs)


def _copy(part: Any) -> Any:
    if part is None:
        return None
    return part.clone() if isinstance(part, Tensor) else part.copy()


@dataclass(frozen=True)
class SingleTree:
    """One tree as a one-at-a-time verifier sees it: tokens is a NumPy int64 array [N]."""

    topology: Topology
    tokens: Any


def builtin(name: str) -> Subject:
    """One of VERIFIERS, by name."""
    return of_verifier(name, VERIFIERS[name], claims=name)


def of_verifier(name: str, verifier: Verifier, claims: str | None = None) -> Subject:
    """Any cell of the grid."""
    return Subject(
        name,
        verifier.drafting,
        partial(verify, verifier),
        partial(stop_law, verifier),
        claims=claims,
        max_arity=verifier.max_arity,
    )


def of_object(name: str, thing: Any) -> Subject:
    """Anything with `drafting` and `verify`.

    Raises:
        InputError: an attribute is missing or is not as the protocol says.
    """
    drafting, function = getattr(thing, "drafting", None), getattr(thing, "verify", None)
    if not callable(function):
        raise InputError(
            f"{name}: it has no verify(tree, target_probs, draft_probs, *, uniforms); expected an"
            f" object with `drafting` and `verify`, got {kind_of(thing)}."
        )
    if drafting is None:
        raise InputError(
            f"{name}: it has no drafting; give it one of {', '.join(sorted(DRAFTING))} or a"
            " callable (draft_probs, arity, uniforms)."
        )
    if not callable(drafting) and not (isinstance(drafting, str) and drafting in DRAFTING):
        raise InputError(
            f"{name}: its drafting is {drafting!r}; expected one of {', '.join(sorted(DRAFTING))}"
            " or a callable (draft_probs, arity, uniforms)."
        )
    randomness = getattr(thing, "randomness", "uniforms")
    if not isinstance(randomness, str) or randomness not in ("uniforms", "own"):
        raise InputError(f'{name}: its randomness is {randomness!r}; expected "own" or none.')
    claims = getattr(thing, "claims", None)
    if claims is not None and not (isinstance(claims, str) and claims in VERIFIERS):
        raise InputError(f"{name}: it claims {claims!r}; known are {', '.join(VERIFIERS)}.")
    law = getattr(thing, "stop_law", None)
    if law is not None and not callable(law):
        raise InputError(f"{name}: its stop_law is not callable.")
    max_arity = _max_arity(name, thing)
    _check_widths(name, drafting, claims, max_arity)
    return Subject(
        name,
        drafting,
        function,
        law,
        batched=_flag(name, thing, "batched", True),
        own_randomness=randomness == "own",
        claims=claims,
        max_arity=max_arity,
        full_trees=_flag(name, thing, "full_trees", False),
    )


def _max_arity(name: str, thing: Any) -> int | None:
    """Most children of a node, by its `max_arity` and `chains_only`."""
    if _flag(name, thing, "chains_only", False):
        return 1
    most = getattr(thing, "max_arity", None)
    if most is None:
        return None
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise InputError(f"{name}: its max_arity is {most!r}; expected a whole number >= 1.")
    return int(most)


def _check_widths(name: str, drafting: Any, claims: str | None, max_arity: int | None) -> None:
    """A verifier may not take wider trees than its draft law draws, or its claim is made for."""
    limits = {}
    if isinstance(drafting, str):
        limits[f"its drafting {drafting!r}"] = DRAFTING[drafting].max_arity
    if claims is not None:
        limits[f"{claims!r}, which it claims,"] = VERIFIERS[claims].max_arity
    for whose, most in limits.items():
        if most is not None and (max_arity is None or max_arity > most):
            declared = "chains_only = True" if most == 1 else f"max_arity = {most}"
            raise InputError(
                f"{name}: {whose} takes at most {most} children a node; declare {declared}."
            )


def _flag(name: str, thing: Any, attribute: str, default: bool) -> bool:
    value = getattr(thing, attribute, default)
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name}: its {attribute} is {value!r}; expected True or False.")
    return bool(value)


def load(spec: str) -> Subject:
    """The subject that a command line names: a name in VERIFIERS, or module:attribute.

    The working folder is importable. A class, or a function without arguments that is not itself a
    verifier, is called once.

    Raises:
        InputError: it cannot be found or is not a verifier.
    """
    if spec in VERIFIERS:
        return builtin(spec)
    module_name, attribute = named(spec)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        thing: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            thing = getattr(thing, part)
        makes = inspect.isclass(thing) or (callable(thing) and not hasattr(thing, "verify"))
        needs = needed(thing) if makes else []
        if makes and not needs:
            thing = thing()
    except BaseException as error:  # whatever its module or its constructor raises
        raise _cannot_load(spec, error) from error
    if needs:
        raise InputError(not_made(spec, attribute, thing, needs))
    try:
        return of_object(spec, thing)
    except InputError:
        raise
    except BaseException as error:  # whatever a property raises
        raise _cannot_load(spec, error) from error


def _cannot_load(spec: str, error: BaseException) -> InputError:
    package = spec.partition(":")[0].partition(".")[0]
    return InputError(f"verifier: cannot load {spec!r}: {raised(error, package)}.")
