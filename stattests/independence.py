"""That cycles are independent of each other: neighbouring rows, successive calls, and any lag."""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from stattests import budget
from stattests.engine import cycles, trees_a_call
from stattests.etest import by_draft_ratio, concentration, log_e, required_n
from stattests.problems import Problem
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.verdict import CaseResult, Reason, Run, Verdict, passed
from stattests.wide import masses_before


def pairs(subject: Subject, problem: Problem, run: Run) -> Iterator[CaseResult]:
    """First tokens of neighbouring rows, and of successive calls, are independent."""
    law = problem.target_law(())
    null = np.outer(law, law).ravel()
    cells = int((null > 0).sum())
    needed = required_n(cells, run.delta, run.alpha, budget.BETA)
    weight = concentration(cells, 1.0, run.delta)
    counts = {"rows": np.zeros(len(null)), "calls": np.zeros(len(null))}
    generator = torch_generator(f"pairs/{problem.name}", root=run.root)
    size = trees_a_call(subject, problem) + 1 & ~1  # rows are paired
    n, before = 0, None
    while n < needed and not run.late:
        first = cycles(subject, problem, size, generator).tokens[:, 0]
        codes = {"rows": first[::2] * problem.vocab + first[1::2]}
        if before is not None:
            codes["calls"] = before * problem.vocab + first
        for kind, code in codes.items():
            counts[kind] += np.bincount(code.numpy(), minlength=len(null))
        before, n = first, n + size // 2
    for kind, seen in counts.items():
        value = log_e(seen, null, weight)
        name, total = f"{problem.name}/{kind}", int(seen.sum())
        if value >= log(1 / run.alpha):
            yield CaseResult(
                name,
                "pairs",
                Verdict.BIASED,
                Reason.DEPENDENT_DRAWS,
                f"first tokens of two {kind} are not independent draws from the law",
                n=total,
                n_required=needed,
                log10_e=value / log(10),
            )
        elif total < needed:
            detail = f"{total} of {needed} pairs"
            yield CaseResult(
                name, "pairs", Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, detail, n=total
            )
        else:
            yield passed(
                name,
                "pairs",
                f"two {kind} are independent",
                n=total,
                n_required=needed,
                log10_e=value / log(10),
            )


def largest_correlation(
    values: NDArray[np.float64], left: NDArray[np.bool_]
) -> tuple[float, int, int]:
    """The largest sum of products at one distance, in standard errors, that distance, its pairs.

    A pair has its first value among `left` and its second not: so no value is in two pairs of one
    distance, and the products are independent.

    Args:
        values: independent, of mean 0 and variance 1 under the null, [n].
        left: [n], chosen without looking at the values.

    Example:
        >>> values, left = np.tile([1.0, -1.0], 512), np.repeat([True, False], 512)
        >>> sigmas, distance, pairs = largest_correlation(values, left)
        >>> round(sigmas, 3), distance, pairs
        (22.627, 512, 512)
    """

    def sums(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = fftconvolve(second, first[::-1])[len(first) :]
        return found  # at the distances 1 to n - 1

    pairs = np.rint(sums(left * 1.0, ~left * 1.0))
    scores = np.abs(sums(values * left, values * ~left)) / np.sqrt(pairs.clip(min=1))
    scores[pairs < budget.LEAST_PAIRS] = 0
    best = int(scores.argmax())
    return float(scores[best]), best + 1, int(pairs[best])


def log_chance(sigmas: float, pairs: int, bound: float) -> float:
    """Log P(|sum of independent products| > sigmas sqrt(pairs)), at most; each within `bound`.

    Source: Bernstein's inequality, variance 1.
    """
    return log(2) - sigmas**2 / 2 / (1 + sigmas * bound / (3 * sqrt(pairs)))


def lags(subject: Subject, problem: Problem, run: Run) -> CaseResult:
    """First tokens at any distance in the stream of rows are uncorrelated.

    Numbers that are used again, half a batch, some rows or some calls later, show at their lag.
    """
    law, draft = problem.target_law(()), problem.draft_law(())
    keys = by_draft_ratio(law, draft)
    scores = (masses_before(law[None], keys[None])[0] + law / 2 - 0.5) * (law > 0)
    scores /= sqrt(law @ scores**2)
    size = trees_a_call(subject, problem, 1024 if subject.batched else 32)
    generator = torch_generator(f"lags/{problem.name}", root=run.root)
    total = budget.LAG_CYCLES if subject.batched else budget.LAG_CYCLES_SLOW
    tokens = torch.cat(
        [cycles(subject, problem, size, generator).tokens[:, 0] for _ in range(total // size)]
    )
    n = len(tokens)
    left = torch.rand(n, generator=generator).numpy() < 0.5
    sigmas, distance, pairs = largest_correlation(scores[tokens.numpy()], left)
    largest = float(np.abs(scores).max()) ** 2
    if log(n) + log_chance(sigmas, pairs, largest) < log(run.alpha):
        detail = f"first tokens {distance} rows apart are correlated, {sigmas:.1f} standard errors"
        return CaseResult(problem.name, "lags", Verdict.BIASED, Reason.DEPENDENT_DRAWS, detail, n=n)
    return passed(problem.name, "lags", f"no two of {n} rows depend on each other", n=n)
