"""Exact probing gives a black box's law without looking inside, and says when it cannot."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from stattests.cases import narrowed, problem
from stattests.exact import exact_law
from stattests.planting import Patch, plant
from stattests.probing import ProbeError, probe
from stattests.problems import Problem
from stattests.subject import Subject, of_verifier
from univer import VERIFIERS, DraftTree, stop_law, verify

NAMES = sorted(VERIFIERS)
TOYS = [("sharp", "2x1", 4), ("sharp", "chain:2", 4), ("peaked-draft", "2x1", 4)]
# What bisection leaves of some hundred faces, each 4e-15 wide.
FLOAT64 = 1e-12
# Rounding of float32 laws, 6e-8 each, and of the few sums and products over them.
FLOAT32 = 1e-6


def black_box(name: str, function: Any) -> Subject:
    return Subject(name, VERIFIERS[name].drafting, function)


def toy_of(name: str, family: str, spec: str, vocab: int) -> Problem:
    """The toy on a tree that this verifier takes."""
    return problem(family, narrowed(spec, VERIFIERS[name].max_arity or vocab), vocab)


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: "-".join(map(str, toy)))
@pytest.mark.parametrize("name", NAMES)
def test_probed_law_is_the_stop_laws(name: str, toy: tuple[str, str, int]) -> None:
    """Outcomes of volume 1e-9 (the peaked toy) included."""
    model = toy_of(name, *toy)
    found = probe(black_box(name, partial(verify, name)), model)
    exact = exact_law(model, VERIFIERS[name].drafting, partial(stop_law, name))
    assert set(found.law.masses) == set(exact.masses)
    for prefix, row in exact.masses.items():
        assert np.abs(found.law.masses[prefix] - row).max() <= FLOAT64
    assert abs(found.law.expected_accepted - exact.expected_accepted) <= FLOAT64
    slots = model.topology.num_nodes + 1
    assert found.token_slots <= {slots - 1}
    assert found.reused_slots(slots) == frozenset()


@pytest.mark.parametrize("name", NAMES)
def test_probed_law_of_a_float32_verifier_is_near(name: str) -> None:
    def single(tree: DraftTree, target: Any, draft: Any, *, uniforms: Any) -> Any:
        return verify(name, tree, target.float(), draft.float(), uniforms=uniforms)

    model = toy_of(name, "sharp", "2x1", 4)
    found = probe(black_box(name, single), model)
    exact = exact_law(model, VERIFIERS[name].drafting, partial(stop_law, name))
    for prefix, row in exact.masses.items():
        assert np.abs(found.law.masses[prefix] - row).max() <= FLOAT32
    assert found.law.joint_tv() <= FLOAT32


def planted(name: str, module: str, line: str, broken: str) -> Subject:
    verifiers = plant(Patch(f"univer.{module}", line, broken))["univer.verifiers"]
    return black_box(name, partial(verifiers.verify, name))


def test_an_acceptance_a_thousandth_too_large_is_found() -> None:
    box = planted(
        "rrsw",
        "rules.rrsw",
        "ratio(c * at(p, x), at(q, x))",
        "(1.001 * ratio(c * at(p, x), at(q, x)))",
    )
    law = probe(box, problem("sharp", "2x1", 4)).law
    assert 1e-5 < law.joint_tv() < 1e-3


def test_a_number_that_decides_a_node_and_the_token_is_named() -> None:
    box = planted("univer", "verifiers", "eta[:, -1])", "eta[:, 1])")
    model = problem("sharp", "chain:2", 4)
    found = probe(box, model)
    assert found.reused_slots(model.topology.num_nodes + 1) == {1}
    assert found.law.joint_tv() > 1e-6


def test_one_number_for_all_nodes_shows_in_the_law() -> None:
    box = planted(
        "univer",
        "verifiers",
        "eta[:, :-1])",
        "eta[:, 1:2].expand(-1, tokens.shape[1]))",
    )
    found = probe(box, problem("sharp", "chain:2", 4))
    assert found.law.joint_tv() > 1e-6
    assert found.stop_slots == {1}


def test_hidden_randomness_is_no_box() -> None:
    generator = torch.Generator().manual_seed(1)

    def secretive(tree: DraftTree, target: Any, draft: Any, *, uniforms: Any) -> Any:
        del uniforms
        return verify("univer", tree, target, draft, generator=generator)

    with pytest.raises(ProbeError):
        probe(black_box("univer", secretive), problem("sharp", "2x1", 4))


def test_probing_stops_at_its_limit() -> None:
    box = of_verifier("univer", VERIFIERS["univer"])
    with pytest.raises(TimeoutError, match="more than 100 decisions"):
        probe(box, problem("sharp", "2x1", 4), max_calls=100)
