"""The sequential e-test of losslessness, and the PIT values that let real text be tested.

A lossless verifier's next token after a registered prefix is multinomial with a known law p. The
test bets against that: under a Dirichlet mixture centred on p, the likelihood ratio E of the counts
is a test martingale, so P(E ever reaches 1/a) <= a, whenever one looks and stops (Ville). No cell
is too small, and no sample size has to be fixed in advance.

| symbol | name | meaning |
|---|---|---|
| x, n | counts | times each token followed the prefix, and their sum |
| K | cells | tokens with p > 0 |
| w | visit_prob | probability that an output passes the prefix and goes beyond it |
| delta | delta | the total variation (TV) of the joint law that the test is to catch |
| c | concentration | (K - 1) w^2 / (4 delta^2): how far from p the bet expects the truth |
| lambda* | noncentrality | of the chi-square test with the same error rates |

Logarithms are natural. Sources: Ville 1939 for the bound; chi2(q||p) >= 4 TV^2 (Cauchy-Schwarz)
for the sample sizes.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp
from scipy.stats import chi2, ncx2

from stattests.budget import ALPHA_RUN, BETA, PIT_CELLS, SEQUENTIAL_COST


def concentration(cells: int, visit_prob: float, delta: float) -> float:
    """The Dirichlet concentration c that bets on a joint bias of TV delta at one prefix."""
    return (cells - 1) * visit_prob**2 / (4 * delta**2)


def log_e(counts: ArrayLike, null: ArrayLike, c: float) -> float:
    """The log of E for these counts against the law they should follow.

    Args:
        counts: how often each of V tokens was seen, [V].
        null: the law p, [V]; a token with p = 0 that was seen gives +inf.
        c: the concentration, > 0.

    Example:
        >>> round(log_e([50, 50], [0.5, 0.5], 1.0), 2), log_e([0, 1], [1.0, 0.0], 1.0)
        (-2.53, inf)
    """
    x = np.asarray(counts, dtype=np.float64)
    p = np.asarray(null, dtype=np.float64)
    if (x[p <= 0] > 0).any():
        return inf
    x, p = x[p > 0], p[p > 0]
    if len(p) < 2:
        return 0.0
    p = p / p.sum()
    n = x.sum()
    mixture = gammaln(c) - gammaln(c + n) + (gammaln(c * p + x) - gammaln(c * p)).sum()
    return float(mixture - (x * np.log(p)).sum())


def combine(log_es: ArrayLike) -> float:
    """One log E from those of the prefixes: half their product + half their mean.

    The product of e-values of separate prefixes is one (each conditions on the past), so is their
    mean; the first adds up small biases everywhere, the second keeps a large one at one prefix.

    Example:
        >>> round(combine([0.0, 0.0]), 2), round(combine([30.0, -100.0]), 1)
        (0.0, 28.6)
    """
    values = np.asarray(log_es, dtype=np.float64)
    if values.size == 0:
        return 0.0
    if np.isposinf(values).any():
        return inf
    mean = logsumexp(values) - log(values.size)
    return float(np.logaddexp(values.sum(), mean) - log(2))


@lru_cache
def noncentrality(cells: int, alpha: float = ALPHA_RUN, beta: float = BETA) -> float:
    """lambda*: what a chi-square test with K - 1 degrees of freedom needs for power 1 - beta."""
    df = cells - 1
    threshold = chi2.isf(alpha, df)
    return float(brentq(lambda nc: ncx2.cdf(threshold, df, nc) - beta, 1e-6, 1e5))


def required_n(
    cells: int,
    delta: float,
    alpha: float = ALPHA_RUN,
    beta: float = BETA,
    visit_prob: float = 1.0,
) -> int:
    """Cycles after which a bias of TV delta at a prefix has been caught with power 1 - beta.

    Example:
        >>> required_n(64, 0.005)  # 1.15 x the 1.72 million of a chi-square test at a fixed n
        1978976
    """
    lam = noncentrality(cells, alpha, beta)
    return int(np.ceil(SEQUENTIAL_COST * lam * visit_prob / (4 * delta**2)))


def detectable_tv(
    n: int, cells: int = PIT_CELLS, alpha: float = ALPHA_RUN, beta: float = BETA
) -> float:
    """The smallest TV that n draws catch with power 1 - beta; 1 if they can catch nothing.

    Example:
        >>> [round(detectable_tv(n), 3) for n in (60, 240, 9216, 36864)]
        [0.908, 0.454, 0.073, 0.037]
    """
    lam = noncentrality(cells, alpha, beta)
    return min(1.0, sqrt(SEQUENTIAL_COST * lam / (4 * max(n, 1))))


def by_draft_ratio(target_probs: ArrayLike, draft_probs: ArrayLike) -> NDArray[np.float64]:
    """Q / p, by which the vocabulary is ordered (STATS 6); +inf where p = 0."""
    p = np.asarray(target_probs, dtype=np.float64)
    return np.divide(draft_probs, p, out=np.full_like(p, inf), where=p > 0)


def pit_values(
    target_probs: ArrayLike, draft_probs: ArrayLike, tokens: ArrayLike, uniforms: ArrayLike
) -> NDArray[np.float64]:
    """Randomised probability integral transform of emitted tokens: uniform if lossless.

    The vocabulary is ordered by q/p, then id, so that over- and under-accepted tokens sit at the
    two ends; the value is the mass before the token plus a uniform share of its own.

    Args:
        target_probs: the target law that each token should follow, [n, V].
        draft_probs: the draft law there, [n, V]; a row of zeros (a leaf has no draft law) orders
            by id alone.
        tokens: the emitted tokens, [n].
        uniforms: fresh uniforms in [0, 1), independent of everything else, [n].

    Returns:
        Values in [0, 1), [n]; +inf for a token that its law gives probability 0.

    Source: randomised PIT, Brockwell 2007; the order, STATS 6.

    Example:
        >>> pit_values([[0.2, 0.8]], [[0.5, 0.5]], [1], [0.5])  # token 1 comes first: q/p is less
        array([0.4])
    """
    p = np.asarray(target_probs, dtype=np.float64)
    q = np.asarray(draft_probs, dtype=np.float64)
    y = np.asarray(tokens)[:, None]
    p = p / p.sum(-1, keepdims=True)
    order = by_draft_ratio(p, q)
    at = np.take_along_axis(order, y, 1)
    before = (order < at) | ((order == at) & (np.arange(p.shape[1]) < y))
    own: NDArray[np.float64] = np.take_along_axis(p, y, 1)[:, 0]
    below: NDArray[np.float64] = np.where(before, p, 0.0).sum(-1)
    values: NDArray[np.float64] = below + np.asarray(uniforms, dtype=np.float64) * own
    return np.where(own > 0, values, inf)


def pit_counts(values: ArrayLike) -> NDArray[np.int64]:
    """How many PIT values fall into each of PIT_CELLS equal cells."""
    cells = np.floor(np.asarray(values) * PIT_CELLS).astype(np.int64)
    counts: NDArray[np.int64] = np.bincount(np.clip(cells, 0, PIT_CELLS - 1), minlength=PIT_CELLS)
    return counts


def pit_log_e(values: ArrayLike, planned: int) -> float:
    """The log of E for PIT values, betting on the TV that `planned` tokens can catch.

    `planned` is the number of tokens decided on beforehand: the bet must not depend on the text. A
    forbidden token (a value of +inf) is proof: +inf.
    """
    if np.isinf(values).any():
        return inf
    c = concentration(PIT_CELLS, 1.0, detectable_tv(planned))
    return log_e(pit_counts(values), np.full(PIT_CELLS, 1 / PIT_CELLS), c)
