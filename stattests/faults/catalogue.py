"""All faults, class by class."""

from __future__ import annotations

from stattests.faults.early import EARLY_FAULTS
from stattests.faults.grid import GRID_FAULTS
from stattests.faults.plumbing import (
    CONTRACT_FAULTS,
    DECISION_FAULTS,
    DEPENDENCE_FAULTS,
    LENGTH_FAULTS,
    NUMBER_FAULTS,
    ROW_FAULTS,
    SCRIPTED_FAULTS,
)
from stattests.faults.rules import BLOCK_FAULTS, OT_FAULTS, RRSW_FAULTS
from stattests.faults.specimen import Fault

FAULTS: tuple[Fault, ...] = (
    *RRSW_FAULTS,
    *BLOCK_FAULTS,
    *OT_FAULTS,
    *ROW_FAULTS,
    *DECISION_FAULTS,
    *NUMBER_FAULTS,
    *SCRIPTED_FAULTS,
    *LENGTH_FAULTS,
    *CONTRACT_FAULTS,
    *DEPENDENCE_FAULTS,
    *GRID_FAULTS,
    *EARLY_FAULTS,
)
