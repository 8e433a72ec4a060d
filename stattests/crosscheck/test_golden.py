"""The 90 golden cases: exact answers from an independent enumeration, and the optima beside."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

import reference
from reference import optimum
from stattests.crosscheck.both import (
    FLOAT64_TOLERANCE,
    GOLDEN,
    all_trees,
    by_path,
    golden_cases,
    golden_model,
    joint_rows,
)
from stattests.theorems.checks import LP_TOLERANCE
from univer import PAPER, VERIFIERS, stop_law

NAMES = sorted(golden_cases())
OPTIMA = json.loads((GOLDEN / "optimum.json").read_text())


def test_there_are_ninety_cases() -> None:
    assert len(NAMES) == 90


@pytest.mark.parametrize("verifier", PAPER)
@pytest.mark.parametrize("name", NAMES)
def test_reference_equals_the_golden_case_exactly(name: str, verifier: str) -> None:
    case = golden_cases()[name]
    expected = case["verifiers"][verifier]
    topology, target, draft = golden_model(case)
    batch, chances = all_trees(verifier, topology, target, draft)
    laws = [
        reference.VERIFIERS[verifier].stop_law(tree, p, q)
        for tree, p, q in zip(batch.trees, batch.target, batch.draft, strict=True)
    ]
    assert len(laws) == expected["n_trees"]
    length = sum(c * law.expected_accepted for c, law in zip(chances, laws, strict=True))
    assert length == Fraction(expected["expected_accepted"])
    drawn = by_path(batch)
    for answer in expected["trees"]:
        i = drawn[tuple(map(tuple, answer["node_paths"]))]
        assert chances[i] == Fraction(answer["draft_prob"])
        joint = laws[i].stop_probs[:, None] * laws[i].next_token_probs()
        rows = joint_rows(case, answer, batch.trees[i])
        for row, expected_row in zip(joint, rows, strict=True):
            assert list(row) == expected_row


@pytest.mark.parametrize("verifier", PAPER)
@pytest.mark.parametrize("name", NAMES)
def test_torch_float64_equals_the_golden_case(
    name: str, verifier: str, device: torch.device
) -> None:
    case = golden_cases()[name]
    expected = case["verifiers"][verifier]
    topology, target, draft = golden_model(case)
    batch, chances = all_trees(verifier, topology, target, draft)
    law = stop_law(verifier, batch.on(device), *batch.rows(device=device))
    weights = torch.tensor([float(chance) for chance in chances], dtype=torch.float64)
    length = (weights * law.expected_accepted.cpu()).sum().item()
    assert abs(length - float(Fraction(expected["expected_accepted"]))) <= FLOAT64_TOLERANCE
    joint = (law.stop_probs[..., None] * law.next_token_probs()).cpu().numpy()
    drawn = by_path(batch)
    for answer in expected["trees"]:
        i = drawn[tuple(map(tuple, answer["node_paths"]))]
        exact = np.array(list(joint_rows(case, answer, batch.trees[i])), dtype=np.float64)
        assert np.abs(joint[i] - exact).max() <= FLOAT64_TOLERANCE


@pytest.mark.parametrize("drafting", ["top_residual", "without_replacement"])
@pytest.mark.parametrize("entry", OPTIMA, ids=[entry["case"] for entry in OPTIMA])
def test_optimum_over_whole_trees(entry: dict[str, float], drafting: str) -> None:
    case = golden_cases()[str(entry["case"])]
    topology, target, draft = golden_model(case)
    best = optimum.tree_optimum(drafting, topology, target, draft)
    assert abs(best - entry[drafting]) <= LP_TOLERANCE
    for name in PAPER:
        if VERIFIERS[name].drafting == drafting:
            length = Fraction(case["verifiers"][name]["expected_accepted"])
            assert float(length) <= best + LP_TOLERANCE
