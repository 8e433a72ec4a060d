"""Faults of the rules: one node's masses come out wrong, or its draft law is another one."""

from __future__ import annotations

from functools import partial

from stattests.faults import drafters
from stattests.faults.specimen import Fault
from stattests.planting import Patch

_ot = partial(Patch, "univer.rules.ot")
_rrsw = partial(Patch, "univer.rules.rrsw")
_join = partial(Patch, "univer.composition")
_grid = partial(Patch, "univer.verifiers")

RATIO = "accepted = ratio(c * at(p, x), at(q, x)).clamp(max=1)"
LEFT = "left = (c * p - q).clamp_(min=0)"
START = "c, p, q = scale[:, None], target, normalise(draft)"
REDUCED = "q = torch.where(present, normalise(without(q, x)), q)"
SCALE = "c = torch.where(present, ratio(mass, mass + (1 - c)), c)"
LOOP = "for x in children.T[..., None]:"
JOINED = "child_acceptance=torch.cat(child_acceptance, 1)"
RRSW_REJECTION = "rejection_mass=(reached * (1 - c))[:, 0]"
RRSW_RESIDUAL = "residual=without(reached * c * p, children)"
OT_CHILDREN = "child_acceptance=torch.cat([at(surplus, fixed) * factor, at_sampled], 1)"
OT_RESIDUAL = "residual=without(surplus, children) * factor"
OT_REJECTION = "rejection_mass=((1 - scale[:, None]) * factor)[:, 0]"
AT_SAMPLED = "at_sampled = ratio(at(scaled, sampled), at(residual_draft, sampled)).clamp(max=1)"
FALLBACK = "set_columns(acceptance, nodes, ratio(residual_mass, beyond))"
FALLBACK_IS_PREFIX = "set_columns(acceptance, nodes, columns(scale, nodes))"
REST = "residual_draft = normalise(without(draft, fixed), where=sampled[:, 0] >= 0)"
RECOVERED = "recovered = torch.where((total(residual) > 0)[:, None], residual, target)"
TWINS_ALLOWED = Patch("univer.tree_rows", "twins=DRAFTING[verifier.drafting].twins", "twins=True")
# The target-only rule: every child its target mass, the rest of the target is the residual.
TARGET_ONLY = (
    _ot(OT_CHILDREN, "child_acceptance=at(scaled, children)"),
    _ot(OT_RESIDUAL, "residual=without(scaled, children)"),
    _ot(OT_REJECTION, "rejection_mass=1 - scale"),
)
TARGET_ONLY_RRSW = (
    _rrsw(JOINED, "child_acceptance=at(scale[:, None] * target, children)"),
    _rrsw(RRSW_RESIDUAL, "residual=without(scale[:, None] * target, children)"),
    _rrsw(RRSW_REJECTION, "rejection_mass=1 - scale"),
)
SQUARED = "Laws(p.rows, lambda rows: renormalise(rows ** 2))"

NEAR, SPARSE = ("near", "2x1", 4), ("dirichlet-.3", "2x1", 4)
SHARP3 = ("sharp", "3x1", 5)
CHAIN = ("sharp", "chain:2", 4)
NEAR_CHAIN = ("near", "chain:2", 4)
UNEVEN = ("near", "[[0],[1],[0,0]]", 4)
FORK = ("near", "[[0],[0,0],[0,1]]", 4)


def bonus(row: str, recovered: str = "p.at(stop)") -> tuple[Patch, ...]:
    """The next token comes from this row after a leaf, from the other one's residual elsewhere."""
    return (
        _grid("p.at(stop),", f"({recovered}, {row}),"),
        _join("weights, arities = target, ", "(target, weights), arities = target, "),
    )


def _by(law: str) -> tuple[Patch, ...]:
    """Judge siblings in the order of this law instead of the order they were drawn in."""
    order = f"order = at({law}, children).argsort(-1, descending=True)"
    return (
        _rrsw(LOOP, f"{order}\n    for x in children.gather(1, order).T[..., None]:"),
        _rrsw(JOINED, f"{JOINED}.gather(1, order.argsort(-1))"),
    )


