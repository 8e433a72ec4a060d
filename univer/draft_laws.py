"""The table of draft laws (SPEC 3): how the children of a node are drawn, and all ways they can be.

| name | children of a node |
|---|---|
| `top_residual` (Hu et al. 2025) | the m - 1 most probable tokens, one drawn from the rest |
| `without_replacement` (EAGLE) | drawn one by one, each without the earlier ones |
| `with_replacement` (SpecInfer, SpecTr) | drawn independently; a token may come twice |
| `top` (EAGLE-2) | the m most probable tokens; nothing is drawn |
| `spechub_pairs` (SpecHub) | one drawn, then the most probable; if that is it, one of the rest |

The most probable come in falling order, ties by the lower id. A drafter may stop early: at nodes
and slots that do not depend on the tokens it leaves out, the rest of a node's children is absent
(all of them, where a law draws them together). A law is `draw`, for rows of
vocabulary at once, and `outcomes`, which lists what can be drawn from one law; an absent child is
-1, and only absent ones follow it.

Letters: n nodes, V vocabulary, m arity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from univer.rows import without
from univer.sampling import inverse_cdf

Law = NDArray[np.float64]  # [V]
Listed = list[tuple[list[int], float]]  # children [m] with their probability


def _ranking(scores: Tensor) -> Tensor:
    """Scores [n, V] above -inf, which marks what is taken."""
    return scores.clamp(min=torch.finfo(scores.dtype).min)


def _best(ranking: Tensor) -> Tensor:
    """The id [n] of the best that is not taken, ties to the lower id; -1 if all are."""
    value, token = ranking.max(-1)
    return torch.where(value == -torch.inf, -1, token)


def _take(ranking: Tensor, token: Tensor) -> Tensor:
    """Take these tokens [n] out of the ranking; where one is -1, everything was taken before."""
    return ranking.scatter_(1, token.clamp(min=0)[:, None], -torch.inf)


def _draw(rest: Tensor, uniforms: Tensor, ranking: Tensor | None) -> Tensor:
    """Draw from what is left of the laws; where nothing is, the best score if there are scores."""
    drawn = inverse_cdf(rest, uniforms)
    return drawn if ranking is None else torch.where(drawn < 0, _best(ranking), drawn)


def _top(probs: Tensor, uniforms: Tensor, scores: Tensor | None, drawn: int = 0) -> Tensor:
    """The best tokens; the last `drawn` of the children are drawn from the rest."""
    ranking, children = _ranking(probs if scores is None else scores), []
    for _ in range(uniforms.shape[1] - drawn):
        children.append(_best(ranking))
        ranking = _take(ranking, children[-1])
    if drawn:
        rest = without(probs, torch.stack(children, 1)) if children else probs
        children.append(_draw(rest, uniforms[:, -1], None if scores is None else ranking))
    return torch.stack(children, 1)


def _without_replacement(probs: Tensor, uniforms: Tensor, scores: Tensor | None) -> Tensor:
    ranking, rest, children = None if scores is None else _ranking(scores), probs, []
    for slot in range(uniforms.shape[1]):
        children.append(_draw(rest, uniforms[:, slot], ranking))
        rest = without(rest, children[-1][:, None])
        ranking = None if ranking is None else _take(ranking, children[-1])
    return torch.stack(children, 1)


def _with_replacement(probs: Tensor, uniforms: Tensor, scores: Tensor | None) -> Tensor:
    del scores  # there is always mass
    return torch.stack([inverse_cdf(probs, eta) for eta in uniforms.T], 1)


def _spechub_pairs(probs: Tensor, uniforms: Tensor, scores: Tensor | None) -> Tensor:
    hub = _best(_ranking(probs if scores is None else scores))
    first = inverse_cdf(probs, uniforms[:, 0])
    if uniforms.shape[1] == 1:
        return first[:, None]
    ranking = None if scores is None else _take(_ranking(scores), hub)
    other = _draw(without(probs, hub[:, None]), uniforms[:, 1], ranking)
    return torch.stack([first, torch.where(first == hub, other, hub)], 1)


def _ranked(law: Law, count: int) -> list[int]:
    return sorted(range(len(law)), key=lambda token: (-law[token], token))[:count]


def _one_by_one(law: Law, arity: int, fixed: int) -> Listed:
    """The first `fixed` are the best, the others are drawn without the earlier ones."""

    def extend(children: list[int], chance: float) -> Iterator[tuple[list[int], float]]:
        rest = law.copy()
        rest[children] = 0
        if len(children) == arity or rest.sum() <= 0:
            yield children + [-1] * (arity - len(children)), chance
            return
        rest /= rest.sum()
        for token in np.flatnonzero(rest):
            yield from extend([*children, int(token)], chance * float(rest[token]))

    return list(extend(_ranked(law, fixed), 1.0))


def _independent(law: Law, arity: int) -> Listed:
    law = law / law.sum()
    drawn = product(np.flatnonzero(law).tolist(), repeat=arity)
    return [(list(children), prod(float(law[x]) for x in children)) for children in drawn]


def _pairs(law: Law, arity: int) -> Listed:
    if arity == 1:
        return _independent(law, 1)
    (hub,), listed = _ranked(law, 1), _one_by_one(law, 2, 0)
    turned = [(children, chance) for children, chance in listed if children[0] == hub]
    return turned + [([x, hub], chance) for (x,), chance in _independent(law, 1) if x != hub]


@dataclass(frozen=True)
class Drafting:
    """A draft law.

    name: in DRAFTING.
    draw: (probs [n, V], uniforms [n, m], scores [n, V] | None) -> tokens [n, m].
    outcomes: (law [V], m) -> all [(children [m], probability)].
    twins: whether a node may have the same token twice among its children.
    whole: whether children are drawn together: without the last ones, those left have another law.
    max_arity: most children of a node; None for any number.
    """

    name: str
    draw: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    outcomes: Callable[[Law, int], Listed]
    twins: bool = False
    whole: bool = False
    max_arity: int | None = None


DRAFTING = {
    row.name: row
    for row in (
        Drafting(
            "top_residual",
            partial(_top, drawn=1),
            lambda law, arity: _one_by_one(law, arity, arity - 1),
        ),
        Drafting("without_replacement", _without_replacement, partial(_one_by_one, fixed=0)),
        Drafting("with_replacement", _with_replacement, _independent, twins=True),
        Drafting("top", _top, lambda law, arity: _one_by_one(law, arity, arity)),
        Drafting("spechub_pairs", _spechub_pairs, _pairs, whole=True, max_arity=2),
    )
}
