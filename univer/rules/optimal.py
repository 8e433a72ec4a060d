"""The best rule of one layer for a given draft law, by linear programme: for toys.

It keeps the most draft mass that any locally lossless rule can (Theorem 5 for `top_residual`, where
`ot` does the same in closed form; for independent drafts the optimum of SpecTr and of Khisti et
al.). The programme has a variable for every outcome of the draft law and each of its tokens, so
that it ends where V^m does. Which of several best rules is found is up to the solver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from univer.errors import InputError
from univer.rules import Allocated, share_out

MOST_OUTCOMES = 4096  # sequences of children: about a second a layer

Outcomes = Callable[[NDArray[np.float64], int], list[tuple[list[int], float]]]
Plan = tuple[dict[tuple[int, ...], NDArray[np.float64]], NDArray[np.float64]]


@lru_cache(maxsize=4096)
def _plan(outcomes: Outcomes, scaled: bytes, draft: bytes, arity: int) -> Plan:
    """Each outcome's children with their acceptances [m], and the surplus [V]."""
    wanted, law = np.frombuffer(scaled), np.frombuffer(draft)
    if len(law) ** arity > MOST_OUTCOMES:
        raise InputError(
            f"allocation: 'optimal' is for toys; {arity} children of {len(law)} tokens make"
            f" {len(law) ** arity} sequences, expected at most {MOST_OUTCOMES}."
        )
    listed = outcomes(law, arity)
    chances = np.array([chance for _, chance in listed])
    pairs = [(row, t) for row, (drawn, _) in enumerate(listed) for t in sorted({*drawn} - {-1})]
    row, token = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    flow = np.zeros(len(pairs))
    if len(pairs):
        column, ones = np.arange(len(pairs)), np.ones(2 * len(pairs))
        at_most = coo_array(
            (ones, (np.concatenate([row, len(listed) + token]), np.tile(column, 2))),
            shape=(len(listed) + len(law), len(pairs)),
        )
        bounds = np.concatenate([chances, wanted])
        found = linprog(-ones[: len(pairs)], A_ub=at_most, b_ub=bounds, method="highs")
        flow = np.clip(found.x, 0, None)
    # The solver keeps its bounds to 1e-7: cut to them, the rule is lossless whatever it found.
    for side, bound in ((row, chances), (token, wanted)):
        used = np.bincount(side, flow, len(bound))
        flow = (
            flow
            * np.minimum(1, np.divide(bound, used, where=used > 0, out=np.ones_like(used)))[side]
        )
    accepted = {tuple(drawn): np.zeros(arity) for drawn, _ in listed}
    for r, t, mass in zip(row, token, flow, strict=True):
        drawn, chance = listed[r]
        accepted[tuple(drawn)][drawn.index(t)] = min(1.0, mass / chance)
    return accepted, np.clip(wanted - np.bincount(token, flow, len(law)), 0, None)


def optimal(
    scale: Tensor, target: Tensor, draft: Tensor, children: Tensor, *, outcomes: Outcomes
) -> Allocated:
    """Children drawn by the draft law that has these outcomes.

    Raises:
        InputError: the draft law has too many outcomes, or never draws these children (as at
            temperature 0, where logits rank tokens that have no draft mass).
    """
    scaled = (scale[:, None] * target).cpu().numpy()
    laws, drawn = draft.cpu().numpy(), children.tolist()
    accepted, surplus = np.zeros(children.shape), np.zeros_like(scaled)
    for n, tokens in enumerate(drawn):
        if tokens[0] >= 0:  # else the node is absent, or has no child at all
            law = laws[n] / laws[n].sum()
            plan, surplus[n] = _plan(outcomes, scaled[n].tobytes(), law.tobytes(), len(tokens))
            if tuple(tokens) not in plan:
                raise InputError(
                    f"tree.tokens: children {tokens} are never drawn from their draft law; the"
                    " allocation 'optimal' needs children that are."
                )
            accepted[n] = plan[tuple(tokens)]
        else:
            surplus[n] = scaled[n]
    found = torch.from_numpy(accepted).to(target)
    reached = (1 - found.sum(1)).clamp(min=0)
    return share_out(found, reached, torch.from_numpy(surplus).to(target), scale)
