"""Sums and entries of vocabulary rows, the same whatever else is in the batch.

Letters: n rows, k tokens a row, V vocabulary; "..." any batch axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1024


def total(rows: Tensor) -> Tensor:
    """The sum over the vocabulary, [..., V] -> [...], in blocks of fixed size.

    A plain sum over one long row is split among threads, over many rows it is not: its last bit
    would depend on the batch.
    """
    count = rows.shape[-1] // BLOCK
    if count == 0:
        return rows.sum(-1)
    blocks = rows[..., : count * BLOCK].view(*rows.shape[:-1], count, BLOCK)
    return blocks.sum(-1).sum(-1) + rows[..., count * BLOCK :].sum(-1)


def normalise(rows: Tensor, where: Tensor | None = None) -> Tensor:
    """The rows [..., V] divided by their sums; 0 without mass, or not `where` [...] says True."""
    mass = total(rows)
    some = mass > 0 if where is None else (mass > 0) & where
    return rows / torch.where(some, mass, torch.inf)[..., None]


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient of numbers >= 0, with x/0 = inf for x > 0 and 0/0 = 0 (SPEC 3)."""
    return (numerator / denominator).nan_to_num_(0.0, torch.inf, -torch.inf)


def at(rows: Tensor, tokens: Tensor) -> Tensor:
    """The entries of rows [n, V] at these tokens [n, k]; 0 where a token is absent (-1)."""
    return torch.where(tokens >= 0, rows.gather(1, tokens.clamp(min=0)), 0.0)


def without(rows: Tensor, tokens: Tensor) -> Tensor:
    """The rows [n, V] with the entries at these tokens [n, k] set to 0; -1 is ignored."""
    if tokens.shape[1] == 0:
        return rows
    # An absent token is pointed at one that is zeroed anyway; a row without any keeps what it
    # holds at id 0.
    some = tokens.amax(1, keepdim=True)
    ids = torch.where(tokens >= 0, tokens, some).clamp_(min=0)
    kept = torch.where(some >= 0, 0.0, rows[:, :1])
    return rows.scatter(1, ids, kept.expand(ids.shape))
