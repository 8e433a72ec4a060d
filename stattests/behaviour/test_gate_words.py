"""What a certification says: every kind of failure that was found, in the text and in JSON."""

from __future__ import annotations

import io
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from stattests import every, gate
from stattests.behaviour.few_problems import few
from stattests.conclusion import concluded
from stattests.gate import Report, certify
from stattests.printed import Printed
from stattests.report_text import COLUMNS, show
from stattests.subject import of_object
from stattests.verdict import CaseResult, Reason, Verdict, passed
from univer import VERIFIERS, Topology, verify

KINDS = (
    (Verdict.BROKEN, Reason.CHANGED_INPUTS),
    (Verdict.BIASED, Reason.PROBED_BIAS),
    (Verdict.BROKEN, Reason.SHORTER),
)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_kind_of_failure_is_said_and_the_first_kind_decides(count: int) -> None:
    for order in permutations(range(3), count):
        results = [passed("a", "L0", "fine"), CaseResult("t", "L3", Verdict.INCONCLUSIVE, *LATE)]
        for kind in order:
            results += [CaseResult(f"case{kind}", "L", *KINDS[kind], f"seen{kind}")] * 2
        end = concluded(results, "pr", "pr")
        assert (end.verdict, end.reason) == KINDS[min(order)]
        for kind in order:
            assert end.detail.count(f"L case{kind}: seen{kind}") == 1
            assert count == 1 or KINDS[kind][1].value in end.nothing_certified
        assert [found.reason for found in end.also] == [KINDS[k][1] for k in sorted(order)[1:]]


LATE = (Reason.OUT_OF_TIME, "not begun in time")


class BiasedThenBroken:
    """Always the most probable token, until it is broken."""

    drafting = "top_residual"
    broken = False

    def verify(self, tree: Any, target: Any, draft: Any, *, uniforms: Any) -> Any:
        """The root's best token."""
        if self.broken:
            raise ValueError("tired")
        law = torch.zeros_like(target).scatter(2, target.argmax(2, keepdim=True), 1.0)
        return verify("univer", tree, law, draft, uniforms=uniforms)


def test_a_subject_that_is_broken_and_biased_reads_as_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "cases_for", few)
    both = BiasedThenBroken()

    def progress(step: str, share: float) -> None:
        both.broken = step.startswith("L3") and share < 1

    report = certify(of_object("both", both), asked="smoke", progress=progress)
    assert (report.verdict, report.reason) == (Verdict.BROKEN, Reason.RAISED)
    assert "tired" in report.detail
    assert "also BIASED" in report.detail
    assert Reason.RAISED.value in report.guarantee
    data = report.to_json()
    assert data["exit_code"] == 2
    assert [found["verdict"] for found in data["also"]] == ["BIASED"]


def test_cases_that_could_not_be_probed_are_explained_and_no_others() -> None:
    for reason in (Reason.NOT_BOXES, Reason.OUT_OF_TIME):
        unprobed = CaseResult("t", "Lx", Verdict.INCONCLUSIVE, reason, "too many calls")
        end = concluded([passed("a", "L3", "fine"), unprobed], "pr", "pr")
        assert end.verdict is Verdict.CERTIFIED
        assert len(end.notes) == 1
        assert "Lx does not count: 1 case could not be probed" in end.notes[0]
    late = CaseResult("t", "L3", Verdict.INCONCLUSIVE, *LATE)
    assert concluded([passed("a", "L3", "fine"), late], "pr", "pr").notes == ()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_line_is_broken_inside_a_name(width: int, terminal: bool) -> None:
    names = ["near/[[0],[1],[0,0]]/V4", "peaked-target/2x2/V6"]
    seen = "log10 E = 11.2 after 1234 cycles [/red]"
    results = [
        CaseResult(name, "L3", Verdict.BIASED, Reason.EVIDENCE, seen, 1234, 99, 11.2, 0.25)
        for name in names
    ]
    report = Report(
        "mine", *(Verdict.BIASED, Reason.EVIDENCE, seen, "nothing", "pr", "pr", 1),
        tuple(results), 1.0, 1.0,
    )  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    show(console, report, "again", Printed(), Path("log"))
    for word in (*names, "BIASED", "1,234", "0.25", COLUMNS[4] if width > 100 else "L3"):
        assert word in out.getvalue()


@pytest.mark.parametrize("spec", ["3x3", "eagle", "4x2", "[[0],[1],[2],[0,0],[2,0]]", "chain:3"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_every_row_is_given_a_tree_that_it_takes(name: str, spec: str) -> None:
    most, whole = VERIFIERS[name].max_arity, Topology.parse(spec)
    for options in (["--topology", spec], [f"--topology={spec}"]):
        fit, said = every.fitting(["--budget", "smoke", *options], most)
        given = Topology.parse(fit[-1].rpartition("=")[2])
        assert most is None or given.max_arity <= most
        assert given.depth == whole.depth
        cut = most is not None and whole.max_arity > most
        assert (given != whole) == cut == (f"{spec} was cut to" in said)
