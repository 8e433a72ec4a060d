"""Faults around the rules: rows, numbers, order, what is handed in and what is handed back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from stattests.faults import strangers
from stattests.faults.rules import (
    CHAIN,
    FALLBACK,
    NEAR,
    NEAR_CHAIN,
    OT_CHILDREN,
    OT_REJECTION,
    OT_RESIDUAL,
    RECOVERED,
    TARGET_ONLY,
    UNEVEN,
    bonus,
)
from stattests.faults.specimen import Fault
from stattests.faults.strangers import Around
from stattests.planting import Patch
from univer import VerifyOutput

_ot = partial(Patch, "univer.rules.ot")
_join = partial(Patch, "univer.composition")
_grid = partial(Patch, "univer.verifiers")
_draw = partial(Patch, "univer.sampling")
_table = partial(Patch, "univer.indices")

END = "return emit(tree, *decide_by_level(verifier, tree, target, draft, uniforms))"
TARGET_LAWS = "Laws(target_probs, renormalise)"
DRAFT_LAWS = "Laws(draft_probs, lambda rows: rows.double().contiguous())"
DRAW = "token = inverse_cdf(weights, eta[:, -1])"
COINS = "decide(topology, judged.acceptance, eta[:, :-1])"
ACCEPTANCES = "prefix_acceptance = ratio(accepted, left[..., :-1])"
PARENT = "max(topology.parents[v], 0)"
FIRST = "torch.tensor([topology.levels[d][0] for d in topology.depths])[stop]"
CONDITIONAL = '("conditional", True, _conditional_stop_probs, _conditional_stop_node)'
LOCAL = '("conditional", False, _local_stop_probs, _local_stop_node)'
AT = "torch.where(tokens >= 0, rows.gather(1, tokens.clamp(min=0)), 0.0)"
NEXT_ROWS = "target_probs[:, [0, *range(2, len(topology.parents)), -1]]"
COARSE = "(64 * eta[:, :-1]).floor() / 64"
ONE_COIN = (_grid(COINS, COINS.replace("[:, :-1]", "[:, 1:2].expand(-1, eta.shape[1] - 1)")),)

ROW_FAULTS = (
    Fault("bonus-from-draft", "M22", "The token after a full path is drawn from a draft law.",
          "rrsw", bonus("q.at(stop.clamp(max=q.rows.shape[1] - 1))"), shows_on=CHAIN),
    Fault("bonus-is-argmax", "M23 B10", "The token after a full path is the target's best.", "rrsw",
          bonus("(p.at(stop) >= p.at(stop).amax(-1, keepdim=True)).double()")),
    Fault("bonus-from-parent", "M45 M80 K5",
          "The token after a leaf is drawn from the law after its parent.", "univer",
          bonus("p.at(torch.tensor(topology.parents).clamp(min=0)[stop])"), shows_on=CHAIN),
    Fault("bonus-from-sibling", "G7", "The token after a leaf is drawn from the next row's law.",
          "rrsw", bonus("p.at((stop + 1).clamp(max=topology.num_nodes - 1))")),
    Fault("bonus-skips-temperature", "M10", "The bonus row is squared and renormalised.", "greedy",
          bonus("p.at(stop) ** 2")),
    Fault("rows-shifted", "G7 B11", "Below the root, a node has the next node's row.",
          "univer", (_grid(TARGET_LAWS, TARGET_LAWS.replace("target_probs", NEXT_ROWS)),),
          shows_on=UNEVEN),
    Fault("draft-row-of-parent", "B11 K5", "Children are judged by their grandparent's draft law.",
          "traversal", (_table("draft_rows[v]", f"draft_rows[{PARENT}]"),
                        _table("draft_rows.get(v, 0)", f"draft_rows.get({PARENT}, 0)")),
          shows_on=CHAIN),
    Fault("draft-ids-shifted", "M13 J5", "Draft laws are read one token id off.", "rrsw",
          (_grid(DRAFT_LAWS, DRAFT_LAWS.replace(".contiguous()", ".roll(1, -1)")),),
          reads_ids=True),
    Fault("residual-of-first-node", "C9", "A layer's nodes all recover from the first one's row.",
          "univer", (*bonus("p.at(stop)", f"p.at({FIRST})"),
                     _join("arities.index_select(0, stop)",
                           f"arities.index_select(0, stop := {FIRST})")),
          shows_on=("sharp", "2x2", 4)),
    Fault("recovered-from-target", "M28 C2", "After all children the target gives the token.",
          "rrsw", (_join(RECOVERED, "recovered = target"),)),
)  # fmt: skip

DECISION_FAULTS = (
    Fault("everything-accepted", "M19 B1 A11", "The uniform is always 0: all children pass.",
          "rrsw", (_join("passes = uniforms < acceptance", "passes = acceptance > 0"),)),
    Fault("first-unverified", "M20 B4", "The first draft is kept without a look.", "rrsw",
          (_join("acceptance[:, 0] = 1.0", "acceptance[:, :2] = 1.0"),)),
    Fault("not-conditioned", "M31 B9",
          "A child's mass is compared as it is, not given that those before it failed.", "greedy",
          (_join(ACCEPTANCES, "prefix_acceptance = accepted"),), shows_on=NEAR),
    Fault("scale-not-passed-down", "M55 H1", "Every layer is judged as if its node were certain.",
          "univer", (_join("set_columns(scale, slots, prefix_acceptance)", "pass"),),
          shows_on=CHAIN),
    Fault("no-fallback", "M78 H1", "Where the children failed their parent is given up as well.",
          "univer", (_join(FALLBACK, "set_columns(acceptance, nodes, 0 * beyond)"),),
          shows_on=CHAIN),
    Fault("parents-first", "H1", "Nodes are tried in level order: a parent before its children.",
          "univer", (_table("post_order=table(topology.post_order)",
                            "post_order=table(range(topology.num_nodes))"),), shows_on=CHAIN),
    Fault("last-passing-child", "G3 G4", "The last of the passing children is entered.", "greedy",
          (_join("tried & (tried.cumsum(-1) == 1)",
                 "tried & (tried.flip(-1).cumsum(-1).flip(-1) == 1)"),)),
    Fault("local-coins-5%-low", "M17", "Uniforms meet 1.05 times the acceptance.", "greedy",
          (_join("passes = uniforms < acceptance", "passes = uniforms < 1.05 * acceptance"),)),
)  # fmt: skip

NUMBER_FAULTS = (
    Fault("token-reuses-first-coin", "M33 D1 D2",
          "The next token is drawn with the number that decided node 1.", "rrsw",
          (_grid(DRAW, DRAW.replace("-1", "1")),), reads_ids=True),
    Fault("token-reuses-last-coin", "M33 D1",
          "The next token is drawn with the number of the child rejected last.", "univer",
          (_grid(DRAW, "token = inverse_cdf(weights, eta.gather(1, (stop + 1)[:, None])[:, 0])"),),
          shows_on=NEAR_CHAIN, reads_ids=True),
    Fault("one-coin-for-siblings", "M81 L8", "One number decides all nodes.", "rrsw", ONE_COIN,
          shows_on=("small-support", "3x1", 5)),
    Fault("one-coin-for-the-path", "M81", "One number decides every node of a chain.", "traversal",
          ONE_COIN, shows_on=NEAR_CHAIN),
    Fault("one-coin-for-the-tree", "M81", "One number decides every node of a tree.", "univer",
          ONE_COIN, shows_on=UNEVEN),
    Fault("coarse-numbers", "L5 L7", "Uniforms are rounded down to multiples of 1/64.", "greedy",
          (_grid(COINS, COINS.replace("eta[:, :-1]", COARSE)),)),
)  # fmt: skip

SCRIPTED_FAULTS = (
    Fault("local-accepts-at-equality", "M36 B2", "A uniform of 0 passes acceptance 0.", "rrsw",
          (_join("passes = uniforms < acceptance", "passes = uniforms <= acceptance"),),
          kind="scripted"),
    Fault("conditional-accepts-at-equality", "M36 B2", "A uniform of 0 passes an acceptance of 0.",
          "univer", (_join("columns(uniforms < acceptance,", "columns(uniforms <= acceptance,"),),
          kind="scripted", shows_on=CHAIN),
    Fault("cdf-edge-inclusive", "B2 L1", "A uniform of 0 draws the first id, whatever its weight.",
          "rrsw", (_draw("right=True", "right=False"),), kind="scripted",
          shows_on=("ties", "chain:2", 4)),
    Fault("cdf-falls-through", "M37 C11 L5",
          "Numbers are rounded to float32, and where none exceeds the last id is drawn.", "rrsw",
          (_draw("torch.minimum(uniforms * whole, torch.nextafter(whole, torch.zeros_like(whole)))",
                 "uniforms.float() * whole"),
           _draw("torch.where(whole > 0, found, -1)", "found.clamp(max=cumulative.shape[-1] - 1)")),
          kind="scripted"),
)  # fmt: skip

LENGTH_FAULTS = (
    Fault("block-flag-ignored", "M59 H3", "Claims traversal, runs token by token.", "traversal",
          (_join(CONDITIONAL, LOCAL),), kind="length", shows_on=NEAR_CHAIN),
    Fault("greedy-as-univer", "M59 H3", "Claims univer, passes nothing down: greedy.", "univer",
          (_join(CONDITIONAL, LOCAL),), kind="length", shows_on=NEAR_CHAIN),
    Fault("target-only-as-univer", "A9 E1", "Claims univer, accepts children by target mass.",
          "univer", TARGET_ONLY, kind="length", shows_on=NEAR_CHAIN),
    Fault("drafts-thrown-away", "F4", "Accepts nothing and draws every token from the target.",
          "greedy", (_ot(OT_CHILDREN, "child_acceptance=0 * at(scaled, children)"),
                     _ot(OT_RESIDUAL, "residual=scaled"),
                     _ot(OT_REJECTION, "rejection_mass=1 - scale")), kind="length"),
)  # fmt: skip


def _returns(name: str, ids: str, says: str, answer: Any) -> Fault:
    """A fault in what is handed back."""
    return Fault(name, ids, says, "univer", make=partial(Around, "univer", answer=answer),
                 kind="contract")  # fmt: skip


def _raises(out: VerifyOutput) -> None:
    raise IndexError(f"index {out.next_token.amax().item() + 1} is out of bounds")


CONTRACT_FAULTS = (
    Fault("zeroes-target-row", "A10 M35 C7", "The root's target row is zeroed in place.", "rrsw",
          (_grid(END, f"target_probs[:, 0] = 0\n    {END}"),), kind="contract"),
    Fault("halves-draft-rows", "A10 M35", "The draft laws are divided in place.", "univer",
          (_grid(END, f"draft_probs.div_(2)\n    {END}"),), kind="contract"),
    Fault("clamps-tokens", "M35", "Absent nodes of the caller's tree become token 0.", "greedy",
          (_grid(END, f"tree.tokens.clamp_(min=0)\n    {END}"),), kind="contract",
          shows_on=("small-support", "3x1", 5)),
    Fault("absent-child-accepted", "M38 J1 H4", "An absent child can be accepted.", "traversal",
          (_join("torch.where(children >= 0, masses.child_acceptance.view(children.shape), 0.0)",
                 "masses.child_acceptance.view(children.shape)"),
           Patch("univer.rows", AT, "rows.gather(1, tokens % rows.shape[1])")),
          kind="contract", shows_on=("small-support", "2x1", 4)),
    _returns("counts-one-more", "K1 K2 M32", "It counts one more accepted node than there are.",
             lambda out: replace(out, num_accepted=out.num_accepted + 1)),
    _returns("bonus-dropped", "K6 J7", "After a full path the next token is -1.",
             lambda out: replace(out, next_token=out.next_token.where(out.num_accepted == 0, -1))),
    _returns("id-beyond-vocabulary", "C6 L8", "The next token is an id that does not exist.",
             lambda out: replace(out, next_token=out.next_token + 1_000)),
    _returns("tokens-as-floats", "L2", "The next token is NaN.",
             lambda out: replace(out, next_token=out.next_token * float("nan"))),
    _returns("not-a-path", "K1", "The accepted nodes come in the wrong order.",
             lambda out: replace(out, accepted_nodes=out.accepted_nodes.clamp(min=0) + 1)),
    _returns("wrong-shape", "F5", "The answer has one axis too many.",
             lambda out: replace(out, next_token=out.next_token[:, None])),
    _returns("nothing", "C6", "It returns None.", lambda out: None),  # noqa: ARG005
    _returns("raises", "J6 F5", "It raises.", _raises),
    Fault("hangs", "L8", "It never answers.", "univer",
          make=partial(strangers.Hanging, "univer"), kind="contract"),
    Fault("late-change", "C7 G5", "It writes to the arrays of the call before.", "univer",
          make=partial(strangers.LateChange, "univer"), kind="contract"),
)  # fmt: skip


def _numbers(name: str, ids: str, says: str, numbers: Any, randomness: str = "uniforms") -> Fault:
    """A fault in the numbers that a verifier is run with."""
    return Fault(
        name, ids, says, "univer", kind="dependence",
        make=lambda: Around("univer", numbers=numbers(), randomness=randomness),
    )  # fmt: skip


DEPENDENCE_FAULTS = (
    Fault("draft-row-of-another-request", "M12 J3 C9", "Draft laws come from the batch's next row.",
          "rrsw",
          (_grid(DRAFT_LAWS, DRAFT_LAWS.replace("draft_probs", "draft_probs.roll(1, 0)")),),
          kind="dependence", shows_on=NEAR_CHAIN),
    Fault("target-row-of-another-request", "J3 D8", "The bonus law is another request's.", "univer",
          bonus("Laws(p.rows.roll(1, 0), p.law).at(stop)"),
          kind="dependence", shows_on=NEAR_CHAIN),
    Fault("stops-like-row-0", "J3", "All rows stop where the first one does.", "univer",
          (_grid("weights = next", "stop = stop[:1].expand(len(stop))\n        weights = next"),),
          kind="dependence", shows_on=CHAIN),
    _numbers("row-0s-numbers", "D6", "The whole batch is decided with the first row's numbers.",
             lambda: strangers.first_row),
    _numbers("rows-exchange-numbers", "D8", "Each row uses the numbers of another one.",
             lambda: strangers.next_row),
    _numbers("odd-batches-end-wrong", "J2 J3", "An odd batch's last row is decided like row 0.",
             lambda: strangers.odd_tail),
    _numbers("large-batches-accept-more", "J3 D8", "Batches of over a thousand rows accept more.",
             lambda: strangers.crowded),
    _numbers("reseeded", "D4 M34", "It seeds its generator anew in every call.",
             lambda: strangers.reseeded, "own"),
    _numbers("one-draw-a-batch", "D6", "Its rows share one draw.",
             lambda: strangers.one_draw, "own"),
    _numbers("uniforms-ignored", "D5 D7", "It draws its own numbers though it is given some.",
             lambda: strangers.fresh),
    _numbers("token-drawn-in-secret", "D5 D7", "It draws the next token with a number of its own.",
             lambda: strangers.secret_last),
    _numbers("stale-numbers", "D4", "It uses the numbers of the call before.", strangers.Stale),
    _numbers("tires", "D4 K4", "From some call on it accepts whatever it can.", strangers.Tiring),
    Fault("remembers-answers", "C7 K5", "It gives a tree's first answer whenever it comes again.",
          "univer", make=partial(strangers.Memo, "univer"), kind="dependence"),
)  # fmt: skip
