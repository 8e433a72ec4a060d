"""A rule is its own file and its rows: gate, diagnosis and cross-checks read the tables.

The rule is added here as a contributor would add it, to the tables and to nothing else. It keeps
the first child with half of what a single draft gives it, which is lossless, and short.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from torch import Tensor

import reference
from reference.composed import Composed
from reference.laws import Law, Number
from reference.laws import ratio as exact_ratio
from reference.laws import share_out as exact_share_out
from stattests import budget, gate
from stattests.behaviour.few_problems import few
from stattests.crosscheck.test_planted_faults import check
from stattests.diagnosis import best_matches, missing_laws
from stattests.faults import FAULTS, laws
from stattests.faults import subject as planted
from stattests.faults.__main__ import main as write_laws
from stattests.gate import Report, certify
from stattests.printed import Printed
from stattests.report_text import show
from stattests.strategies import for_toys
from stattests.subject import load
from stattests.theorems.checks import check_output_law
from stattests.verdict import Verdict
from univer import VERIFIERS, Verifier
from univer.allocation import ALLOCATION, Allocation
from univer.rows import at, normalise, ratio
from univer.rules import Allocated, share_out

LAW, NAMES = "without_replacement", ("halved", "halved_conditional")
WRITES = "python -m stattests.faults --laws halved halved_conditional writes them"


def halved(
    scale: Tensor, target: Tensor, draft: Tensor, children: Tensor, *, part: float = 0.5
) -> Allocated:
    """Any children, of which the first was drawn from q; with another `part` it is biased."""
    scaled, q = scale[:, None] * target, normalise(draft, where=children[:, 0] >= 0)
    first = children[:, :1]
    accepted = part * ratio(at(scaled, first), at(q, first)).clamp(max=1)
    accepted = torch.cat([accepted, torch.zeros_like(children[:, 1:], dtype=q.dtype)], 1)
    surplus = scaled - torch.minimum(scaled, q) / 2
    return share_out(accepted, 1 - accepted[:, 0], surplus, scale)


def layer(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
    """Its twin."""
    if not tokens:
        return [], s * p, 1 - s
    accepted = exact_ratio(s * p[tokens[0]], q[tokens[0]]) / 2
    surplus = s * p - np.minimum(s * p, q) / 2
    residual, rejected = exact_share_out(1 - accepted, surplus, s)
    return [accepted, *[0 * s] * (len(tokens) - 1)], residual, rejected


def add(monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    """All that adding a rule takes."""
    monkeypatch.setitem(ALLOCATION, "halved", Allocation("halved", rule, (LAW,)))
    for name, composition in zip(NAMES, ("local", "conditional"), strict=True):
        monkeypatch.setitem(VERIFIERS, name, Verifier(LAW, "halved", composition))
        twin = Composed(LAW, layer, composition == "conditional")
        monkeypatch.setitem(reference.VERIFIERS, name, twin)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, halved)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A folder of kept laws that is empty."""
    monkeypatch.setattr(laws, "FOLDER", tmp_path)
    laws.known.cache_clear()
    yield tmp_path
    laws.known.cache_clear()


def printed(report: Report) -> str:
    shown = io.StringIO()
    show(Console(file=shown), report, "replay", Printed(), Path("log"))
    return shown.getvalue()


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("name", NAMES)
def test_a_new_rule_is_the_oracles_and_lossless(name: str) -> None:
    for_toys(name, partial(check_output_law, reference.VERIFIERS[name]))
    check(name)


@pytest.mark.stat
@pytest.mark.usefixtures("added")
def test_a_new_rule_is_certified_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = NAMES[1]
    monkeypatch.setattr(gate, "cases_for", few)
    subject = load(name)
    assert (subject.claims, subject.drafting_name, subject.max_arity) == (name, LAW, None)
    report = certify(subject, asked="smoke")
    assert report.verdict is Verdict.CERTIFIED, report.detail
    assert {result.layer for result in report.results} >= {"L0", "L2", "Lx", "L3", "length"}


@pytest.mark.stat
@pytest.mark.parametrize("name", NAMES)
def test_a_new_rule_with_a_bias_is_refused_and_diagnosed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared, and what is not for want of its law, is said."""
    add(monkeypatch, partial(halved, part=0.6))
    monkeypatch.setattr(gate, "cases_for", few)
    report = certify(load(name), asked="smoke")
    assert report.verdict is Verdict.BIASED
    assert report.smallest is not None
    assert "no diagnosis" not in report.detail
    assert report.to_json()["missing_laws"] == report.missing_laws
    assert WRITES in str(report.missing_laws)
    assert f"not compared: {report.missing_laws}" in printed(report)


@pytest.mark.stat
@pytest.mark.usefixtures("added")
def test_a_strangers_fault_is_named_as_before_beside_a_row_without_laws() -> None:
    subject = planted(next(fault for fault in FAULTS if fault.name == "rejected-zeroed"))
    assert best_matches(subject, budget.ROOT_SEED)[0].name == "rejected-zeroed"
    assert WRITES in str(missing_laws(subject))


@pytest.mark.stat
def test_a_stranger_is_diagnosed_where_no_law_is_kept(kept: Path) -> None:
    assert not any(kept.iterdir())
    subject = planted(next(fault for fault in FAULTS if fault.name == "rejected-zeroed"))
    assert best_matches(subject, budget.ROOT_SEED) == []
    assert "--laws rrsw traversal" in str(missing_laws(subject))


@pytest.mark.usefixtures("added")
def test_the_command_writes_the_laws_that_are_missing(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without faults: planted copies of the code read its files, where the rule is not."""
    monkeypatch.setattr(laws, "FAULTS", ())
    assert laws.missing("top_residual") is not None
    assert [laws.known(name) for name in NAMES] == [{}, {}]
    assert CliRunner().invoke(write_laws, ["--laws", *NAMES]).exit_code == 0
    assert [laws.known(name).keys() for name in NAMES] == [{laws.NO_FAULT}] * 2
    assert {file.stem for file in kept.iterdir()} == {*NAMES}
    assert "halved" not in str(laws.missing(LAW))
    for law in laws.known(NAMES[0])[laws.NO_FAULT]:
        assert law is not None
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)


def test_the_command_refuses_what_is_no_verifier_and_two_files(tmp_path: Path) -> None:
    files = [str(tmp_path / "one.md"), str(tmp_path / "two.md")]
    for given, says in ((["--laws", "medusa"], "'medusa' is no verifier; known are rrsw"),
                        (files, "one FILE at most, got 2")):  # fmt: skip
        done = CliRunner().invoke(write_laws, given)
        assert done.exit_code == 2
        assert says in done.stderr