RRSW_FAULTS = (
    Fault("target-as-residual", "M01 C2",
          "After a rejection the target itself is what is left: nothing is subtracted.", "rrsw",
          (_rrsw(LEFT, "left = c * p"), _rrsw(RRSW_RESIDUAL, "residual=reached * c * p"))),
    Fault("rejected-zeroed", "M02 M03 C1 G2",
          "The draft law is subtracted at the rejected token and nowhere else.", "rrsw",
          (_rrsw(LEFT, "left = without(c * p, x)"),), shows_on=SPARSE),
    Fault("absolute-difference", "M04", "The residual is |p - q| instead of its positive part.",
          "rrsw", (_rrsw(LEFT, "left = (c * p - q).abs_()"),)),
    Fault("residual-floor-1e-3", "M05 C3",
          "The residual is kept above 1e-3, so that every token has some.", "rrsw",
          (_rrsw(LEFT, "left = (c * p - q).clamp_(min=1e-3)"),)),
    Fault("residual-floor-1e-5", "M05 C3",
          "The residual is kept above 1e-5: hardly visible in a small vocabulary.", "rrsw",
          (_rrsw(LEFT, "left = (c * p - q).clamp_(min=1e-5)"),)),
    Fault("accepted-without-q", "M06 A9",
          "Children are accepted with p, as if q were 1, but the residual subtracts q.", "rrsw",
          (_rrsw(RATIO, "accepted = c * at(p, x)"),)),
    Fault("argmax-drafts", "A1 A3 A6 M07", "The draft is the best token, its law taken as drawn.",
          "rrsw", child_outcomes=drafters.best, shows_on=NEAR_CHAIN),
    Fault("top-drafts", "M07 A5", "The children are the best tokens, their law is taken as drawn.",
          "rrsw", child_outcomes=drafters.best, shows_on=NEAR),
    Fault("top-two-drafts-raw-law", "A2 M08",
          "Drafts come from the two best tokens; the law before that cut is what is judged with.",
          "rrsw", child_outcomes=drafters.top_two, shows_on=NEAR_CHAIN),
    Fault("nucleus-drafts-raw-law", "A7 A8",
          "Drafts pass a top-p filter that the law in the ratio has not seen.", "rrsw",
          child_outcomes=drafters.nucleus, shows_on=NEAR_CHAIN),
    Fault("warm-drafts-raw-law", "M09 A7",
          "Drafts are drawn at temperature 0.7 and judged at temperature 1.", "rrsw",
          child_outcomes=drafters.warm, shows_on=NEAR_CHAIN),
    Fault("target-at-another-temperature", "M10 A8 D5",
          "Children are judged and recovered by the squared target, the bonus by the right one.",
          "rrsw", (_grid("tokens, p, q)", f"tokens, {SQUARED}, q)"),
                   *bonus("p.at(stop)", recovered=f"{SQUARED}.at(stop)")),
          shows_on=("near", "3x1", 5)),
    Fault("ratio-on-filtered-target", "M11 A8",
          "The ratio sees the target without its small tokens, the residual sees all.", "rrsw",
          (_rrsw(RATIO, "accepted = ratio(c * at(normalise(torch.where(p >= 0.2, p, 0.0)), x),"
                        " at(q, x)).clamp(max=1)"),), shows_on=NEAR_CHAIN),
    Fault("accepted-by-either", "M14 B3",
          "A draft passes by the ratio or because it equals a sample of the target.", "rrsw",
          (_rrsw(RATIO, "accepted = 1 - (1 - ratio(c * at(p, x), at(q, x)).clamp(max=1))"
                        " * (1 - at(target, x))"),)),
    Fault("typical-acceptance", "M15 B6",
          "A draft passes where its target probability exceeds an entropy threshold.", "rrsw",
          (_rrsw(RATIO, "accepted = (at(p, x) > 0.5 * torch.special.entr(p).sum(-1, keepdim=True)"
                        ".neg().exp().clamp(max=0.6)).double()"),), shows_on=NEAR_CHAIN),
    Fault("accepted-above-threshold", "M16 B5",
          "Any draft of target probability 0.3 or more passes.", "rrsw",
          (_rrsw(RATIO, "accepted = torch.where(at(p, x) >= 0.3, 1.0,"
                        " ratio(c * at(p, x), at(q, x)).clamp(max=1))"),), shows_on=NEAR),
    Fault("accepted-5%-more", "M17", "Acceptance is multiplied by 1.05.", "rrsw",
          (_rrsw(RATIO, "accepted = (1.05 * ratio(c * at(p, x), at(q, x))).clamp(max=1)"),),
          shows_on=NEAR),
    Fault("accepted-1%-more", "M17", "Acceptance is multiplied by 1.01.", "traversal",
          (_rrsw(RATIO, "accepted = (1.01 * ratio(c * at(p, x), at(q, x))).clamp(max=1)"),),
          shows_on=NEAR_CHAIN),
    Fault("accepted-.1%-more", "M17", "The sampled child's acceptance is multiplied by 1.001.",
          "univer", (_ot(AT_SAMPLED, AT_SAMPLED.replace("ratio(", "1.001 * ratio(", 1)),),
          shows_on=SHARP3),
    Fault("mixture-target", "M18 B7", "The target is mixed with a tenth of the draft law.", "rrsw",
          (_rrsw(START, "c, p, q = scale[:, None], 0.9 * target + 0.1 * draft, draft"),)),
    Fault("ratio-inverted", "M21", "Acceptance is q/p instead of p/q.", "rrsw",
          (_rrsw(RATIO, "accepted = ratio(at(q, x), c * at(p, x)).clamp(max=1)"),)),
    Fault("sibling-law-not-renormalised", "M24 G1",
          "The next child's draft law still has the mass of the one rejected.", "rrsw",
          (_rrsw(REDUCED, "q = without(q, x)"),), shows_on=SPARSE),
    Fault("sibling-judged-by-target", "M25",
          "The second child is compared with the target, not with what is left of it.", "rrsw",
          (_rrsw(RATIO, RATIO.replace("at(p, x)", "at(target, x)")),)),
    Fault("residual-restarts", "M26", "Each residual starts again from the whole target.", "rrsw",
          (_rrsw(LEFT, "left = (c * target - q).clamp_(min=0)"),), shows_on=NEAR),
    Fault("residual-not-renormalised", "M27",
          "What is left keeps its small mass when the next child is judged.", "rrsw",
          (_rrsw("left / mass", "left"),), shows_on=SHARP3),
    Fault("siblings-by-target", "M29 G4", "Siblings are judged by falling target probability.",
          "rrsw", _by("target")),
    Fault("siblings-by-draft", "M29 G4", "Siblings are judged by falling draft probability.",
          "rrsw", _by("draft")),
    Fault("twins-drafted", "M30",
          "Siblings are drawn with replacement and judged as if without.", "rrsw",
          (TWINS_ALLOWED,), child_outcomes=drafters.with_replacement, shows_on=SPARSE),
    Fault("own-sample-for-each-sibling", "M31 B9",
          "Each sibling is compared with a target sample of its own.", "rrsw",
          (*TARGET_ONLY_RRSW, _join("prefix_acceptance = ratio(accepted, left[..., :-1])",
                                    "prefix_acceptance = accepted")), shows_on=SHARP3),
    Fault("checked-by-argmax", "B10 G6",
          "Only the target's best token passes, or follows a rejection.", "rrsw",
          (_rrsw(RATIO, "accepted = (at(target, x) >= target.amax(-1, keepdim=True)).double()"),
           _rrsw(RRSW_RESIDUAL,
                 "residual=reached * (target >= target.amax(-1, keepdim=True))")),
          shows_on=NEAR_CHAIN),
)  # fmt: skip

