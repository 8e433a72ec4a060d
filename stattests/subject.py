"""Whatever is to be certified, seen the same way: what it drafts with and how it decides.

A subject is a built-in verifier or anything with `drafting` and `verify` (DESIGN, "A verifier that
others bring"). Every answer is checked before it is used: a wrong type, an id out of range or a
path that is not in the tree raises ContractError, as do changed inputs.

Letters: B trees, N nodes, I internal nodes, V vocabulary, D depth.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stattests.verdict import ContractError, Reason
from univer import DRAFTING, VERIFIERS, DraftTree, InputError, Topology, Verifier, stop_law, verify
from univer.indices import indices

INPUTS = ("tree.tokens", "target_probs", "draft_probs", "uniforms")
WATCHED_CALLS = 512  # calls after each of which the inputs are compared with copies
WATCH_EVERY = 8  # after those, every eighth call


@dataclass(frozen=True)
class Decisions:
    """Where each cycle stops and what follows: int64 [B] each."""

    stop: Tensor
    next_token: Tensor


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
    chains_only: whether it takes trees with one child a node only.
    """

    name: str
    drafting: str | Callable[..., Any]
    verify: Callable[..., Any]
    stop_law: Callable[..., Any] | None = None
    batched: bool = True
    own_randomness: bool = False
    claims: str | None = None
    chains_only: bool = False
    calls: int = 0
    on_call: Callable[[bool], None] = field(default=_unwatched, repr=False)
    _watched: list[tuple[str, Any, Any]] = field(default_factory=list, repr=False)

    @property
    def drafting_name(self) -> str | None:
        """The name of its draft law; None for its own drafter."""
        return self.drafting if isinstance(self.drafting, str) else None

    def decide(
        self, topology: Topology, tokens: Tensor, target: Tensor, draft: Tensor, uniforms: Tensor
    ) -> Decisions:
        """Its decisions, checked. Inputs are copied first: they stay what they are here."""
        given = None if self.own_randomness else uniforms
        if self.batched:
            return self._decide_batch(topology, tokens, target, draft, given)
        rows = [
            self._decide_one(
                topology,
                tokens[b].numpy(),
                target[b].numpy(),
                draft[b].numpy(),
                None if given is None else given[b].numpy(),
            )
            for b in range(len(tokens))
        ]
        stop, next_token = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        return Decisions(torch.from_numpy(stop.copy()), torch.from_numpy(next_token.copy()))

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the subject's code: time is watched, and whatever it raises is its own fault."""
        self.calls += 1
        self.on_call(True)
        try:
            return function(*arguments, **named)
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            name = getattr(function, "__name__", type(function).__name__)
            raise ContractError(
                Reason.RAISED, f"{name} raised {type(error).__name__}: {text}"
            ) from error
        finally:
            self.on_call(False)

    def _decide_batch(
        self,
        topology: Topology,
        tokens: Tensor,
        target: Tensor,
        draft: Tensor,
        uniforms: Tensor | None,
    ) -> Decisions:
        own = (tokens, target, draft, uniforms)
        given: list[Any] = [None if part is None else part.clone() for part in own]
        tree = DraftTree(topology, given[0])
        out = self.call(self.verify, tree, given[1], given[2], uniforms=given[3])
        self._look_again(own, given)
        return check_output(out, topology, tokens, target.shape[2])

    def _decide_one(
        self, topology: Topology, tokens: Any, target: Any, draft: Any, uniforms: Any
    ) -> tuple[int, int]:
        own = (tokens, target, draft, uniforms)
        given = [None if part is None else part.copy() for part in own]
        tree = SingleTree(topology, given[0])
        out = self.call(self.verify, tree, given[1], given[2], uniforms=given[3])
        self._look_again(own, given)
        return check_single(out, topology, tokens, target.shape[1])

    def _look_again(self, own: Sequence[Any], given: Sequence[Any]) -> None:
        """Compare what was given, now and to the call watched before this one, with our own."""
        if self.calls > WATCHED_CALLS and self.calls % WATCH_EVERY:
            return
        pairs = [pair for pair in zip(INPUTS, own, given, strict=True) if pair[1] is not None]
        for name, mine, theirs in (*self._watched, *pairs):
            same = torch.equal if isinstance(mine, Tensor) else np.array_equal
            if not same(mine, theirs):
                raise ContractError(Reason.CHANGED_INPUTS, f"{name} was changed in place by verify")
        self._watched = pairs


@dataclass(frozen=True)
class SingleTree:
    """One tree as a one-at-a-time verifier sees it: tokens is a NumPy int64 array [N]."""

    topology: Topology
    tokens: Any


def _refuse(seen: str) -> ContractError:
    return ContractError(Reason.REFUSED_RETURN, seen)


