"""Input checks: one sentence that names the argument, what was given and what is expected.

Public functions call these once, at the door; the code behind them assumes valid input.

Letters: B trees, N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


class InputError(ValueError):
    """Bad input: the message names the argument, what was given and what is expected."""


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ROW_SUM_TOLERANCE = 1e-4  # ten times what a float32 softmax over 128 256 tokens is off by


def check_choice(argument: str, given: object, known: Iterable[str]) -> None:
    """Refuse a name that is not in a table."""
    names = sorted(known)
    if given not in names:
        raise InputError(f"{argument}: {given!r} is unknown; choose one of {', '.join(names)}.")


def check_token_ids(argument: str, ids: Sequence[object], vocabulary: int) -> None:
    """Check that all entries are token ids, in [0, vocabulary)."""
    for at, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise InputError(
                f"{argument}: entry {at} is {token!r}; expected a token id in [0, {vocabulary})."
            )


def check_exactly_one(first: str, given: object, second: str, other: object) -> None:
    """Check that exactly one of two arguments is given (not None)."""
    if (given is None) == (other is None):
        which = "neither" if given is None else "both"
        raise InputError(f"{first}, {second}: pass exactly one of the two, got {which}.")


def described(value: object) -> str:
    """What a value is, in words: a tensor by its type and shape, arrays of other kinds as well.

    Example:
        >>> [described(value) for value in (torch.zeros(2, 3), [0], None)]
        ['torch.float32 of shape [2, 3]', 'list', 'NoneType']
        >>> described(torch.zeros(2).numpy())
        'a NumPy array of shape [2] and dtype float32'
    """
    kind, shape = type(value), getattr(value, "shape", None)
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {_shape(value)}"
    if not isinstance(shape, tuple) or not hasattr(value, "dtype"):
        return kind.__name__
    what = f"{list(shape)} and dtype {value.dtype}"
    if (kind.__module__, kind.__name__) == ("numpy", "ndarray"):
        return f"a NumPy array of shape {what}"
    return f"{kind.__module__}.{kind.__name__} of shape {what}"


def check_floating(argument: str, value: object) -> None:
    """Check that a value is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise InputError(f"{argument}: expected a torch tensor, got {described(value)}.")
    if not value.is_floating_point():
        raise InputError(f"{argument}: expected a floating-point tensor, got {described(value)}.")
    if value.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise InputError(f"{argument}: expected one of {known}, got {described(value)}.")


def _shape(tensor: Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


def check_rows_shape(
    argument: str, rows: object, batch: int, nodes: int, vocab: int | None, device: torch.device
) -> int:
    """Check that `rows` is a floating-point tensor [batch, nodes, V]; return V."""
    check_floating(argument, rows)
    assert isinstance(rows, Tensor)
    if rows.ndim != 3 or rows.shape[:2] != (batch, nodes) or rows.shape[2] == 0:
        raise InputError(
            f"{argument}: expected shape [B, nodes, V] = [{batch}, {nodes}, V >= 1],"
            f" got {_shape(rows)}."
        )
    if vocab is not None and rows.shape[2] != vocab:
        raise InputError(
            f"{argument}: its vocabulary has {rows.shape[2]} tokens but target's has {vocab};"
            " both laws must be over the same token ids."
        )
    if rows.device != device:
        raise InputError(f"{argument}: on {rows.device}, but the tree's tokens are on {device}.")
    return int(rows.shape[2])


def first(bad: Tensor) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(int(i) for i in bad.nonzero()[0])


Place = Callable[[tuple[int, ...]], str]  # how the sentence names the row at an index


def node_in_tree(nodes: Sequence[int]) -> Place:
    """Name rows [B, n] by node and tree."""
    return lambda index: f"the row of node {nodes[index[1]]} in tree {index[0]}"


def check_prob_rows(argument: str, rows: Tensor, present: Tensor, place: Place) -> None:
    """Check that the rows [..., V] that are present [...] are probability laws."""
    # Half-precision softmax rows: each entry is off by half an ulp of itself, so the sum of exact
    # probabilities by eps / 2; engines that also compute in that type lose up to twice as much
    # again (at 128 256 tokens, logits of spread 4: 2.3e-3 in bfloat16, 3.6e-4 in float16).
    tolerance = max(ROW_SUM_TOLERANCE, 2 * torch.finfo(rows.dtype).eps)
    total = _sums(rows)
    # NaN and infinity fail the comparison of the sum, a negative number that of the minimum.
    right = (total - 1).abs() <= tolerance
    if rows.numel() == 0 or (right.all() & (rows.amin() >= 0)):
        return
    bad = present & ~(right & (rows.amin(-1) >= 0))
    if not bad.any():
        return
    index = first(bad)
    row, where = rows[index], f"{argument}: {place(index)}"
    if not row.isfinite().all():
        raise InputError(f"{where} holds NaN or infinity; probabilities must be finite.")
    if (row < 0).any():
        raise InputError(
            f"{where} holds {row.min().item():.6g}; probabilities must not be negative"
            " (were logits passed? verify_logits takes those)."
        )
    raise InputError(f"{where} sums to {total[index].item():.6g}; a law must sum to 1.")


def _sums(rows: Tensor) -> Tensor:
    """Sums of rows [..., V], in float32 or better, without a copy of them all."""
    if rows.dtype in (torch.float32, torch.float64):
        return rows.sum(-1)
    few = rows.reshape(-1, rows.shape[-1]).split(8)
    return torch.cat([part.float().sum(-1) for part in few]).view(rows.shape[:-1])


def check_logit_rows(argument: str, rows: Tensor, present: Tensor, place: Place) -> None:
    """Check that the present rows [..., V] hold logits: no NaN, no +inf, not all -inf."""
    bad = present & ~rows.amax(-1).isfinite()
    if bad.any():
        raise InputError(
            f"{argument}: {place(first(bad))} holds NaN, +inf or nothing but -inf;"
            " logits must be below +inf and at least one must be finite."
        )


def check_uniforms(argument: str, uniforms: object, shape: tuple[int, ...], device: object) -> None:
    """Check random numbers: a float64 tensor of this shape with values in [0, 1)."""
    if not isinstance(uniforms, Tensor) or uniforms.dtype != torch.float64:
        raise InputError(f"{argument}: expected a float64 tensor, got {described(uniforms)}.")
    if uniforms.shape != shape:
        raise InputError(f"{argument}: expected shape {list(shape)}, got {_shape(uniforms)}.")
    if uniforms.device != device:
        raise InputError(f"{argument}: on {uniforms.device}, but the laws are on {device}.")
    if uniforms.numel() == 0 or ((uniforms.amin() >= 0) & (uniforms.amax() < 1)):
        return
    bad = ~((uniforms >= 0) & (uniforms < 1))
    raise InputError(
        f"{argument}: entry {list(first(bad))} is {uniforms[bad][0].item()!r};"
        " expected numbers in [0, 1)."
    )
