"""Faults of the rules beside the paper's four verifiers, and of the draft laws made for them."""

from __future__ import annotations

from functools import partial

from stattests.faults import drafters
from stattests.faults.rules import (
    CHAIN,
    FORK,
    LEFT,
    NEAR,
    NEAR_CHAIN,
    RATIO,
    SCALE,
    SHARP3,
    SPARSE,
)
from stattests.faults.specimen import Fault
from stattests.planting import Patch

_rrs = partial(Patch, "univer.rules.rrsw")  # its loop
_k_seq = partial(Patch, "univer.rules.k_seq")
_hub = partial(Patch, "univer.rules.spechub")
_single = partial(Patch, "univer.rules.single_draft")
_target = partial(Patch, "univer.rules.target_only")
_join = partial(Patch, "univer.composition")

COVERED = "covered = rho[:, None] * q"
RHO = "solve_rho(scale, target, q, arity.clamp(min=1))"
COVERED_BY_K = "covered = children.shape[1] * q"
K_SURPLUS = "surplus = (scaled - covered).clamp_(min=0)"
# What k drafts leave of the target whatever the divisor: SpecTr's factor is it only at the root.
ANY_SURPLUS = (
    "beta = total(torch.minimum(scaled * ratio(q, covered), q))[:, None]\n"
    "    share = ratio(1 - (1 - beta) ** children.shape[1], beta)\n"
    "    surplus = (scaled - torch.minimum(scaled * ratio(q, covered), q) * share).clamp_(min=0)"
)
# With the number of drafts as the divisor k-SEQ is lossless, but rejects more than it must.
K_AS_DIVISOR = (_k_seq(COVERED, COVERED_BY_K), _k_seq(K_SURPLUS, ANY_SURPLUS))
SINGLE_SURPLUS = "surplus = (scaled - q).clamp_(min=0)"
TARGET_MASSES = "return Allocated(torch.cat(accepted, 1), left, 1 - scale)"
RESIDUAL_MASS = "residual_mass = total(masses.residual).view(shape)"
PARENTS = "Columns(indices(topology, tokens.device).parents[nodes.ids], None)"
ABOVE = f"allocate_layer(layer, tokens, scale, allocate, target({PARENTS}), draft)"
SPECHUB_SCALE = "scaled, q = scale[:, None] * target, normalise("
TIES, TOP_K = ("ties", "2x1", 4), ("top-k", "2x1", 4)

RRS_FAULTS = (
    Fault("reduced-as-without-replacement", "M30 G1",
          "A rejected token leaves the draft law, though it may be drawn again.", "rrs",
          (_rrs("if not replacement:", "if True:"),), shows_on=SPARSE),
    Fault("twin-judged-afresh", "M30", "The twin of a rejected child gets the same chance again.",
          "rrs",
          (_rrs(RATIO, "again = (children == x).sum(1, keepdim=True) > 1\n"
                       "        given = torch.where(again, at(target, x), c * at(p, x))\n"
                       "        accepted = ratio(given, at(q, x)).clamp(max=1)"),),
          shows_on=TOP_K),
    Fault("residual-not-carried-over", "M25 M26",
          "Each draft is judged by the whole target, and the last one's residual is drawn from.",
          "rrs", (_rrs(LEFT, "p = target\n        left = (c * p - q).clamp_(min=0)"),
                  _rrs(RATIO, RATIO.replace("at(p, x)", "at(target, x)")))),
    Fault("twins-leave-the-prefix", "M61",
          "Rejected drafts leave their parent's acceptance as it was.", "rrs_conditional",
          (_rrs(SCALE, "c = c * 1"),), shows_on=FORK),
    Fault("rrs-on-distinct-drafts", "M30", "Drafts are drawn without replacement.", "rrs",
          child_outcomes=drafters.without_replacement, shows_on=TIES),
    Fault("drafts-share-a-number", "M33 D6", "One number draws all siblings: they are twins.",
          "rrs", child_outcomes=drafters.same_again, shows_on=TIES),
)  # fmt: skip

K_SEQ_FAULTS = (
    Fault("divisor-of-one", "M58", "The drafts' ratios are not divided: rho is 1.", "k_seq",
          (_k_seq(COVERED, "covered = q"),)),
    Fault("share-left-out", "M57",
          "The residual subtracts what one draft gives, not what all k give together.", "k_seq",
          (_k_seq(K_SURPLUS, "surplus = (scaled - torch.minimum(scaled * ratio(q, covered), q))"),
           )),
    Fault("divisor-for-the-whole-target", "M60 H1",
          "rho is solved for the target without the acceptance of the prefix.",
          "k_seq_conditional",
          (_k_seq(RHO, RHO.replace("scale,", "torch.ones_like(scale),")),),
          shows_on=FORK),
    Fault("k-seq-on-distinct-drafts", "M30", "Drafts are drawn without replacement.", "k_seq",
          child_outcomes=drafters.without_replacement, shows_on=("top-p", "3x1", 5)),
)  # fmt: skip

