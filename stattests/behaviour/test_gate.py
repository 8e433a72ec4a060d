"""One verdict a subject: certified, biased, broken, inconclusive; replayed bit for bit.

What is not about the registered problems runs on few of them.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from typing import Any
from xml.etree import ElementTree

import pytest

from stattests import budget, gate
from stattests.adapters.flat_batch import PlainFlatBatch
from stattests.adapters.hugging_face import SpeculativeSampling
from stattests.adapters.tree_rules import ArgmaxMatching, TargetOnly
from stattests.behaviour.few_problems import few
from stattests.cases import CHAINS, TREES, problem, problems
from stattests.cli import junit_xml, replay_command, write_failures
from stattests.faults import FAULTS, LOOK_ALIKES
from stattests.faults import subject as specimen_subject
from stattests.gate import Report, certify
from stattests.problems import Problem
from stattests.subject import builtin, load, of_object
from stattests.verdict import Reason, Run, Verdict
from stattests.wide import wide
from univer import InputError, stop_law, verify


def fault(name: str) -> Any:
    return specimen_subject(next(fault for fault in FAULTS if fault.name == name))


@pytest.fixture(scope="module")
def certified() -> Report:
    return certify(builtin("univer"), asked="smoke")


@pytest.fixture(scope="module")
def biased() -> Report:
    return certify(fault("ot-fallback-is-prefix"), asked="smoke")


@pytest.fixture
def few_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "cases_for", few)


@pytest.mark.stat
def test_a_correct_verifier_is_certified_with_its_guarantee(certified: Report) -> None:
    assert certified.verdict is Verdict.CERTIFIED
    layers = {result.layer for result in certified.results}
    assert layers == {
        *("contract", "edges", "L0", "L1", "Lx", "L2", "L3", "wide", "pairs", "lags", "length")
    }
    assert all(r.n >= r.n_required for r in certified.results if r.layer == "L3")
    assert "no TV >= 0.05" in certified.guarantee
    assert "99.9 % power, false alarms <= 1e-09 a run" in certified.guarantee


@pytest.mark.stat
def test_a_bias_is_named_shrunk_and_made_a_test(biased: Report) -> None:
    assert biased.verdict is Verdict.BIASED
    assert biased.reason is Reason.PROBED_BIAS
    assert biased.guarantee == "nothing was certified"
    assert biased.matches[0].name == "ot-fallback-is-prefix"
    assert biased.matches[0].margin > 1000
    assert biased.smallest is not None
    toy = Problem.from_json(biased.smallest)
    assert (toy.vocab, toy.topology.num_nodes) == (3, 3)
    namespace: dict[str, Any] = {}
    exec(compile(str(biased.pytest), "pasted", "exec"), namespace)
    namespace["load"] = lambda spec: fault(spec)
    with pytest.raises(AssertionError):
        namespace["test_output_law_is_the_targets"]()
    namespace["load"] = lambda _: builtin("univer")
    namespace["test_output_law_is_the_targets"]()
    assert biased.results[0].findings == ()
    worst = next(r for r in biased.results if r.verdict is Verdict.BIASED).findings[0]
    assert worst.tv > 0


@pytest.mark.stat
def test_a_vocabulary_of_real_size_shows_what_toys_do_not() -> None:
    """A floor under the residual: TV 1.4e-5 with four tokens (docs/FAULTS_CAUGHT.md)."""
    row = next(row for row in FAULTS if row.name == "residual-floor-1e-5")
    subject = specimen_subject(row)
    found = wide(subject, problems(TREES.wide)[0], Run(1e-12, 0.05, 1))
    assert (found.verdict, found.layer) == (Verdict.BIASED, "wide")


@pytest.mark.stat
@pytest.mark.usefixtures("few_problems")
def test_a_seed_replays_the_verdict_bit_for_bit() -> None:
    first, again, other = (
        certify(fault("ot-fallback-is-prefix"), asked="smoke", seed=seed, diagnose=False)
        for seed in (budget.ROOT_SEED, budget.ROOT_SEED, 7)
    )
    assert [r.to_json() for r in again.results] == [r.to_json() for r in first.results]
    assert other.verdict is first.verdict is Verdict.BIASED
    assert [r.log10_e for r in other.results] != [r.log10_e for r in first.results]


@pytest.mark.stat
@pytest.mark.usefixtures("few_problems")
def test_a_seed_replays_randomness_of_ones_own_too() -> None:
    row = next(row for row in LOOK_ALIKES if row.name == "own-numbers")
    one, two = (certify(specimen_subject(row), asked="smoke") for _ in range(2))
    assert one.verdict is Verdict.CERTIFIED
    assert [r.to_json() for r in one.results] == [r.to_json() for r in two.results]


def test_reports_can_be_written(biased: Report, tmp_path: Any) -> None:
    data = json.loads(json.dumps(biased.to_json()))
    assert data["exit_code"] == 1
    suite = ElementTree.fromstring(junit_xml(biased))
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"])
    replay = replay_command(biased, "2x3", 9)
    assert replay == (
        f"univer certify ot-fallback-is-prefix --budget smoke --seed {budget.ROOT_SEED}"
        " --topology '2x3' --vocab 9"
    )
    files = write_failures(biased, replay, tmp_path / "failures")
    kept = json.loads(files[0].read_text())
    assert kept["replay"] == replay
    assert Problem.from_json(kept["smallest_problem"]).to_json() == biased.smallest
    sampled = next(f for f in files if f.name.startswith("L3"))
    result = json.loads(sampled.read_text())["result"]
    assert Problem.from_json(result["extra"]["problem"]).name == result["case"]
    n, crossing = result["extra"]["path"][-1]
    assert (n, crossing) == (result["n"], result["log10_e"])
    assert all(sum(row["counts"]) == row["visits"] for row in result["findings"])
    p_values = [row["p_value"] for row in result["findings"] if row["p_value"] is not None]
    assert p_values == sorted(p_values)


def test_a_problem_reads_back_bit_for_bit() -> None:
    for family, topology, vocab in TREES.sampled:
        model = problem(family, topology, vocab)
        again = Problem.from_json(json.loads(json.dumps(model.to_json())))
        assert (again.target == model.target).all()
        assert (again.draft == model.draft).all()
        assert again.topology == model.topology
        assert (again.target_law((1, 2)) == model.target_law((1, 2))).all()


def test_registered_problems_have_between_them_what_they_must() -> None:
    models = problems(TREES.sampled)
    shapes = [model.topology for model in models]
    assert all(model.vocab >= max(layer.arity for layer in model.topology.layers) + 2
               for model in models)  # fmt: skip
    assert any(model.vocab > 8 for model in models)
    assert any(shape.depth >= 3 for shape in shapes)
    assert any(layer.arity == 1 for shape in shapes for layer in shape.layers)
    assert any(min(shape.leaves) < max(shape.internal) for shape in shapes)
    assert any((model.target == 0).any() for model in models)
    assert any((model.draft == 0).any() for model in models)
    families = {family for family, _, _ in TREES.sampled}
    assert {"ties", "small-support", "temperature-.5", "top-k", "top-p", "equal"} <= families
    for cases in (TREES, CHAINS):
        for rows in (cases.sampled, cases.exact, cases.probed + cases.probed_batched):
            names = [model.name for model in problems(rows)]
            assert len(set(names)) == len(names)
    for rows in (CHAINS.sampled, CHAINS.exact, CHAINS.integrated, CHAINS.probed, CHAINS.wide):
        assert all(problem(*row).topology.max_arity <= 1 for row in rows)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", Reason.RAISED),
        ("tokens-as-floats", Reason.REFUSED_RETURN),
        ("zeroes-target-row", Reason.CHANGED_INPUTS),
        ("uniforms-ignored", Reason.NOT_DETERMINISTIC),
        ("draft-row-of-another-request", Reason.ROWS_INTERFERE),
        ("tires", Reason.NOT_DETERMINISTIC),
    ],
)
def test_a_broken_contract_is_never_called_a_bias(name: str, reason: Reason) -> None:
    report = certify(fault(name), asked="smoke")
    assert (report.verdict, report.reason) == (Verdict.BROKEN, reason)
    assert report.verdict.value == 2


@pytest.mark.usefixtures("few_problems")
def test_a_lost_length_breaks_the_claim_and_only_that() -> None:
    report = certify(fault("greedy-as-univer"), asked="smoke")
    assert (report.verdict, report.reason) == (Verdict.BROKEN, Reason.SHORTER)


@pytest.mark.stat
def test_reseeding_every_call_is_dependence() -> None:
    report = certify(fault("reseeded"), asked="smoke", diagnose=False)
    assert report.verdict is Verdict.BIASED


class Slow(TargetOnly):
    """A verifier that takes some seconds a tree, on a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.trees = seconds, 0

    def verify(self, *arguments: Any, uniforms: Any) -> tuple[list[int], int]:
        """The same answer, later."""
        self.trees += 1
        return super().verify(*arguments, uniforms=uniforms)

    def clock(self) -> float:
        """The seconds so far."""
        return self.seconds * self.trees