BLOCK_FAULTS = (
    Fault("step-by-step-ratio", "M55 H1", "A node's ratio leaves out the acceptance of its prefix.",
          "traversal", (_rrsw(RATIO, RATIO.replace("c * at", "at")),), shows_on=CHAIN),
    Fault("fallback-is-prefix", "M56 H1",
          "After a rejected child a node is kept with its prefix acceptance unchanged.",
          "traversal", (_join(FALLBACK, FALLBACK_IS_PREFIX),),
          shows_on=NEAR_CHAIN),
    Fault("fallback-without-denominator", "M57 M62",
          "A node's new acceptance is the residual's mass, not its share.", "traversal",
          (_rrsw(SCALE, "c = torch.where(present, mass, c)"),), shows_on=FORK),
    Fault("block-without-q", "M58 H2", "q is taken as 1 in the ratio of the block rule.",
          "traversal", (_rrsw(RATIO, "accepted = c * at(p, x)"),), shows_on=CHAIN),
    Fault("block-residual-unscaled", "M60 H1",
          "The residual of the block rule leaves out the acceptance of the prefix.", "traversal",
          (_rrsw(LEFT, "left = (p - q).clamp_(min=0)"),), shows_on=CHAIN),
    Fault("prefix-not-updated", "M61", "A rejected child leaves its parent's acceptance as it was.",
          "traversal", (_rrsw(SCALE, "c = c * 1"),), shows_on=FORK),
    Fault("block-recovers-from-target", "M63 M28", "After rejections the target gives the token.",
          "traversal", (_join(RECOVERED, "recovered = target"),), shows_on=CHAIN),
    Fault("block-child-zeroed", "M64 G2", "A rejected child is struck out instead of subtracted.",
          "traversal", (_rrsw(LEFT, "left = without(c * p, x)"),), shows_on=CHAIN),
)  # fmt: skip

