"""Verifiers that are broken on purpose, and correct ones that look as if they were (STATS 5)."""

from stattests.faults.catalogue import FAULTS
from stattests.faults.lookalikes import LOOK_ALIKES
from stattests.faults.specimen import (
    Fault,
    Kind,
    LookAlike,
    Specimen,
    exact_law,
    exact_tv,
    predicted_n,
    renamed_law,
    shown_law,
    subject,
)

__all__ = [
    "FAULTS",
    "LOOK_ALIKES",
    "Fault",
    "Kind",
    "LookAlike",
    "Specimen",
    "exact_law",
    "exact_tv",
    "predicted_n",
    "renamed_law",
    "shown_law",
    "subject",
]
