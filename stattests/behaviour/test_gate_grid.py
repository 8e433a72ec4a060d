"""The gate and the whole table of verifiers: every row is certified, on trees that it takes.

Here by the exact layers, on a few cases a row; `make gate` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stattests import budget, every, layers, purity, rao_blackwell
from stattests.cases import CHAINS, TREES, cases_for, narrowed, problem, problems, users_own
from stattests.diagnosis import best_matches
from stattests.exact import MAX_TREES, count_trees
from stattests.faults import FAULTS
from stattests.faults import subject as planted
from stattests.problems import RAGGED
from stattests.subject import builtin, of_object, of_verifier
from stattests.verdict import CaseResult, Run, Verdict
from univer import DRAFTING, VERIFIERS, InputError, Topology, Verifier, verify
from univer.allocation import ALLOCATION

RUN = Run(1e-12, 0.4, budget.ROOT_SEED)
TOYS = (
    ("sharp", "2x1", 4),
    ("ties", "2x1", 4),
    ("small-support", "[[0],[1],[1,0]]", 4),
    ("dirichlet-.3", "[[0],[1],[1,0]]", 4),  # nodes of two arities in one tree
)
CHAIN_TOYS = tuple((family, "chain:2", 4) for family in ("sharp", "small-support", "dirichlet-.3"))


def exact_results(name: str) -> Iterator[CaseResult | None]:
    subject = builtin(name)
    toys = problems(CHAIN_TOYS if subject.max_arity == 1 else TOYS)
    for toy in toys:
        yield layers.l0(subject, toy, RUN)
        yield purity.edges(subject, toy, RUN)
    for toy in toys[:1] + toys[-1:]:
        yield from layers.lx(subject, toy, RUN)
    deep = narrowed(RAGGED, subject.max_arity or 3)
    yield from rao_blackwell.l2(subject, problem("dirichlet-.3", deep, 8), RUN)


@pytest.mark.stat
@pytest.mark.parametrize("name", VERIFIERS)
def test_every_row_is_certified_exactly(name: str) -> None:
    """False alarms of L2 and its L1: 1e-12 each."""
    found = list(exact_results(name))
    assert None not in found
    assert {result.layer for result in found if result} == {"L0", "edges", "Lx", "L1", "L2"}
    for result in found:
        assert result is not None
        assert result.verdict is Verdict.CERTIFIED, (result.layer, result.case, result.detail)


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_row_takes_the_trees_that_its_rule_and_draft_law_take(name: str) -> None:
    row, subject = VERIFIERS[name], builtin(name)
    assert (subject.drafting_name, subject.claims) == (row.drafting, name)
    assert subject.max_arity == row.max_arity
    for rows in (cases_for(row.max_arity).sampled, cases_for(row.max_arity).wide):
        for case in rows:
            arity = problem(*case).topology.max_arity
            assert row.max_arity is None or arity <= row.max_arity


@pytest.mark.parametrize("composition", ["local", "conditional"])
def test_optimal_rule_is_certified_on_a_tree_of_several_arities(composition: str) -> None:
    """It asks how many children were drawn, also where only the next token is left to draw."""
    optimal = of_verifier("optimal", Verifier("with_replacement", "optimal", composition))
    for result in layers.lx(optimal, problem(*TOYS[-1]), RUN):
        assert result.verdict is Verdict.CERTIFIED, result.detail


def test_trees_are_cut_to_the_first_children() -> None:
    assert narrowed("4x2", 2) == "2x2"
    assert narrowed("eagle", 2) == "eagle-2"
    assert narrowed("chain:7", 2) == "chain:7"
    assert narrowed("[[0],[1],[1,0]]", 2) == "[[0],[1],[1,0]]"
    toy = problem("near", narrowed(RAGGED, 2), 6)
    assert toy.name == "near/ragged-2/V6"
    paths = [[0], [1], [0, 0], [1, 0], [1, 1], [1, 0, 0], [1, 0, 1]]
    assert toy.topology == Topology.from_paths(paths)
    assert problem("near", "eagle-3", 8).topology.num_nodes < 26


@pytest.mark.parametrize("max_arity", [2, 3])
def test_narrower_cases_still_have_all_that_is_hard(max_arity: int) -> None:
    cases = cases_for(max_arity)
    for rows in (cases.sampled, cases.exact, cases.integrated, cases.probed + cases.probed_batched):
        assert len(set(rows)) == len(rows)
        names = [model.name for model in problems(rows)]
        assert len(set(names)) == len(names)
    models = problems(cases.sampled)
    assert max(model.topology.max_arity for model in models) == max_arity
    families = {model.family for model in models}
    assert families == {family for family, _, _ in TREES.sampled}
    shapes = [model.topology for model in models]
    assert max(shape.depth for shape in shapes) == 7
    assert any(min(shape.leaves) < max(shape.internal) for shape in shapes)
    assert any(len({layer.arity for layer in shape.layers}) > 1 for shape in shapes)
    assert cases_for(None) == TREES
    assert cases_for(1) == CHAINS


@pytest.mark.parametrize("drafting", DRAFTING)
def test_every_draft_law_has_forks_below_forks_that_can_be_listed(drafting: str) -> None:
    def few(case: tuple[str, str, int]) -> bool:
        forks = [layer for layer in problem(*case).topology.layers if layer.arity == 2]
        return len(forks) > 1 and count_trees(problem(*case), drafting) <= MAX_TREES

    cases = cases_for(DRAFTING[drafting].max_arity)
    assert {family for family, *_ in filter(few, cases.exact)} >= {"sharp", "ties", "near"}
    assert any(map(few, cases.probed_batched))


def test_users_own_tree_may_not_be_wider_than_the_verifier_takes() -> None:
    own = users_own("2x3", None, max_arity=2)
    assert [problem.topology.name for problem in own] == ["2x3"] * 3
    assert [problem.stops > 0 for problem in own] == [False, False, True]
    assert all(problem.full for problem in users_own("2x3", None, 2, full_trees=True))
    says = "'eagle' has nodes with 4 children, but this verifier takes at most 2 a node"
    with pytest.raises(InputError, match=f"{says}; give one such as 2x3"):
        users_own("eagle", None, max_arity=2)


def thing(**attributes: Any) -> Any:
    given = {"drafting": "with_replacement", "verify": staticmethod(verify), **attributes}
    return type("Thing", (), given)()


def test_what_strangers_declare_about_their_trees() -> None:
    assert of_object("mine", thing()).max_arity is None
    assert of_object("mine", thing(max_arity=2)).max_arity == 2
    assert of_object("mine", thing(chains_only=True)).max_arity == 1
    assert of_object("mine", thing(drafting="spechub_pairs", max_arity=2)).max_arity == 2
    for wrong in (0, True, "2", 2.0):
        with pytest.raises(InputError, match=r"max_arity is .*; expected a whole number >= 1"):
            of_object("mine", thing(max_arity=wrong))
    with pytest.raises(
        InputError, match="'spechub_pairs' takes at most 2 children a node; declare"
    ):
        of_object("mine", thing(drafting="spechub_pairs"))
    with pytest.raises(InputError, match=r"'block_verification', which it claims, .* chains_only"):
        of_object("mine", thing(claims="block_verification", max_arity=2))


@pytest.mark.parametrize("drafting", DRAFTING)
def test_strangers_may_draft_by_every_law(drafting: str) -> None:
    most = DRAFTING[drafting].max_arity
    assert of_object("mine", thing(drafting=drafting, max_arity=most)).drafting_name == drafting


@pytest.mark.parametrize("rule", sorted({row.allocation for row in VERIFIERS.values()}))
def test_two_faults_or_more_are_planted_in_every_rule(rule: str) -> None:
    assert rule in ALLOCATION
    assert sum(VERIFIERS[fault.base].allocation == rule for fault in FAULTS) >= 2


@pytest.mark.stat
@pytest.mark.parametrize("name", ["hub-given-twice", "draft-as-if-certain", "divisor-of-one"])
def test_faults_of_the_grid_are_named_by_the_diagnosis(name: str) -> None:
    """The planted fault explains what it emits better than any other."""
    fault = next(fault for fault in FAULTS if fault.name == name)
    subject = planted(fault)
    subject.max_arity = VERIFIERS[fault.base].max_arity
    assert best_matches(subject, budget.ROOT_SEED)[0].name == name


def test_every_verifier_runs_and_is_shown_whatever_the_others_gave() -> None:
    def certify(name: str) -> every.Ended:
        return name, int(name in "bd"), f"output of {name}"

    ended = list(every.all_ended(certify, "abcde", 2))
    assert sorted(ended) == [(name, int(name in "bd"), f"output of {name}") for name in "abcde"]


def test_make_gate_takes_its_list_from_the_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def certified(worst: int) -> Callable[[str, tuple[str, ...]], every.Ended]:
        def run(name: str, options: tuple[str, ...]) -> every.Ended:
            asked.append((name, options))
            return name, worst * (name == "k_seq"), f"table of {name}"

        return run

    for worst in (0, 3):
        monkeypatch.setattr(every, "certified", certified(worst))
        with pytest.raises(SystemExit) as ended:
            every.main(["--budget", "smoke", "--seed", "3"], prog_name="every")
        assert ended.value.code == int(worst > 0)
    assert sorted({name for name, _ in asked}) == sorted(VERIFIERS)
    assert {options for _, options in asked} == {("--budget", "smoke", "--seed", "3")}
    out = capfd.readouterr().out
    assert out.count("table of rrs\n") == 2
    assert "not certified: k_seq\n" in out
    recipe = Path(__file__).parents[2].joinpath("Makefile").read_text(encoding="utf-8")
    assert "stattests.every --budget $(BUDGET) $(ARGS)" in recipe