SPECHUB_FAULTS = (
    Fault("hub-before-the-other", "M29 G4", "In each pair the hub is tried first.", "spechub",
          (_hub("at_hub = asked * passes", "at_hub, at_x = passes, (1 - passes) * at_x"),)),
    Fault("turned-pairs-give-all-again", "M25",
          "What the pairs (x, a) gave to x is not subtracted before (a, x) gives.", "spechub",
          (_hub("unmet = (wanted - rest).clamp(min=0)", "unmet = wanted"),),
          shows_on=NEAR),
    Fault("hub-given-twice", "M26",
          "What the pairs (a, x) gave to the hub is not subtracted before (x, a) gives.",
          "spechub", (_hub("(for_hub - left_turned).clamp(min=0)", "for_hub"),)),
    Fault("turned-pair-by-draft", "M24 G1", "In (a, x) x is compared with q(x), not with Q(a, x).",
          "spechub", (_hub("at(turned, x)", "at(rest, x)"),), shows_on=TOP_K),
    Fault("pairs-unscaled", "M60 H1", "The acceptance of the prefix is left out.",
          "spechub_conditional", (_hub(SPECHUB_SCALE, SPECHUB_SCALE.replace(
              "scale[:, None] * target", "1.0 * target")),), shows_on=FORK),
    Fault("hub-always-first", "M09 A7", "Pairs are always drawn as the hub, then another token.",
          "spechub", child_outcomes=drafters.hub_first),
    Fault("pairs-without-hub", "M07 A5", "Pairs are drawn without replacement, hub or not.",
          "spechub", child_outcomes=drafters.without_replacement, shows_on=NEAR),
)  # fmt: skip

SINGLE_DRAFT_FAULTS = (
    Fault("token-recovers-from-target", "M28 C2", "After a rejection the target gives the token.",
          "token_verification", (_single(SINGLE_SURPLUS, "surplus = 1.0 * scaled"),),
          shows_on=CHAIN),
    Fault("draft-as-if-certain", "M06 A9", "A draft passes with p, as if q were 1.",
          "token_verification",
          (_single("ratio(at(scaled, children), at(q, children))", "at(scaled, children)"),),
          shows_on=CHAIN),
    Fault("block-sum-over-the-row-above", "B11 K5 H1",
          "A node's fallback is the sum over its own law, not over the law after it.",
          "block_verification", (_join(RESIDUAL_MASS, RESIDUAL_MASS.replace("masses", ABOVE)),),
          shows_on=CHAIN),
    Fault("block-sum-unscaled", "M60 H1", "The sum leaves out the acceptance of the block so far.",
          "block_verification",
          (_single(SINGLE_SURPLUS, SINGLE_SURPLUS.replace("scaled", "target")),),
          shows_on=NEAR_CHAIN),
    Fault("best-draft-by-ratio", "A1 M07", "The best token is drafted and judged as if drawn.",
          "token_verification", child_outcomes=drafters.best, shows_on=NEAR_CHAIN),
)  # fmt: skip

TARGET_ONLY_FAULTS = (
    Fault("walk-keeps-the-children", "C1 G2", "A rejected child may still be the next token.",
          "target_only", (_target(TARGET_MASSES, TARGET_MASSES.replace(
              "left", "scale[:, None] * target")),)),
    Fault("walk-counts-twins-twice", "M30", "Each twin has its token's whole mass.", "target_only",
          (_target("accepted.append(at(left, x))",
                   "accepted.append(at(scale[:, None] * target, x))"),),
          drafting="with_replacement", shows_on=TOP_K),
    Fault("best-taken-as-drawn", "A5 M07", "The last of the best tokens is judged as if drawn.",
          "greedy", child_outcomes=drafters.best, shows_on=NEAR),
)  # fmt: skip

GRID_LENGTH_FAULTS = (
    Fault("divisor-of-k", "M59", "The drafts' ratios are divided by their number.", "k_seq",
          K_AS_DIVISOR, kind="length", shows_on=SHARP3),
)  # fmt: skip

GRID_FAULTS: tuple[Fault, ...] = (
    *RRS_FAULTS,
    *K_SEQ_FAULTS,
    *SPECHUB_FAULTS,
    *SINGLE_DRAFT_FAULTS,
    *TARGET_ONLY_FAULTS,
    *GRID_LENGTH_FAULTS,
)