@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize(("seconds", "fits"), [(2e-4, "smoke"), (2e-5, "pr"), (0.0, "nightly")])
def test_the_largest_budget_that_fits_the_time_is_planned(seconds: float, fits: str) -> None:
    slow = Slow(seconds)
    subject, rows = of_object("slow", slow), few(None)
    run = Run(budget.ALPHA_RUN, 0.05, budget.ROOT_SEED, clock=slow.clock)
    assert gate._plan(subject, rows, "nightly", [], run, max_minutes=1).budget == fits


@pytest.mark.usefixtures("few_problems")
def test_a_budget_that_does_not_fit_runs_a_smaller_one_and_says_so() -> None:
    slow = Slow(2e-4)
    subject = of_object("slow", slow)
    report = certify(subject, asked="nightly", max_minutes=1, clock=slow.clock)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.budget == "smoke"
    assert "budget nightly does not fit" in report.detail


@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("minutes", [1e-4, 0.5])
def test_a_run_whose_time_is_over_ends_without_a_verdict(minutes: float) -> None:
    """A tick at every look at the clock: the second time is over after some layers."""
    ticks = count()
    report = certify(
        builtin("univer"), asked="smoke", max_minutes=minutes, clock=lambda: float(next(ticks))
    )
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME)


@pytest.mark.stat
@pytest.mark.parametrize("adapter", [SpeculativeSampling, PlainFlatBatch])
def test_correct_strangers_are_certified(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if adapter is PlainFlatBatch:  # a loop in Python: minutes on all problems
        monkeypatch.setattr(gate, "cases_for", few)
    report = certify(of_object(adapter.__name__, adapter()), asked="smoke")
    assert report.verdict is Verdict.CERTIFIED, report.detail


@pytest.mark.stat
def test_argmax_matching_is_biased() -> None:
    report = certify(of_object("argmax", ArgmaxMatching()), asked="smoke", diagnose=False)
    assert report.verdict is Verdict.BIASED


@pytest.mark.usefixtures("few_problems")
def test_users_own_tree_and_vocabulary_are_added() -> None:
    box = fault("everything-accepted")
    report = certify(box, asked="smoke", topology="eagle", vocab=40, diagnose=False)
    assert any(result.case == "near/eagle/V40" for result in report.results)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"asked": "huge"}, "budget: 'huge' is unknown; choose one of smoke, pr, nightly"),
        ({"max_minutes": 0}, "max-minutes: expected a number > 0, got 0"),
        ({"topology": "9y9"}, "topology: cannot read '9y9'"),
        ({"topology": "3x1", "vocab": 4}, "vocab: 4 is too small for 3x1; expected at least 5"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        certify(builtin("univer"), **options)


class Protocol:
    """A stranger's verifier that is right."""

    drafting: Any = "top_residual"
    verify: Any = staticmethod(partial(verify, "univer"))


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("verify", None, "it has no verify"),
        ("drafting", "beam", "its drafting is 'beam'; expected one of"),
        ("randomness", "mine", "its randomness is 'mine'"),
        ("claims", "medusa", "it claims 'medusa'; known are"),
        ("stop_law", 3, "its stop_law is not callable"),
    ],
)
def test_what_is_no_verifier_is_named(attribute: str, value: Any, says: str) -> None:
    thing = Protocol()
    setattr(thing, attribute, value)
    with pytest.raises(InputError, match=f"^mine: {says}"):
        of_object("mine", thing)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("medusa", "verifier: 'medusa' is unknown; expected one of rrsw"),
        ("no.such:thing", "cannot load 'no.such:thing': ModuleNotFoundError"),
        ("stattests.adapters.tree_rules:Nothing", "AttributeError"),
        ("math:pi", "it has no verify"),
    ],
)
def test_what_cannot_be_loaded_is_named(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load(spec)


@pytest.mark.stat
@pytest.mark.usefixtures("few_problems")
def test_a_stop_law_of_a_stranger_is_judged_exactly_as_well() -> None:
    class Claiming(Protocol):
        def stop_law(self, tree: Any, target: Any, draft: Any) -> Any:
            return stop_law(self.law_of, tree, target, draft)

        law_of = "univer"

    stranger = Claiming()
    report = certify(of_object("claiming", stranger), asked="smoke")
    assert report.verdict is Verdict.CERTIFIED
    assert {r.layer for r in report.results} >= {"L0", "L1", "Lx", "L2", "L3"}
    stranger.law_of = "greedy"  # lossless as well, but not the law of its verify
    report = certify(of_object("claiming", stranger), asked="smoke")
    assert (report.verdict, report.reason) == (Verdict.BROKEN, Reason.ANOTHER_LAW)
