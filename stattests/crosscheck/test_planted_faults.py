"""The cross-checks fail when torch is broken in one line: which line, for which verifier.

Each fault is swapped into the tables for one test; the check is the one that hypothesis drives in
test_torch_equals_reference.py, here on fixed toys that depend on the prefix.
"""

from __future__ import annotations

import pytest
import torch

from stattests.crosscheck.both import LARGEST, drawn_batch
from stattests.crosscheck.test_torch_equals_reference import (
    check_decisions,
    check_stop_laws,
    uniforms_for,
)
from stattests.strategies import Toy
from stattests.theorems.planted import Fault, plant
from stattests.theorems.test_planted_faults import POOL, TREES
from univer import (
    VERIFIERS,
    allocation,
    composition,
    draft_children,
    draft_laws,
    indices,
    sampling,
    verifiers,
)
from univer.rules import ot, rrsw

TOYS = [Toy(4, parents, POOL) for parents in (*TREES, (-1, 0, 0, 1, 1, 2, 3, 3), (-1, 0, 1, 2))]


def check(name: str) -> None:
    """STATS L1 on the fixed toys."""
    most = VERIFIERS[name].max_arity
    for toy in TOYS:
        if most is not None and toy.topology.max_arity > most:
            continue
        batch = drawn_batch(toy, VERIFIERS[name].drafting, size=32)
        exact = (torch.float64, torch.device("cpu"))
        check_stop_laws(name, batch, *exact)
        check_decisions(name, batch, uniforms_for(str(toy), batch), *exact)


ALLOCATION_FAULTS = [
    ("univer", Fault("ot-z-without-scale", ot, "(1 - scale[:, None]) + total(surplus)",
                     "total(surplus)")),
    ("greedy", Fault("ot-top-not-removed", ot, "normalise(without(draft, fixed), where",
                     "normalise(draft, where")),
    ("univer", Fault("ot-unscaled-ratio", ot, "ratio(at(scaled, sampled)",
                     "ratio(at(target, sampled)")),
    ("greedy", Fault("ot-child-keeps-residual", ot,
                     "without(surplus, children) * factor", "surplus * factor")),
    ("rrsw", Fault("rrsw-draft-not-reduced", rrsw,
                     "q = torch.where(present, normalise(without(q, x)), q)", "q = q")),
    ("rrsw", Fault("rrsw-draft-not-renormalised", rrsw, "normalise(without(q, x))",
                   "without(q, x)")),
    ("traversal", Fault("rrsw-scale-not-updated", rrsw,
                        "c = torch.where(present, ratio(mass, mass + (1 - c)), c)", "c = c")),
]  # fmt: skip
COMPOSITION_FAULTS = [
    ("univer", Fault("not-conditioned", composition, "ratio(accepted, left[..., :-1])",
                     "accepted")),
    ("univer", Fault("scale-not-passed-down", composition,
                     "set_columns(scale, slots, prefix_acceptance)", "pass")),
    ("univer", Fault("fallback-never", composition, "ratio(residual_mass, beyond)",
                     "residual_mass * 0")),
    ("univer", Fault("pre-order", indices, "post_order=table(topology.post_order)",
                     "post_order=table(range(topology.num_nodes))")),
    ("greedy", Fault("last-child-wins", composition, "tried & (tried.cumsum(-1) == 1)",
                     "tried & (tried.flip(-1).cumsum(-1).flip(-1) == 1)")),
    ("rrsw", Fault("recovered-from-target", composition,
                   "recovered = torch.where((total(residual) > 0)[:, None], residual, target)",
                   "recovered = target")),
    ("univer", Fault("row-of-the-first-node", composition, "slots.index_select(0, stop)",
                     "slots.index_select(0, stop * 0)")),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_whole_verifier_passes(name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("name", "fault"), ALLOCATION_FAULTS, ids=[str(fault) for _, fault in ALLOCATION_FAULTS]
)
def test_allocation_fault_is_caught(
    name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = VERIFIERS[name].allocation
    monkeypatch.setitem(
        allocation.ALLOCATION, rule, fault.plant()["univer.allocation"].ALLOCATION[rule]
    )
    with pytest.raises(AssertionError):
        check(name)


@pytest.mark.parametrize(
    ("name", "fault"), COMPOSITION_FAULTS, ids=[str(fault) for _, fault in COMPOSITION_FAULTS]
)
def test_composition_fault_is_caught(
    name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, rule = fault.plant()["univer.composition"], VERIFIERS[name].composition
    monkeypatch.setitem(composition.COMPOSITION, rule, broken.COMPOSITION[rule])
    monkeypatch.setattr(verifiers, "judge", broken.judge)
    monkeypatch.setattr(verifiers, "next_token_weights", broken.next_token_weights)
    with pytest.raises(AssertionError):
        check(name)


def test_sampling_fault_emits_a_forbidden_token() -> None:
    """A running sum compared with <= lets a zero-probability token through at uniform 0."""
    broken = plant(Fault("edge-inclusive", sampling, "right=True", "right=False"))
    weights = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    assert sampling.inverse_cdf(weights, zero).tolist() == [1]
    assert broken.inverse_cdf(weights, zero).tolist() == [0]
    nearly = torch.full((1,), LARGEST, dtype=torch.float64)
    assert sampling.inverse_cdf(weights, nearly).tolist() == [2]


def test_drafting_fault_shows_in_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing with replacement gives a twin that the whole drafting never gives."""
    fault = Fault(
        "with-replacement",
        draft_laws,
        "rest = without(rest, children[-1][:, None])",
        "pass",
    )
    law = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    uniforms = torch.full((1, 2), 0.5, dtype=torch.float64)
    assert draft_children("without_replacement", law, 2, uniforms).tolist() == [[0, 1]]
    row = plant(fault).DRAFTING["without_replacement"]
    monkeypatch.setitem(draft_laws.DRAFTING, "without_replacement", row)
    assert draft_children("without_replacement", law, 2, uniforms).tolist() == [[0, 0]]
