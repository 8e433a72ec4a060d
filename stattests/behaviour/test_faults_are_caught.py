"""Every planted fault is caught by the layer that should see it; every look-alike passes.

False alarms: 1e-12 a row of the table (catch.ALPHA). The sampling layer must have caught a fault
within the cycles that its exact bias predicts; the bet is on 85 % of it, so that a miss, too, is
far rarer than BETA. `python -m stattests.faults` writes the same as a table.
"""

from __future__ import annotations

import pytest

from stattests.faults import FAULTS, LOOK_ALIKES, Fault, LookAlike
from stattests.faults.catch import ANSWERING, SAMPLED_TV, catch, let_pass
from stattests.verdict import Reason, Verdict

FOUND = (Verdict.BIASED, Verdict.BROKEN)


@pytest.mark.stat
@pytest.mark.parametrize("fault", ANSWERING, ids=str)
def test_fault_is_caught(fault: Fault) -> None:
    seen = catch(fault)
    for found in seen:
        assert found.verdict in FOUND, f"missed by {found.layer}: {found.detail}"
        assert found.n <= found.predicted or found.layer != "L3"
    layers = [found.layer for found in seen]
    if fault.kind == "law":
        assert {found.verdict for found in seen} == {Verdict.BIASED}
        assert "Lx" in layers or "L3" in layers
        if seen[0].tv is not None and seen[0].tv >= 4 * SAMPLED_TV:
            assert "L3" in layers
    if fault.kind == "scripted":
        assert [found.reason for found in seen] == [Reason.FORBIDDEN_TOKEN]
    if fault.kind == "length":
        assert [found.reason for found in seen] == [Reason.SHORTER]
    if fault.kind == "contract":
        assert {found.verdict for found in seen} == {Verdict.BROKEN}


@pytest.mark.stat
@pytest.mark.parametrize("specimen", LOOK_ALIKES, ids=str)
def test_look_alike_passes(specimen: LookAlike) -> None:
    for found in let_pass(specimen):
        assert found.verdict not in FOUND, f"accused by {found.layer}: {found.detail}"


def test_the_catalogue_is_as_large_as_it_should_be() -> None:
    assert len(FAULTS) >= 45
    assert len(LOOK_ALIKES) >= 10
