"""A reduced draft vocabulary: the token ids that a draft head may propose.

Most of a small head's time goes into the rows of the target's LM head. With a draft vocabulary of K
ids only those K rows are multiplied; every other token has the logit -inf and so the draft
probability 0. The text stays lossless: verifiers are so for every draft law, zeros included, and
the target's mass outside the draft vocabulary is all in the residual.

| where the ids lie | form |
|---|---|
| a head's weights, as EAGLE-3's heads have it | `d2t` int64 [K]: entry i plus i is an id |
| a file beside any head, as FR-Spec's lists are | ids in JSON, or in a .pt file of torch |

Letters: K draft vocabulary, V vocabulary.
Source: Zhao et al. 2025 (FR-Spec); Li et al. 2025 (EAGLE-3).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from univer.errors import InputError, check_token_ids

D2T, T2D, SIZE = "d2t", "t2d", "draft_vocab_size"


def check_draft_vocabulary(ids: object, vocabulary: int) -> tuple[int, ...]:
    """The ids as a tuple.

    Args:
        ids: distinct token ids, a sequence or an integer tensor [K], K >= 1, in any order.
        vocabulary: the target's, V; every id is below it.

    Raises:
        InputError: no token ids, none at all, one out of range or one given twice.

    Example:
        >>> check_draft_vocabulary(torch.tensor([3, 1]), 8)
        (3, 1)
    """
    given: Any = ids.tolist() if isinstance(ids, Tensor) else ids
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(f"draft_vocabulary: expected token ids, got {type(ids).__name__}.")
    if not given:
        raise InputError("draft_vocabulary: it is empty; at least one token id is needed.")
    check_token_ids("draft_vocabulary", given, vocabulary)
    if len(set(given)) < len(given):
        twin = Counter(given).most_common(1)[0][0]
        raise InputError(f"draft_vocabulary: token id {twin} is given twice.")
    return tuple(given)


def most_frequent(texts: Iterable[Sequence[int]], size: int) -> tuple[int, ...]:
    """The most frequent token ids of some texts, the most frequent first, ties to the lower id.

    Args:
        texts: token ids.
        size: how many, K >= 1; fewer if the texts have fewer.

    Example:
        >>> most_frequent([[5, 1, 5], [1, 5, 2, 0]], 3)
        (5, 1, 0)
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"size: expected an integer >= 1, got {size!r}.")
    counts = Counter(token for text in texts for token in text)
    return tuple(sorted(counts, key=lambda token: (-counts[token], token))[:size])


def read_token_ids(path: Path) -> Any:
    """What a file of token ids holds, unchecked: JSON, or for .pt what torch saved.

    Raises:
        InputError: no such file, or not of that kind.
    """
    try:
        if path.suffix == ".pt":
            return torch.load(path, map_location="cpu", weights_only=True)
        return json.loads(path.read_text(encoding="utf-8"))
    except Exception as error:  # torch raises anything for a broken file
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"draft_vocabulary: cannot read {path}: {why}.") from error


def pop_ids(weights: dict[str, Tensor], size: object, vocabulary: int) -> tuple[int, ...] | None:
    """Take a head's mapping out of its weights; its ids, or None for the whole vocabulary.

    Args:
        weights: of a head; D2T and T2D are removed.
        size: the config's `draft_vocab_size`, None if it has none.
        vocabulary: the head's config's.

    Raises:
        InputError: a mapping that does not fit the config or itself.
    """
    offsets, marks = weights.pop(D2T, None), weights.pop(T2D, None)
    if offsets is None:
        if size not in (None, vocabulary):
            raise InputError(
                f"head: its config says {SIZE} = {size!r}, but its weights lack {D2T}."
            )
        return None
    if offsets.ndim != 1 or offsets.is_floating_point() or size not in (None, len(offsets)):
        raise InputError(
            f"head: {D2T} is {offsets.dtype} {list(offsets.shape)}; expected whole numbers"
            f" [{SIZE}], which is {size!r}."
        )
    ids = check_draft_vocabulary(offsets + torch.arange(len(offsets)), vocabulary)
    if marks is not None and marks.nonzero().flatten().tolist() != sorted(ids):
        raise InputError(f"head: {T2D} does not mark the ids that {D2T} names.")
    return ids


def offsets(ids: Sequence[int]) -> Tensor:
    """`d2t` of these ids, int64 [K]."""
    return torch.tensor(ids) - torch.arange(len(ids))
