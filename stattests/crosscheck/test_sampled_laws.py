"""The whole of torch, randomness included: sampled outputs follow the exact law of the output.

Trees are drawn with `draft_tree`, decided with `verify`, and the emitted sequences counted against
the law that the oracle enumerates. The verdict is a chi-square test at a fixed n whose every cell
expects at least MIN_EXPECTED counts (rarer outputs are pooled, never dropped: a bias among them is
for the exact checks; an output of probability 0 fails at once); false alarms: ALPHA_TEST a
verifier. It sees a bias of TV .05 among its cells with power .999, which is asserted, not hoped;
toys with fewer than two cells are passed over.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume
from scipy.stats import chi2

import reference
from reference import enumeration
from stattests.budget import ALPHA_TEST, BETA, MIN_EXPECTED
from stattests.etest import noncentrality
from stattests.strategies import Toy, for_toys
from stattests.streams import numpy_generator, torch_generator
from univer import VERIFIERS, DraftTree, draft_tree, verify

EXAMPLES = 25
SAMPLES = 40_000
ALPHA = ALPHA_TEST / EXAMPLES
MOST_CELLS = SAMPLES // MIN_EXPECTED
DETECTS = 0.05


def sampled_outputs(name: str, toy: Toy, batch: int, device: torch.device) -> Counter[Any]:
    """Emitted sequences of one cycle on `batch` trees, counted."""
    topology = toy.topology
    generator = torch_generator(f"{name}/{toy}")

    def laws(tree: DraftTree, nodes: tuple[int, ...], law: Any) -> torch.Tensor:
        """One row [V] a node and tree, computed once a path."""
        rows: dict[tuple[int, ...], int] = {}
        table: list[Any] = []
        ids = np.zeros((batch, len(nodes)), dtype=np.int64)
        for column, node in enumerate(nodes):
            at = list(topology.path(node))
            paths, inverse = np.unique(
                tree.tokens[:, at].cpu().numpy(), axis=0, return_inverse=True
            )
            for i, path in enumerate(map(tuple, paths.tolist())):
                if path not in rows:
                    rows[path] = len(table)
                    table.append(law(path if min(path, default=0) >= 0 else ()).astype(np.float64))
                ids[inverse.reshape(-1) == i, column] = rows[path]
        return torch.tensor(np.array(table)[ids], device=device)

    root = torch.zeros(batch, dtype=torch.int64, device=device)
    tree, draft_probs = draft_tree(
        VERIFIERS[name].drafting,
        topology,
        root,
        lambda tree, nodes: (laws(tree, nodes, toy.draft), None),
        generator=generator,
    )
    target_probs = laws(tree, tuple(range(topology.num_nodes)), toy.target)
    out = verify(name, tree, target_probs, draft_probs, generator=generator)
    lengths = out.num_accepted.tolist()
    return Counter(
        tuple(row[: length + 1]) for row, length in zip(out.tokens.tolist(), lengths, strict=True)
    )


def chi_square_p(counts: Counter[Any], law: dict[Any, float]) -> float:
    """The p-value of a chi-square test; rare cells pooled, then joined to the rarest left."""
    n = sum(counts.values())
    common = sorted((p * n, counts[key]) for key, p in law.items() if p * n >= MIN_EXPECTED)
    rare = [(p * n, counts[key]) for key, p in law.items() if p * n < MIN_EXPECTED]
    pooled = np.array(rare).sum(0) if rare else np.zeros(2)
    cells = np.array(common, dtype=np.float64).reshape(-1, 2)
    if pooled[0] >= MIN_EXPECTED:
        cells = np.vstack([cells, pooled])
    elif len(cells):
        cells[0] += pooled
    expected, seen = cells.T
    statistic = ((seen - expected) ** 2 / expected).sum()
    return float(chi2.sf(statistic, len(cells) - 1))


def test_power_is_what_the_docstring_says() -> None:
    assert noncentrality(MOST_CELLS, ALPHA, BETA) / (4 * DETECTS**2) <= SAMPLES


@pytest.mark.stat
@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_sampled_output_law_is_the_exact_one(name: str, device: torch.device) -> None:
    def compare(toy: Toy) -> None:
        exact = enumeration.output_law(
            reference.VERIFIERS[name].stop_law,
            VERIFIERS[name].drafting,
            toy.topology,
            toy.target,
            toy.draft,
        )
        law = {tokens: float(prob) for tokens, prob in exact.items()}
        assume(sum(prob * SAMPLES >= MIN_EXPECTED for prob in law.values()) >= 2)
        counts = sampled_outputs(name, toy, SAMPLES, device)
        assert set(counts) <= set(exact), "an output of probability 0 was emitted"
        assert chi_square_p(counts, law) >= ALPHA

    for_toys(name, compare, EXAMPLES)


@pytest.mark.stat
def test_chi_square_sees_a_bias_of_the_promised_size() -> None:
    """The power, run: a law moved by TV .05 over the most cells is refused."""
    k = MOST_CELLS
    moved = np.full(k, 1 / k) * np.where(np.arange(k) % 2, 1 + 2 * DETECTS, 1 - 2 * DETECTS)
    draws = numpy_generator("chi-square power").multinomial(SAMPLES, moved / moved.sum())
    counts = Counter(dict(enumerate(draws.tolist())))
    assert chi_square_p(counts, dict.fromkeys(range(k), 1 / k)) < ALPHA
