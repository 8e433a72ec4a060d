"""The e-test keeps its promises: exactly where it can be enumerated, by simulation elsewhere."""

from __future__ import annotations

from functools import partial
from itertools import product
from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import binom

from stattests import calibration
from stattests.budget import ALPHA_RUN, ALPHA_TEST, PIT_CELLS
from stattests.calibration import calibrations
from stattests.etest import (
    combine,
    concentration,
    detectable_tv,
    log_e,
    noncentrality,
    pit_counts,
    pit_log_e,
    pit_values,
    required_n,
)
from stattests.strategies import law_pairs, weights
from stattests.streams import numpy_generator


@settings(max_examples=30)
@given(
    law=st.integers(2, 4).flatmap(weights), n=st.integers(0, 6), c=st.sampled_from([0.1, 1.0, 50.0])
)
def test_mean_of_e_under_the_null_is_one(law: tuple[int, ...], n: int, c: float) -> None:
    """Over every table of n counts, so that Ville's bound holds: E is a martingale."""
    p = np.array(law) / sum(law)
    mean = 0.0
    for counts in product(range(n + 1), repeat=len(p)):
        if sum(counts) == n and all(x == 0 or q > 0 for x, q in zip(counts, p, strict=True)):
            x = np.array(counts)
            ways = gammaln(n + 1) - gammaln(x + 1).sum()
            log_prob = ways + (x[p > 0] * np.log(p[p > 0])).sum()
            mean += exp(log_prob + log_e(x, p, c))
    assert mean == pytest.approx(1.0, abs=1e-9)


def test_a_forbidden_token_is_proof() -> None:
    assert log_e([10, 1], [1.0, 0.0], 5.0) == inf
    assert combine([0.0, inf, -50.0]) == inf
    assert log_e([10, 0], [1.0, 0.0], 5.0) == 0.0


def test_combining_keeps_the_mean_at_one_and_one_strong_witness() -> None:
    assert combine([]) == 0.0
    assert combine([log(2.0)]) == pytest.approx(log(2.0))
    values = [log(3.0), log(0.5)]
    assert combine(values) == pytest.approx(log(0.5 * 1.5 + 0.5 * 1.75))
    assert combine([40.0, -300.0]) > 38


@pytest.mark.parametrize(
    ("delta", "published"), [(0.005, 1.72e6), (0.01, 430e3), (0.002, 10.8e6), (0.001, 43e6)]
)
def test_sample_sizes_are_the_published_ones(delta: float, published: float) -> None:
    fixed_n = noncentrality(64) / (4 * delta**2)
    assert fixed_n == pytest.approx(published, rel=0.005)
    assert required_n(64, delta) == pytest.approx(1.15 * published, rel=0.005)
    assert detectable_tv(required_n(64, delta)) == pytest.approx(delta, rel=1e-4)


@pytest.mark.stat
def test_both_promises_are_kept() -> None:
    """False alarms at .05 and missed biases, at a tenth of the runs of docs/CALIBRATION.md.

    A promise that is just kept fails this with probability ALPHA_TEST a row.
    """
    for found in calibrations(scale=0.1):
        most = binom.isf(ALPHA_TEST, found.runs, found.promised)
        assert found.seen <= most, f"{found.what}: {found.seen} of {found.runs}"


@pytest.mark.stat
def test_a_bet_on_the_wrong_size_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check fails where the e-test is spoilt: a bet that is a hundred times too timid."""
    spoilt = partial(concentration, delta=0.0005)
    monkeypatch.setattr(calibration, "concentration", lambda k, w, _: spoilt(k, w))
    found = calibration.misses(16, 0.05, 200)
    assert found.seen > binom.isf(ALPHA_TEST, found.runs, found.promised)


@pytest.mark.stat
def test_pit_values_are_uniform_for_the_target_and_not_for_the_draft() -> None:
    """Tokens drawn from p pass, tokens drawn from q fail; the order may depend on p and q.

    False alarms: log E of a right law reaches the threshold with probability ALPHA_RUN.
    """
    generator = numpy_generator("pit")
    n, vocab = 4000, 50
    p, q = generator.dirichlet(np.full(vocab, 0.3), size=(2, n))
    uniforms = generator.random(n)
    drawn = [np.array([generator.choice(vocab, p=row) for row in law]) for law in (p, q)]
    honest, lossy = (pit_log_e(pit_values(p, q, y, uniforms), n) for y in drawn)
    assert honest < -log(ALPHA_RUN)
    assert lossy > -log(ALPHA_RUN)
    assert pit_log_e(pit_values(p, np.zeros_like(p), drawn[0], uniforms), n) < -log(ALPHA_RUN)


def test_a_forbidden_token_fails_the_pit_at_once() -> None:
    values = pit_values([[0.5, 0.5, 0.0]], [[0.2, 0.2, 0.6]], [2], [0.3])
    assert values.tolist() == [inf]
    assert pit_log_e([0.1, *values], 100) == inf


@given(pair=st.integers(2, 6).flatmap(law_pairs))
def test_pit_intervals_tile_the_unit_interval(
    pair: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Each token owns an interval of length p; together they cover [0, 1) once."""
    p, q = (np.array(law) / sum(law) for law in pair)
    vocab = len(p)
    tokens = np.arange(vocab)
    start = pit_values(np.tile(p, (vocab, 1)), np.tile(q, (vocab, 1)), tokens, np.zeros(vocab))
    order = np.argsort(start[p > 0])
    edges = np.cumsum(p[p > 0][order])
    np.testing.assert_allclose(start[p > 0][order], [0.0, *edges[:-1]], atol=1e-12)


def test_pit_cells_take_both_ends() -> None:
    counts = pit_counts([0.0, 1 / PIT_CELLS, 1 - 2**-53, 1.0])
    assert counts[0] == 1
    assert counts[1] == 1
    assert counts[-1] == 2
    assert len(counts) == PIT_CELLS
