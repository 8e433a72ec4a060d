"""The gate behind drafters that stop early, and own-number subjects in batches of a few trees."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch

from stattests import gate
from stattests.behaviour.few_problems import few
from stattests.cases import CHAINS, TREES, Cases, cases_for, problem, users_own
from stattests.early_stops import cut_outcomes, cut_trees, keeps_all_or_none
from stattests.engine import cycles, draw, rename
from stattests.exact import drafted_trees
from stattests.faults import drafters
from stattests.faults.early import JUDGED
from stattests.faults.strangers import Around, StopsEarly, fresh
from stattests.gate import certify
from stattests.layers import lx
from stattests.planting import plant
from stattests.problems import Problem, make_problem
from stattests.small_batches import SIZES, small
from stattests.streams import seed_globals, torch_generator
from stattests.subject import Subject, builtin, of_object
from stattests.verdict import CaseResult, ContractError, Reason, Run, Verdict
from univer import DRAFTING, VERIFIERS, DraftTree, InputError, VerifyOutput, verify
from univer.indices import indices

EARLY_TREE = ("sharp", "2x2/early", 6)
ROWS = [row.name for row in fields(Cases) if row.name not in ("small", "default")]


@pytest.fixture(autouse=True)
def _few_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "cases_for", few)


def test_every_layer_has_drafts_that_stop_early_on_trees_and_on_chains() -> None:
    for cases in (TREES, CHAINS):
        for row in ROWS:
            early = [problem(*case) for case in getattr(cases, row) if problem(*case).stops]
            assert early, row
    deep = [problem(*case).topology.depth for case in CHAINS.sampled if problem(*case).stops]
    assert max(deep) >= 5
    arities = [problem(*case).topology.max_arity for case in TREES.sampled if problem(*case).stops]
    assert {1, 3} <= set(arities)


@pytest.mark.parametrize("drafting", sorted(DRAFTING))
def test_drawn_and_listed_trees_stop_alike(drafting: str) -> None:
    """Every drawn tree is listed, and every likely one of the listed is drawn."""
    toy = make_problem("near", f"{DRAFTING[drafting].max_arity or 3}x1/early", 5)
    subject, generator = Subject("mine", drafting, verify), torch_generator(f"stop/{drafting}")
    drawn = draw(subject, toy, 4096, generator, torch.arange(5))
    tokens, chances = drafted_trees(toy, drafting)
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert len(set(map(tuple, tokens.tolist()))) == len(tokens)
    listed = dict(zip(map(tuple, tokens.tolist()), chances, strict=True))
    seen = set(map(tuple, drawn.tokens.tolist()))
    assert seen <= set(listed)
    assert {tree for tree, chance in listed.items() if chance > 0.01} <= seen
    assert listed[(0, *[-1] * (toy.topology.num_nodes - 1))] > 0.1


def test_where_a_drafter_stops_does_not_depend_on_what_it_leaves_out() -> None:
    """Whatever a node's law, it keeps k children with one chance, and these have the law of k."""
    for family in ("near", "peaked-draft", "disjoint"):
        law = make_problem(family, "3x1", 5).draft[0]
        listed = cut_outcomes(DRAFTING["with_replacement"].outcomes, "with_replacement", 0.5)(
            law, 3
        )
        for kept, share in ((0, 1 / 6), (1, 1 / 6), (2, 1 / 6), (3, 1 / 2)):
            some = [(c, p) for c, p in listed if sum(x >= 0 for x in c) == kept]
            assert sum(p for _, p in some) == pytest.approx(share, abs=1e-12)
            for children, chance in some:
                exact = np.prod([law[x] for x in children[:kept]])
                assert chance == pytest.approx(share * exact, abs=1e-12)


def test_pairs_and_own_drafts_are_kept_whole_or_not_at_all() -> None:
    assert keeps_all_or_none(drafters.numpy_top_residual)
    assert [name for name in DRAFTING if keeps_all_or_none(name)] == ["spechub_pairs"]
    toy = problem("near", "2x2/early", 6)
    for drafting in ("spechub_pairs", drafters.numpy_top_residual):
        subject = Subject("mine", drafting, verify)
        drawn = draw(subject, toy, 512, torch_generator("whole"), rename(toy, torch_generator("n")))
        children = drawn.tokens[:, 1:3]
        assert ((children >= 0).all(1) | (children < 0).all(1)).all()
        assert (children < 0).all(1).any()


def test_a_cut_tree_has_no_orphans() -> None:
    toy = problem("near", "eagle", 8)
    drawn = draw(builtin("rrsw"), toy, 512, torch_generator("orphans"), torch.arange(8))
    cut = cut_trees(toy.topology, drawn.tokens, "without_replacement", 0.5, torch_generator("cut"))
    above = cut[:, indices(toy.topology, cut.device).parents]
    assert not ((cut >= 0) & (above < 0)).any()
    assert (cut >= 0).sum() < (drawn.tokens >= 0).sum()


@pytest.mark.stat
@pytest.mark.parametrize("name", ["token_verification", "block_verification", "spechub"])
def test_rows_behind_a_drafter_that_stops_early_are_certified(name: str) -> None:
    report = certify(of_object("mine", StopsEarly(name)), asked="smoke", diagnose=False)
    assert report.verdict is Verdict.CERTIFIED, report.detail
    assert "drafts that stop early" in report.guarantee


