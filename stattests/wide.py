"""Sampled cycles over vocabularies of real size: floors, running sums, tails, ids that wrap.

There every token is rare, so tokens are judged by where they lie in an order of the vocabulary: the
randomised PIT value of each emitted token, in equal cells, in three orders at once. In the order of
q / p, over- and under-accepted tokens lie apart; in that of the ids as the verifier sees them, lost
or wrapped ranges do; modulo the width of a vector unit, lost lanes and tails do. The orders depend
on the laws and names alone, so each gives independent uniforms if the verifier is lossless.

What is lost evenly in every order, as by running sums in half precision, leaves fewer tokens: they
come again too soon, and how probable a repeat is is known before each token.

Letters: K law pairs of the pool, V vocabulary, D depth, O orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from stattests import budget
from stattests.budget import PIT_CELLS
from stattests.engine import Emitted, decide, draw, emitted, rename
from stattests.etest import by_draft_ratio, concentration, detectable_tv, log_e, pit_counts
from stattests.problems import Problem
from stattests.sequential import sample
from stattests.streams import numpy_generator, torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, Run

ORDERS = ("q / p", "id", f"id modulo {budget.LANES}")
VIEWS = (*(f"in order of {order}" for order in ORDERS), "tokens that came before")
ODDS = np.array([2.0, 8.0, 1 / 2])  # bets: how much more often than it should a token comes again


@dataclass
class Repeats:
    """Bets on tokens that came before under the same law: after each prefix, one by one.

    masses: the target's probability of what came before, [K]; log_es: one a bet, [3].
    """

    target: NDArray[np.float64]
    seen: NDArray[np.bool_]
    masses: NDArray[np.float64]
    log_es: NDArray[np.float64]

    @staticmethod
    def start(target: NDArray[np.float64]) -> Repeats:
        """Nothing seen yet."""
        empty = np.zeros(target.shape, dtype=np.bool_)
        return Repeats(target, empty, np.zeros(len(target)), np.zeros(len(ODDS)))

    def add(self, pair: int, token: int) -> None:
        """Bet, then look."""
        chance = float(self.masses[pair].clip(0, 1))
        again = bool(self.seen[pair, token])
        # The bet's chance of a repeat has ODDS times the odds of the true one.
        self.log_es += np.log(ODDS) * again - np.log1p((ODDS - 1) * chance)
        if not again:
            self.seen[pair, token] = True
            self.masses[pair] += self.target[pair, token]


def masses_before(laws: NDArray[np.float64], keys: NDArray[Any]) -> NDArray[np.float64]:
    """The probability of all tokens before each one in the order of the keys, all [K, V].

    Example:
        >>> masses_before(np.array([[0.2, 0.3, 0.5]]), np.array([[2.0, 0.0, 1.0]]))
        array([[0.8, 0. , 0.3]])
    """
    order = keys.argsort(1, kind="stable")
    sorted_laws = np.take_along_axis(laws, order, 1)
    before = np.empty_like(laws)
    np.put_along_axis(before, order, sorted_laws.cumsum(1) - sorted_laws, 1)
    return before


def _orders(problem: Problem, shown: NDArray[np.int64]) -> NDArray[np.float64]:
    """Masses before each token in every order, [O, K, V]; `shown` are the tokens' shown ids."""
    p, q = problem.target, problem.draft
    keys = (
        by_draft_ratio(p, q),
        np.broadcast_to(shown, p.shape),
        np.broadcast_to(shown % budget.LANES * problem.vocab + shown, p.shape),
    )
    return np.stack([masses_before(p, key) for key in keys])


def wide(subject: Subject, problem: Problem, run: Run) -> CaseResult:
    """All emitted tokens of sampled cycles, by depth and order, against uniform PIT values."""
    numbers = problem.topology.num_nodes * problem.vocab
    needed = max(budget.WIDE_LEAST, int(budget.WIDE_NUMBERS / sqrt(run.delta) / numbers))
    # Two trees a call at least: what depends on the batch must have one.
    size = max(2, min(budget.WIDE_BATCH, budget.WIDE_CALL // numbers))
    generator = torch_generator(f"wide/{problem.name}", root=run.root)
    spread = numpy_generator(f"wide/{problem.name}", root=run.root)
    renamed = rename(problem, generator)  # once: what clings to some ids must not average out
    before = _orders(problem, renamed.numpy())
    counts = np.zeros((problem.topology.depth + 1, len(ORDERS), PIT_CELLS), dtype=np.int64)
    delta = detectable_tv(needed, alpha=run.alpha / (len(counts) * len(VIEWS)))
    c, null = concentration(PIT_CELLS, 1.0, delta), np.full(PIT_CELLS, 1 / PIT_CELLS)

    def cycles_after(n: int) -> Emitted:
        drawn = draw(subject, problem, min(size, needed - n), generator, renamed)
        return emitted(problem, drawn, decide(subject, problem, drawn, generator))

    repeats = [Repeats.start(problem.target) for _ in counts]

    def log_es() -> NDArray[np.float64]:
        """One a depth and view: the orders, then the repeats."""
        placed = [[log_e(x, null, c) for x in row] for row in counts]
        again = [logsumexp(row.log_es) - log(len(ODDS)) for row in repeats]
        return np.column_stack([placed, again])

    def log_e_with(out: Emitted) -> float:
        pairs = problem.pair_of(out.hashes).numpy()
        for depth, tokens in enumerate(out.tokens.numpy().T):
            valid = tokens >= 0
            at = (pairs[valid, depth], tokens[valid])
            own = problem.target[at] * spread.random(valid.sum())
            for order, masses in enumerate(before):
                counts[depth, order] += pit_counts(masses[at] + own)
            for pair, token in zip(*at, strict=True):
                repeats[depth].add(pair, token)
        return float(logsumexp(log_es()) - log(log_es().size))

    holds = f"no TV >= {delta:.2g} of the first token over {problem.vocab:,} tokens"
    end = sample(problem, run, needed, cycles_after, log_e_with, holds)
    depth, view = divmod(int(log_es().argmax()), len(VIEWS))
    worst = f"{depth} tokens on, {VIEWS[view]}"
    return end.as_case(
        problem.name, "wide", needed, extra={"counts": counts.tolist(), "worst": worst}
    )
