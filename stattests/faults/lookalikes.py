"""Correct verifiers that look wrong, or are written otherwise: each must pass."""

from __future__ import annotations

from functools import partial

from stattests.faults import drafters, strangers
from stattests.faults.grid import K_AS_DIVISOR
from stattests.faults.plumbing import COINS, DRAW
from stattests.faults.rules import (
    FALLBACK,
    JOINED,
    RRSW_REJECTION,
    RRSW_RESIDUAL,
    START,
    TARGET_ONLY,
    TARGET_ONLY_RRSW,
)
from stattests.faults.specimen import LookAlike, drafter
from stattests.faults.strangers import Around, Matching
from stattests.planting import Patch

_rrsw = partial(Patch, "univer.rules.rrsw")
_join = partial(Patch, "univer.composition")
_table = partial(Patch, "univer.indices")
_grid = partial(Patch, "univer.verifiers")

# The same masses, but the last child is tried first.
REVERSED = (
    _join("left = torch.cat([accepted, beyond[..., None]], -1).flip(-1).cumsum(-1).flip(-1)",
          "left = beyond[..., None] + accepted.cumsum(-1)"),
    _join("ratio(accepted, left[..., :-1])", "ratio(accepted, left)"),
    _join("tried & (tried.cumsum(-1) == 1)", "tried & (tried.flip(-1).cumsum(-1).flip(-1) == 1)"),
    _table("post_order=table(topology.post_order)",
          "post_order=table(sorted(range(topology.num_nodes), key=topology.path)[::-1])"),
)  # fmt: skip
SINGLE = (
    _rrsw(START, "c, p, q = scale[:, None].float(), target.float(), normalise(draft).float()"),
    _rrsw(JOINED, f"{JOINED}.double()"),
    _rrsw(RRSW_RESIDUAL, f"{RRSW_RESIDUAL}.double()"),
    _rrsw(RRSW_REJECTION, f"{RRSW_REJECTION}.double()"),
)
FROM_REJECTION = (
    "set_columns(acceptance, nodes, (1 - ratio(masses.rejection_mass.view(shape),"
    " 1 - accepted.sum(-1))).clamp(0, 1))"
)
TOP_DOWN_IDS = (
    _grid(DRAW, "token = weights.shape[-1] - 1 - inverse_cdf(weights.flip(-1), eta[:, -1])"),
)  # fmt: skip
MIRRORED = (
    _grid(COINS, COINS.replace("eta[:, :-1]", "(1 - 2**-53) - eta[:, :-1]")),
    _grid(DRAW, DRAW.replace("eta[:, -1]", "(1 - 2**-53) - eta[:, -1]")),
)
OTHER_SLOTS = (
    _grid(COINS, COINS.replace("[:, :-1]", "[:, 1:].flip(-1)")),
    _grid(DRAW, DRAW.replace("-1", "0")),
)

LOOK_ALIKES: tuple[LookAlike, ...] = (
    LookAlike("target-only-greedy", "E1 A9 G2", "Each child has its target mass, q is not read.",
              "greedy", TARGET_ONLY),
    LookAlike("target-only-univer", "E1 G2", "The same with a scale: the prefix's acceptance.",
              "univer", TARGET_ONLY),
    LookAlike("target-only-rrsw", "E1 A9", "Each of the drawn children has its target mass.",
              "rrsw", TARGET_ONLY_RRSW),
    LookAlike("target-only-traversal", "E1", "The same with a scale, on drawn children.",
              "traversal", TARGET_ONLY_RRSW),
    LookAlike("equal-to-a-sample", "E2 A12", "A child is kept if it equals a sample of the target.",
              "rrsw", make=Matching),
    LookAlike("equal-to-own-sample", "E2 A12", "The same, with numbers of its own.", "rrsw",
              make=partial(Matching, numbers=strangers.fresh, randomness="own")),
    LookAlike("equal-to-a-sample-among-twins", "E2 E5",
              "The same, on children drawn with replacement.", "rrsw",
              child_outcomes=drafters.with_replacement,
              make=lambda: Matching(drafting=drafter(drafters.with_replacement))),
    LookAlike("greedy-last-child-first", "E3", "Children are visited backwards, masses unchanged.",
              "greedy", REVERSED),
    LookAlike("univer-last-child-first", "E3", "Subtrees are visited backwards, masses unchanged.",
              "univer", REVERSED),
    LookAlike("greedy-on-drawn-children", "E4", "The fixed children are drawn as well.", "greedy",
              drafting="without_replacement"),
    LookAlike("univer-on-drawn-children", "E4", "The fixed children are drawn as well.", "univer",
              drafting="without_replacement"),
    LookAlike("twins-merged", "E5", "Drawn with replacement, twins dropped, then RRSw.", "rrsw",
              child_outcomes=drafters.merged),
    LookAlike("drafts-only-if-sure", "E8 G8", "No children where the draft law is unsure.",
              "traversal", child_outcomes=drafters.only_if_sure),
    LookAlike("own-top-residual", "G4", "The same draft law in other code.", "univer",
              drafting=drafters.numpy_top_residual, child_outcomes=drafters.top_residual),
    LookAlike("one-by-one-rrsw", "G1", "RRSw as a loop over one NumPy tree.", "rrsw",
              make=strangers.OneByOneRrsw),
    LookAlike("one-by-one-rrsw-own-numbers", "D5", "The same, numbers from NumPy.", "rrsw",
              make=partial(strangers.OneByOneRrsw, randomness="own")),
    LookAlike("one-by-one-target-only", "E1", "Target-only, a loop over one tree.", "greedy",
              make=strangers.OneByOneTargetOnly),
    LookAlike("one-by-one-rrs", "G1", "RRS as a loop over one NumPy tree.", "rrs",
              make=partial(strangers.OneByOneRrsw, drafting="with_replacement", replacement=True)),
    LookAlike("divisor-above-the-root", "M59", "k-SEQ's drafts are divided by their number.",
              "k_seq", K_AS_DIVISOR),
    LookAlike("target-only-on-twins", "E1 E5", "Target-only on children drawn with replacement.",
              "target_only", drafting="with_replacement"),
    LookAlike("own-numbers", "D5", "UniVer with torch's global generator.", "univer",
              make=partial(Around, "univer", numbers=strangers.fresh, randomness="own")),
    LookAlike("single-precision", "I19 L9", "RRSw's laws are float32 inside.", "rrsw",
              SINGLE),
    LookAlike("mirrored-numbers", "D5", "Numbers are read as one minus them.", "univer", MIRRORED),
    LookAlike("other-slots", "D5", "Numbers are used in another order.", "traversal", OTHER_SLOTS),
    LookAlike("fallback-from-rejection", "M56", "The fallback is one minus the share of rejection.",
              "univer", (_join(FALLBACK, FROM_REJECTION),)),
    LookAlike("high-ids-first", "C11", "The inverse CDF runs from the last id down.", "greedy",
              TOP_DOWN_IDS),
)  # fmt: skip