def _integers(out: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    value = getattr(out, name, None)
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        raise _refuse(f"verify returned {type(out).__name__} whose {name} is no tensor")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise _refuse(f"verify returned {name} of {value.dtype}; expected integers")
    if tuple(value.shape) != shape:
        raise _refuse(f"verify returned {name} of shape {list(value.shape)}, not {list(shape)}")
    return value.detach().cpu().long()


def check_output(out: Any, topology: Topology, tokens: Tensor, vocab: int) -> Decisions:
    """Check a batched answer against the trees it is about: shapes, one real path, ids in range."""
    batch, table = len(tokens), indices(topology, torch.device("cpu"))
    nodes = _integers(out, "accepted_nodes", (batch, topology.depth))
    next_token = _integers(out, "next_token", (batch,))
    if ((nodes < -1) | (nodes >= topology.num_nodes)).any():
        raise _refuse(f"accepted_nodes holds {nodes.max().item()}; nodes are 0..N - 1 or -1")
    stop = nodes.amax(1).clamp(min=0) if topology.depth else torch.zeros(batch, dtype=torch.int64)
    wrong = table.paths.index_select(0, stop) != nodes
    if wrong.any():
        row = nodes[wrong.any(1)][0].tolist()
        raise _refuse(f"accepted_nodes {row} is not a path from the root's child down, -1 padded")
    absent = (tokens.gather(1, nodes.clamp(min=0)) < 0) & (nodes >= 0)
    if absent.any():
        raise _refuse(f"accepted_nodes {nodes[absent.any(1)][0].tolist()} holds an absent node")
    if ((next_token < 0) | (next_token >= vocab)).any():
        bad = next_token[(next_token < 0) | (next_token >= vocab)][0].item()
        raise _refuse(f"next_token is {bad}; expected an id in [0, {vocab})")
    num_accepted = _integers(out, "num_accepted", (batch,))
    if (num_accepted != table.depths.index_select(0, stop)).any():
        raise _refuse("num_accepted is not the number of accepted nodes")
    emitted = torch.where(nodes >= 0, tokens.gather(1, nodes.clamp(min=0)), -1)
    emitted = torch.cat([emitted, torch.full((batch, 1), -1)], 1)
    emitted = emitted.scatter(1, num_accepted[:, None], next_token[:, None])
    if (_integers(out, "tokens", (batch, topology.depth + 1)) != emitted).any():
        raise _refuse("tokens is not the accepted tokens followed by next_token")
    return Decisions(stop, next_token)


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) is torch.bool:
        raise _refuse(f"{what} is a boolean")
    if isinstance(value, int | np.integer):
        return int(value)
    dtype = getattr(value, "dtype", None)
    if getattr(value, "ndim", None) == 0 and dtype is not None:
        whole = not dtype.is_floating_point if isinstance(value, Tensor) else dtype.kind in "iu"
        if whole:
            return int(value)
    raise _refuse(f"{what} is {type(value).__name__} {str(value)[:40]!r}; expected an integer")


def check_single(out: Any, topology: Topology, tokens: Any, vocab: int) -> tuple[int, int]:
    """Check a one-at-a-time answer (accepted_nodes, next_token); return (stop node, token)."""
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise _refuse(f"verify returned {type(out).__name__}; expected (accepted_nodes, token)")
    accepted = out[0]
    if not isinstance(accepted, list | tuple) and getattr(accepted, "ndim", None) != 1:
        raise _refuse(f"accepted_nodes is {type(accepted).__name__}; expected a list of node ids")
    path = tuple(_integer(node, "an accepted node") for node in accepted)
    token = _integer(out[1], "next_token")
    if any(not 0 < node < topology.num_nodes for node in path):
        raise _refuse(f"accepted_nodes {list(path)}: drafted nodes are 1..{topology.num_nodes - 1}")
    if path != topology.path(path[-1] if path else 0):
        raise _refuse(f"accepted_nodes {list(path)} is not a path from the root's child down")
    if any(tokens[node] < 0 for node in path):
        raise _refuse(f"accepted_nodes {list(path)} holds an absent node")
    if not 0 <= token < vocab:
        raise _refuse(f"next_token is {token}; expected an id in [0, {vocab})")
    return (path[-1] if path else 0), token


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
    )


def of_object(name: str, thing: Any) -> Subject:
    """Anything with `drafting` and `verify`.

    Raises:
        InputError: an attribute is missing or is not as the protocol says.
    """
    drafting, function = getattr(thing, "drafting", None), getattr(thing, "verify", None)
    if not callable(function):
        raise InputError(f"{name}: it has no verify(tree, target_probs, draft_probs, *, uniforms).")
    if not callable(drafting) and drafting not in DRAFTING:
        raise InputError(
            f"{name}: its drafting is {drafting!r}; expected one of {', '.join(sorted(DRAFTING))}"
            " or a callable (draft_probs, arity, uniforms)."
        )
    randomness = getattr(thing, "randomness", "uniforms")
    if randomness not in ("uniforms", "own"):
        raise InputError(f'{name}: its randomness is {randomness!r}; expected "own" or none.')
    claims = getattr(thing, "claims", None)
    if claims is not None and claims not in VERIFIERS:
        raise InputError(f"{name}: it claims {claims!r}; known are {', '.join(VERIFIERS)}.")
    law = getattr(thing, "stop_law", None)
    if law is not None and not callable(law):
        raise InputError(f"{name}: its stop_law is not callable.")
    return Subject(
        name,
        drafting,
        function,
        law,
        batched=bool(getattr(thing, "batched", True)),
        own_randomness=randomness == "own",
        claims=claims,
        chains_only=bool(getattr(thing, "chains_only", False)),
    )


def load(spec: str) -> Subject:
    """The subject that a command line names: a name in VERIFIERS, or module:attribute.

    The working folder is importable. A class, or a function without arguments that is not itself a
    verifier, is called once.

    Raises:
        InputError: it cannot be found or is not a verifier.
    """
    if spec in VERIFIERS:
        return builtin(spec)
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(
            f"verifier: {spec!r} is unknown; expected one of {', '.join(VERIFIERS)} or"
            " module:attribute."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        thing: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            thing = getattr(thing, part)
        if inspect.isclass(thing) or (callable(thing) and not hasattr(thing, "verify")):
            thing = thing()
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InputError(
            f"verifier: cannot load {spec!r}: {type(error).__name__}: {text}."
        ) from error
    return of_object(spec, thing)
