"""UniVer: lossless verifiers for speculative decoding with draft trees.

A verifier is a draft law x an allocation rule x a composition (`VERIFIERS`); `verify` decides a
batch of trees, `stop_law` gives the exact law of that decision.
"""

from univer.draft_laws import DRAFTING
from univer.drafting import DraftTree, draft_children, draft_tree
from univer.errors import InputError
from univer.filters import Filters
from univer.from_logits import verify_logits
from univer.topology import Topology
from univer.verifiers import (
    PAPER,
    VERIFIERS,
    StopLaw,
    Verifier,
    VerifyOutput,
    stop_law,
    verify,
)

__version__ = "0.1.0"

__all__ = [
    "DRAFTING",
    "PAPER",
    "VERIFIERS",
    "DraftTree",
    "Filters",
    "InputError",
    "StopLaw",
    "Topology",
    "Verifier",
    "VerifyOutput",
    "draft_children",
    "draft_tree",
    "stop_law",
    "verify",
    "verify_logits",
]
