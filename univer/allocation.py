"""The table of allocation rules (SPEC 4), and the draft laws for which each is lossless.

`univer.rules` says what a rule is given and gives back, and has one file for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from univer.draft_laws import DRAFTING
from univer.rules import Allocated
from univer.rules.k_seq import k_seq
from univer.rules.optimal import optimal
from univer.rules.ot import optimal_transport
from univer.rules.rrs import independent_rejection
from univer.rules.rrsw import recursive_rejection
from univer.rules.single_draft import single_draft
from univer.rules.spechub import spechub
from univer.rules.target_only import target_only


@dataclass(frozen=True)
class Allocation:
    """One rule.

    name: in ALLOCATION.
    allocate: the rule.
    drafting: the draft laws for which it is locally lossless (Definition 1).
    max_arity: most children of a node that it takes; None for any number.
    by_outcomes: whether `allocate` is also told all outcomes of the draft law.
    """

    name: str
    allocate: Callable[..., Allocated]
    drafting: tuple[str, ...]
    max_arity: int | None = None
    by_outcomes: bool = False


EVERY = tuple(DRAFTING)
DRAWN = ("top_residual", "without_replacement", "with_replacement", "spechub_pairs")

ALLOCATION = {
    row.name: row
    for row in (
        # Under without_replacement the first m - 1 children drawn are the fixed set.
        Allocation("ot", optimal_transport, ("top_residual", "without_replacement")),
        Allocation("rrsw", recursive_rejection, ("without_replacement",)),
        Allocation("rrs", independent_rejection, ("with_replacement",)),
        Allocation("k_seq", k_seq, ("with_replacement",)),
        Allocation("spechub", spechub, ("spechub_pairs",), max_arity=2),
        # One child alone is drawn from q by each of these laws.
        Allocation("single_draft", single_draft, DRAWN, max_arity=1),
        Allocation("target_only", target_only, EVERY),
        Allocation("optimal", optimal, EVERY, by_outcomes=True),
    )
}