OT_FAULTS = (
    Fault("rest-not-renormalised", "M71 G1",
          "The draft law without its top tokens is not made a law again.", "greedy",
          (_ot(REST, "residual_draft = torch.where(sampled >= 0, without(draft, fixed), 0.0)"),)),
    Fault("rest-keeps-top", "M72 G1", "The residual draft law still has the top tokens.", "greedy",
          (_ot(REST, REST.replace("without(draft, fixed)", "draft")),)),
    Fault("factor-not-divided", "M73", "The surplus is not divided by its mass.", "univer",
          (_ot("factor = ratio(1 - at_sampled, whole)", "factor = 1 - at_sampled"),),
          shows_on=SHARP3),
    Fault("top-by-ratio", "M74 G2", "The fixed children are accepted by p/q.", "greedy",
          (_ot("at(surplus, fixed) * factor",
                 "ratio(at(scaled, fixed), at(draft, fixed)).clamp(max=1) * factor"),)),
    Fault("z-without-rejection", "M75", "The mass of being rejected is missing in Z.", "univer",
          (_ot("whole = (1 - scale[:, None]) + total(surplus)[:, None]",
                 "whole = total(surplus)[:, None]"),), shows_on=CHAIN),
    Fault("sampled-unscaled", "M76 H1", "The sampled child's ratio ignores the prefix.", "univer",
          (_ot("ratio(at(scaled, sampled)", "ratio(at(target, sampled)"),), shows_on=CHAIN),
    Fault("surplus-unscaled", "M77 H1", "The surplus leaves out the acceptance of the prefix.",
          "univer", (_ot("surplus = (scaled - residual_draft)",
                           "surplus = (target - residual_draft)"),), shows_on=CHAIN),
    Fault("ot-fallback-is-prefix", "M78", "A node falls back with its own prefix acceptance.",
          "univer", (_join(FALLBACK, FALLBACK_IS_PREFIX),), shows_on=UNEVEN),
    Fault("ot-recovers-from-target", "M79 C2", "After rejections the target gives the token.",
          "univer", (_join(RECOVERED, "recovered = target"),)),
    Fault("child-keeps-residual", "C1", "A rejected child may still come as the next token.",
          "greedy", (_ot(OT_RESIDUAL, "residual=surplus * factor"),)),
    Fault("absent-strikes-last-id", "M38 J1", "An absent child strikes the last id out.", "greedy",
          (Patch("univer.rows", "ids = torch.where(tokens >= 0, tokens, some).clamp_(min=0)",
                 "ids = tokens % rows.shape[1]"),), shows_on=("small-support", "2x1", 4),
          reads_ids=True),
    Fault("absent-child-counted", "M38 H4 J2",
          "The draft mass of a sampled child that is absent is subtracted all the same.", "greedy",
          (_ot(REST, "residual_draft = normalise(without(draft, fixed))"),),
          shows_on=("sharp", "2x1/early", 4)),
    Fault("ot-on-twins", "M30", "The fixed child may be drawn again as the sampled one.", "greedy",
          (TWINS_ALLOWED,), child_outcomes=drafters.with_replacement, shows_on=SPARSE),
)  # fmt: skip
