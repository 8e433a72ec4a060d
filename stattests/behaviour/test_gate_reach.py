"""How far the gate looks: deep and wide trees, real vocabularies, old inputs, distant rows, chains.

Each fault here changes nothing that two levels, three children or a few tokens would show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from stattests import budget, independence, layers, purity, rao_blackwell, sequential
from stattests.cases import CHAINS, TREES, problem, users_own
from stattests.diagnosis import best_matches, smallest_problem
from stattests.engine import cycles
from stattests.streams import seed_globals, torch_generator
from stattests.subject import Subject, builtin, of_object
from stattests.verdict import CaseResult, ContractError, Reason, Run, Verdict
from stattests.wide import wide
from univer import VERIFIERS, InputError, StopLaw, Topology, stop_law, verify

RUN = Run(1e-11, 0.05, budget.ROOT_SEED)
Change = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def changed(name: str, change: Change, **attributes: Any) -> Subject:
    """A verifier that first changes (target rows, uniforms), given them, the tree and draft rows.

    With `randomness="own"` it fills the uniforms itself.
    """

    def decide(tree: Any, target: Any, draft: Any, *, uniforms: Any) -> Any:
        if uniforms is None:
            uniforms = torch.rand(len(target), target.shape[1] + 1, dtype=torch.float64)
        rows, numbers = change(tree, target.clone(), draft, uniforms.clone())
        return verify(name, tree, rows / rows.sum(-1, keepdim=True), draft, uniforms=numbers)

    attributes |= {"drafting": VERIFIERS[name].drafting, "verify": staticmethod(decide)}
    return of_object("changed", type("Thing", (), attributes)())


def unchanged(tree: Any, target: Any, draft: Any, uniforms: Any) -> tuple[Any, Any]:
    del tree, draft
    return target, uniforms


def sampled(subject: Subject, case: tuple[str, str, int]) -> CaseResult:
    toy = problem(*case)
    seed_globals("reach")
    pilot = [cycles(subject, toy, 4_000, torch_generator("reach/pilot"))]
    return sequential.l3(subject, toy, RUN, pilot)


def rows_of_depth_three_again(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
    del draft
    deep = [v for v, depth in enumerate(tree.topology.depths) if depth > 3]
    target[:, deep] = target[:, [tree.topology.path(v)[2] for v in deep]]
    return target, uniforms


def first_row_after_a_fourth_child(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
    del draft
    fourth = [children[3] for children in map(tree.topology.children, tree.topology.internal)
              if len(children) > 3]  # fmt: skip
    target[:, fourth] = target[:, :1]
    return target, uniforms


@pytest.mark.stat
@pytest.mark.parametrize(
    ("change", "topology"),
    [(rows_of_depth_three_again, "chain:7"), (first_row_after_a_fourth_child, "4x2")],
)
def test_deep_and_broad_trees_are_sampled(change: Change, topology: str) -> None:
    case = next(row for row in TREES.sampled if row[1] == topology)
    found = sampled(changed("greedy", change), case)
    assert (found.verdict, found.reason) in (
        (Verdict.BIASED, Reason.EVIDENCE),
        (Verdict.BIASED, Reason.FORBIDDEN_TOKEN),
    )
    assert sampled(changed("greedy", unchanged), case).verdict is Verdict.CERTIFIED


@pytest.mark.stat
def test_what_is_rare_at_each_prefix_shows_by_depth() -> None:
    """A greedier bonus after four accepted tokens: no prefix of four is registered."""

    def deepest_row_sharpened(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
        del draft
        deep = [v for v, depth in enumerate(tree.topology.depths) if depth >= 4]
        target[:, deep] **= 2
        return target, uniforms

    found = sampled(changed("univer", deepest_row_sharpened), ("near", "eagle", 8))
    assert (found.verdict, found.reason) == (Verdict.BIASED, Reason.EVIDENCE)
    assert "any prefix of" in found.findings[0].place


def half_the_ids_lost(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
    """After a full path only."""
    del draft
    leaves = list(tree.topology.leaves)
    target[:, leaves, target.shape[2] // 2 :] *= 1e-30
    return target, uniforms


def ids_above_40000_lost(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
    del tree, draft
    target[:, :, 40_000:] *= 1e-30
    return target, uniforms


def last_lanes_lost(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
    del tree, draft
    target[:, :, torch.arange(target.shape[2]) % 8 >= 6] *= 1e-30
    return target, uniforms


@pytest.mark.stat
@pytest.mark.parametrize(
    ("change", "case"),
    [
        (half_the_ids_lost, TREES.wide[1]),
        (ids_above_40000_lost, TREES.wide[2]),
        (last_lanes_lost, TREES.wide[0]),
    ],
    ids=["half", "above-40000", "lanes"],
)
def test_ids_lost_in_a_vocabulary_of_real_size(change: Change, case: Any) -> None:
    found = wide(changed("greedy", change), problem(*case), RUN)
    assert (found.verdict, found.layer) == (Verdict.BIASED, "wide")


@pytest.mark.stat
def test_running_sums_in_half_precision_let_too_few_tokens_out() -> None:
    """After an accepted token only; every order of the vocabulary loses evenly."""

    def coarse(tree: Any, target: Any, draft: Any, *, uniforms: Any) -> Any:
        out = verify("greedy", tree, target, draft, uniforms=uniforms)
        stop = out.accepted_nodes.amax(1).clamp(min=0)
        sums = target[torch.arange(len(target)), stop].half().cumsum(-1)
        drawn = torch.searchsorted(
            sums.float(), (uniforms[:, -1:].half() * sums[:, -1:]).float(), right=True
        )[:, 0].clamp(max=target.shape[2] - 1)
        allowed = target[torch.arange(len(target)), stop, drawn] > 0
        token = torch.where((out.num_accepted > 0) & allowed, drawn, out.next_token)
        tokens = out.tokens.scatter(1, out.num_accepted[:, None], token[:, None])
        return replace(out, next_token=token, tokens=tokens)

    subject = replace(builtin("greedy"), verify=coarse, stop_law=None)
    found = wide(subject, problem(*TREES.wide[0]), replace(RUN, delta=0.01))
    assert found.verdict is Verdict.BIASED
    assert found.extra["worst"] == "1 tokens on, tokens that came before"


@pytest.mark.stat
@pytest.mark.parametrize("case", [*TREES.wide, CHAINS.wide[0]], ids=str)
def test_right_verifiers_pass_on_real_vocabularies(case: Any) -> None:
    assert wide(builtin("univer"), problem(*case), RUN).verdict is Verdict.CERTIFIED


def one_half_for_both(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
    del tree, draft
    half = -(-len(uniforms) // 2)
    return target, uniforms[:half].repeat(2, 1)[: len(uniforms)]


def two_buffers() -> Change:
    """Numbers of a shape are made twice, then used in turn for ever."""
    made: dict[Any, Any] = {}
    calls = 0

    def change(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
        nonlocal calls
        del tree, draft
        calls += 1
        return target, made.setdefault((calls % 2, uniforms.shape), uniforms)

    return change


@pytest.mark.stat
@pytest.mark.parametrize("change", [one_half_for_both, two_buffers()], ids=["tiled", "buffers"])
def test_numbers_used_again_at_any_distance(change: Change) -> None:
    toy = problem("disjoint", "2x2", 6)
    subject = changed("rrsw", change, randomness="own")
    seed_globals("reach/lags")
    found = independence.lags(subject, toy, RUN)
    assert (found.verdict, found.reason) == (Verdict.BIASED, Reason.DEPENDENT_DRAWS)
    seed_globals("reach/lags")
    right = independence.lags(changed("rrsw", unchanged, randomness="own"), toy, RUN)
    assert right.verdict is Verdict.CERTIFIED


def test_inputs_of_earlier_calls_stay_what_they_are() -> None:
    kept: list[Any] = []

    def overwritten(tree: Any, target: Any, draft: Any, *, uniforms: Any) -> Any:
        out = verify("rrsw", tree, target, draft, uniforms=uniforms)
        kept.append(target)
        if len(kept) > 5:
            kept.pop(0).zero_()
        return out

    subject = replace(builtin("rrsw"), verify=overwritten)

    def many_calls() -> None:
        for _ in range(40):
            cycles(subject, problem("sharp", "2x2", 6), 4, torch_generator("reach/inputs"))

    with pytest.raises(ContractError) as broken:
        many_calls()
    assert broken.value.reason is Reason.CHANGED_INPUTS


@pytest.mark.parametrize("block", [32, 4096])
def test_rows_of_the_last_partial_block_interfere(block: int) -> None:
    def tail(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
        del tree, draft
        left = len(uniforms) % block
        if left and len(uniforms) > block:
            uniforms[-left:] = 0.5
        return target, uniforms

    with pytest.raises(ContractError) as broken:
        purity.contract(changed("greedy", tail), problem("sharp", "2x2", 6), RUN)
    assert broken.value.reason in (Reason.ROWS_INTERFERE, Reason.NOT_DETERMINISTIC)


@pytest.mark.stat
def test_a_stop_law_that_is_another_only_deep_down() -> None:
    def swapped(*arguments: Any) -> StopLaw:
        law = stop_law("univer", *arguments)
        stop = law.stop_probs.clone()
        stop[:, [-1, -2]] = stop[:, [-2, -1]]
        return replace(law, stop_probs=stop)

    subject = replace(builtin("univer"), stop_law=swapped)
    toy = problem("temperature-.5", "chain:5", 12)
    found = list(rao_blackwell.l2(subject, toy, RUN))
    assert any(result.verdict.failed for result in found)
    blind = replace(builtin("univer"), stop_law=partial(stop_law, "rrsw"))
    agreement = list(rao_blackwell.l2(blind, toy, RUN))[-1]
    assert (agreement.layer, agreement.reason) == ("L1", Reason.ANOTHER_LAW)


@pytest.mark.stat
def test_a_claimed_length_holds_across_draft_laws() -> None:
    def rejects(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
        del tree
        rows = target[:, :1].expand_as(target).clone()
        return rows, uniforms.clone().fill_(1 - 2**-53) if draft.numel() else uniforms

    toy = problem("near", "2x2", 6)
    shorter = changed("greedy", rejects, claims="traversal")
    found = layers.length(shorter, toy, RUN)
    assert found is not None
    assert (found.verdict, found.reason) == (Verdict.BROKEN, Reason.SHORTER)
    kept = layers.length(changed("univer", unchanged, claims="rrsw"), toy, RUN)
    assert kept is not None
    assert kept.verdict is Verdict.CERTIFIED
    assert "against rrsw" in kept.detail


def test_users_own_problems_of_chains_are_chains() -> None:
    for own in users_own(None, 50, max_arity=1):
        assert (own.topology, own.vocab) == (Topology.parse("chain:3"), 50)
    with pytest.raises(InputError, match="at most 1 a node; give one such as chain:4"):
        users_own("2x2", None, max_arity=1)
    with pytest.raises(InputError, match="topology: 'none' has no drafts to verify"):
        users_own("none", None)


@pytest.mark.stat
def test_a_verifier_of_chains_is_diagnosed_on_chains() -> None:
    def first_row(tree: Any, target: Any, draft: Any, uniforms: Any) -> Any:
        del draft
        assert all(layer.arity == 1 for layer in tree.topology.layers)
        target[:, 1:] = target[:, :1]
        return target, uniforms

    subject = changed("rrsw", first_row, chains_only=True)
    smallest = smallest_problem(subject)
    assert smallest is not None
    assert smallest.topology == Topology.parse("chain:1")
    assert best_matches(changed("rrsw", unchanged, chains_only=True), budget.ROOT_SEED) == []
    assert best_matches(subject, budget.ROOT_SEED) is not None


class Lazy:
    """An answer that falls apart when it is looked at."""

    @property
    def accepted_nodes(self) -> Any:
        """Never there."""
        raise KeyError("lazy")


def quits(*arguments: Any, **uniforms: Any) -> Any:
    del arguments, uniforms
    raise SystemExit(0)


def lazy(*arguments: Any, **uniforms: Any) -> Any:
    del arguments, uniforms
    return Lazy()


@pytest.mark.parametrize(
    ("answers", "reason", "says"),
    [
        (
            quits,
            Reason.RAISED,
            "quits raised SystemExit: 0 (stattests/behaviour/test_gate_reach.py:",
        ),
        (lazy, Reason.REFUSED_RETURN, "looking at the answer raised KeyError: 'lazy'"),
    ],
    ids=["quits", "lazy"],
)
def test_whatever_a_verifier_does_is_its_own(answers: Any, reason: Reason, says: str) -> None:
    toy = problem("sharp", "2x2", 6)
    with pytest.raises(ContractError) as broken:
        cycles(replace(builtin("rrsw"), verify=answers), toy, 4, torch_generator("reach/own"))
    assert broken.value.reason is reason
    assert broken.value.seen.startswith(says)
