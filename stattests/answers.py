"""What a subject hands back, checked before it is used: anything else than an answer is refused.

Letters: B trees, N nodes, V vocabulary, D depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stattests.raised import raised
from stattests.verdict import ContractError, Reason
from univer import StopLaw, Topology
from univer.errors import described
from univer.indices import indices

ROUNDING = 1e-6  # how far below 0 a probability may come out


@dataclass(frozen=True)
class Decisions:
    """Where each cycle stops and what follows: int64 [B] each."""

    stop: Tensor
    next_token: Tensor


def _refuse(seen: str) -> ContractError:
    return ContractError(Reason.REFUSED_RETURN, seen)


Checked = TypeVar("Checked")


def refusing(check: Callable[..., Checked]) -> Callable[..., Checked]:
    """A check of a subject's answer: what the answer's own code raises is a refusal as well."""

    @wraps(check)
    def guarded(*arguments: Any) -> Checked:
        try:
            return check(*arguments)
        except ContractError:
            raise
        except BaseException as error:  # even sys.exit in a property ends nothing but itself
            raise _refuse(f"looking at the answer raised {raised(error, most=200)}") from error

    return guarded


def _integers(out: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    value = getattr(out, name, None)
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        kind = type(out).__name__
        raise _refuse(f"verify returned {kind} whose {name} is no tensor but {described(value)}")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise _refuse(f"verify returned {name} of {value.dtype}; expected integers")
    if tuple(value.shape) != shape:
        raise _refuse(f"verify returned {name} of shape {list(value.shape)}, not {list(shape)}")
    return value.detach().cpu().long()


@refusing
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


@refusing
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


def _floats(name: str, value: Any) -> Tensor:
    """An array or nested list of floats as a tensor, in its own type."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
    else:
        try:
            array = np.asarray(value)
        except ValueError:  # ragged
            array = np.empty(0, dtype=object)
        value = torch.from_numpy(array.copy()) if array.dtype.kind == "f" else array
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise _refuse(f"stop_law returned {name}, {described(value)}; expected an array of floats")
    return value


@refusing
def check_law(
    stop_probs: Any, next_token_probs: Any, shape: tuple[int, ...], topology: Topology
) -> StopLaw:
    """Check the stop laws of B trees, [B, N] and [B, N, V] = `shape`: finite, none negative.

    A verifier that computes in a coarser type than float64 may hand that back.
    """
    stop = _floats("stop_probs", stop_probs)
    rows = _floats("next_token_probs", next_token_probs)
    expected = (("stop_probs", stop, shape[:2]), ("next_token_probs", rows, shape))
    for name, part, size in expected:
        if part.shape != size:
            seen, due = list(part.shape), list(size)
            raise _refuse(f"stop_law returned {name} of shape {seen}; expected {due}")
        if not part.isfinite().all() or (part < -ROUNDING).any():
            raise _refuse(f"stop_law returned {name} with NaN, infinity or a negative number")
    depths = indices(topology, torch.device("cpu")).depths
    return StopLaw(stop, lambda: rows, (stop.double() * depths).sum(-1))