@dataclass
class NeedsFull(Around):
    """A verifier that fails on an empty slot, with what it declares of that."""

    full_trees: Any = False
    max_arity: int | None = None

    def verify(
        self, tree: DraftTree, target_probs: Any, draft_probs: Any, *, uniforms: Any
    ) -> VerifyOutput:
        """The base's answer."""
        assert (tree.tokens >= 0).all(), "an empty slot"
        return verify(self.base, tree, target_probs, draft_probs, uniforms=uniforms)


@pytest.mark.stat
@pytest.mark.parametrize(("name", "max_arity"), [("traversal", None), ("block_verification", 1)])
def test_a_verifier_of_full_trees_says_so_and_its_verdict_does(
    name: str, max_arity: int | None
) -> None:
    broken = certify(of_object("mine", NeedsFull(name, max_arity=max_arity)), asked="smoke")
    assert (broken.verdict, broken.reason) == (Verdict.BROKEN, Reason.RAISED)
    right = NeedsFull(name, full_trees=True, max_arity=max_arity)
    report = certify(of_object("mine", right), asked="smoke", diagnose=False)
    assert report.verdict is Verdict.CERTIFIED, report.detail
    assert "on full trees only" in report.guarantee


def test_full_trees_leave_no_layer_empty() -> None:
    for max_arity in (None, 1, 2, 3):
        cases = cases_for(max_arity, full_trees=True)
        for row in ROWS:
            models = [problem(*case) for case in getattr(cases, row)]
            assert models, row
            assert all(model.full for model in models)
        assert not any(shape.endswith("/early") for shape in cases.small)
    assert all(model.full for model in users_own("3x2", None, full_trees=True))


def test_full_trees_is_true_or_false() -> None:
    with pytest.raises(InputError, match="its full_trees is 'yes'; expected True or False"):
        of_object("mine", NeedsFull("rrsw", full_trees="yes"))


@dataclass
class Alone(Around):
    """Draws its own numbers; in a batch of `size` it accepts whatever it can."""

    size: int = 1
    raises: bool = False

    def verify(
        self, tree: DraftTree, target_probs: Any, draft_probs: Any, *, uniforms: Any
    ) -> VerifyOutput:
        """The base's answer, but for batches of that size."""
        numbers = self.numbers(tree, uniforms)
        if len(tree.tokens) == self.size:
            if self.raises:
                raise IndexError("a batch of that size")
            numbers = torch.cat([numbers[:, :-1] * 0, numbers[:, -1:]], 1)
        return verify(self.base, tree, target_probs, draft_probs, uniforms=numbers)


def in_small_batches(thing: Any) -> list[CaseResult]:
    """What the layer of small batches says of a subject with its own numbers."""
    subject = of_object("mine", thing)
    toy, run = problem(*EARLY_TREE), Run(1e-12, 0.05, 0)
    seed_globals("small", 0)
    generator = torch_generator("small/pilot")
    return list(small(subject, toy, run, [cycles(subject, toy, 4096, generator)]))


@pytest.mark.stat
@pytest.mark.parametrize("size", SIZES)
def test_own_numbers_are_judged_in_batches_of_a_few_trees(size: int) -> None:
    results = in_small_batches(Alone("univer", numbers=fresh, randomness="own", size=size))
    assert [r.case.endswith(f"batches of {size}") for r in results] == [
        r.verdict is Verdict.BIASED for r in results
    ]


def test_own_numbers_that_raise_on_a_single_row_are_broken() -> None:
    with pytest.raises(ContractError, match="raised IndexError: a batch of that size"):
        in_small_batches(Alone("univer", numbers=fresh, randomness="own", raises=True))


@pytest.mark.stat
def test_the_gate_asks_own_numbers_for_small_batches_and_passes_what_is_right() -> None:
    right = Around("univer", numbers=fresh, randomness="own")
    report = certify(of_object("mine", right), asked="smoke", diagnose=False)
    assert report.verdict is Verdict.CERTIFIED, report.detail
    batches = [r for r in report.results if r.layer == "small"]
    assert [r.case.rsplit(" ", 1)[1] for r in batches] == [str(size) for size in SIZES]
    assert all("/early/" in r.case for r in batches)


def test_an_early_problem_reads_back_from_json() -> None:
    toy = problem("sharp", "2x1/early", 4)
    again = Problem.from_json(toy.to_json())
    assert (again.stops, again.name) == (toy.stops, toy.name)
    assert np.array_equal(again.draft, toy.draft)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_with_the_mend_taken_out_the_gate_is_red(name: str) -> None:
    """Rules that answer without children as well are right either way; the others are caught."""
    broken = plant(*JUDGED)["univer.verifiers"]
    row = VERIFIERS[name]
    subject = Subject(
        name, row.drafting, lambda *parts, **named: broken.verify(name, *parts, **named)
    )
    toy = problem("sharp", f"{'chain:1' if row.max_arity == 1 else '2x1'}/early", 4)
    (found,) = lx(subject, toy, Run(1e-12, 0.05, 0))
    asked = row.allocation in ("single_draft", "spechub")
    assert (found.verdict is Verdict.BIASED) == asked
