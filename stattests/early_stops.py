"""Drafters that stop early, as engines do: where and when does not depend on what they leave out.

A node keeps the first few of the children that its draft law draws, or none. So what it keeps has
the law of so many children, except where a law draws them together (`Drafting.whole`): there it
keeps all or none, as behind a drafter of the subject's own, whose law of fewer children is unknown.

Letters: B trees, N nodes, m arity, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from univer import DRAFTING, Topology
from univer.indices import columns, indices, set_columns

CHANCE = 0.5  # that a node stops, in problems that are marked as early

Outcomes = Callable[[NDArray[np.float64], int], list[tuple[list[int], float]]]


def keeps_all_or_none(drafting: Any) -> bool:
    """Whether some of a node's children have no known law; of a name in DRAFTING, or a drafter."""
    return not isinstance(drafting, str) or DRAFTING[drafting].whole


def cut(children: Tensor, drafting: Any, chance: float, generator: torch.Generator) -> Tensor:
    """Children [..., m] of which a node that stops, with this chance, keeps fewer than all.

    Example:
        >>> children = torch.tensor([[4, 2], [3, 1], [5, 0]])
        >>> cut(children, "without_replacement", 1.0, torch.Generator().manual_seed(0))[:, 1]
        tensor([-1, -1, -1])
    """
    places, arity = children.shape[:-1], children.shape[-1]
    stops = torch.rand(places, generator=generator) < chance
    kept = torch.randint(1 if keeps_all_or_none(drafting) else arity, places, generator=generator)
    kept = torch.where(stops, kept, arity)
    return torch.where(torch.arange(arity) < kept[..., None], children, -1)


def cut_trees(
    topology: Topology, tokens: Tensor, drafting: Any, chance: float, generator: torch.Generator
) -> Tensor:
    """Tokens [B, N] of which the drafter left some out, and with them all that is below."""
    tokens = tokens.clone()
    present = tokens >= 0
    present[:, 0] = True
    for layer in indices(topology, tokens.device).layers:
        kept = cut(columns(tokens, layer.slots), drafting, chance, generator)
        kept = torch.where(columns(present, layer.nodes)[..., None], kept, -1)
        set_columns(tokens, layer.slots, kept)
        set_columns(present, layer.slots, kept >= 0)
    return tokens


def cut_outcomes(outcomes: Outcomes, drafting: Any, chance: float) -> Outcomes:
    """The outcomes of a node's children where it stops with this chance.

    Example:
        >>> listed = cut_outcomes(DRAFTING["top"].outcomes, "top", 0.5)
        >>> listed(np.array([0.2, 0.5, 0.3]), 2)
        [([1, 2], 0.5), ([-1, -1], 0.25), ([1, -1], 0.25)]
    """

    def listed(law: NDArray[np.float64], arity: int) -> list[tuple[list[int], float]]:
        numbers = range(1 if keeps_all_or_none(drafting) else arity)
        chances: dict[tuple[int, ...], float] = defaultdict(float)
        for children, share in outcomes(law, arity):
            chances[tuple(children)] += (1 - chance) * share
            for kept in numbers:
                fewer = (*children[:kept], *[-1] * (arity - kept))
                chances[fewer] += chance * share / len(numbers)
        return [(list(children), share) for children, share in chances.items()]

    return listed
