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
    blocks = rows[..., : count * BLOCK].view(*rows.shape[:-1], count, BLOCK)
    return blocks.sum(-1).sum(-1) + rows[..., count * BLOCK :].sum(-1)


def normalise(rows: Tensor) -> Tensor:
    """The rows [..., V] divided by their sums; a row without mass stays 0."""
    mass = total(rows)[..., None]
    return torch.where(mass > 0, rows / mass, 0.0)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient with x/0 = inf for x > 0 and 0/0 = 0 (SPEC 3)."""
    return torch.where(numerator > 0, numerator / denominator, 0.0)


def at(rows: Tensor, tokens: Tensor) -> Tensor:
    """The entries of rows [n, V] at these tokens [n, k]; 0 where a token is absent (-1)."""
    return torch.where(tokens >= 0, rows.gather(1, tokens.clamp(min=0)), 0.0)


def without(rows: Tensor, tokens: Tensor) -> Tensor:
    """A copy of the rows [n, V] with the entries at these tokens [n, k] set to 0; -1 is ignored."""
    # An absent token is pointed at the row's first token, which is zeroed anyway; a row whose
    # first token is absent has none, and keeps what it holds at id 0.
    first = tokens[:, :1]
    ids = torch.where(tokens >= 0, tokens, first).clamp(min=0)
    return rows.scatter(1, ids, torch.where(first >= 0, 0.0, rows.gather(1, ids)))
