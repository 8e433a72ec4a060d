"""Subjects that bring a stop law: it is read as the protocol says, and judged by L0, L1 and L2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stattests import budget, layers, rao_blackwell
from stattests.cases import TREES, problem
from stattests.exact import drafted_trees, exact_law, node_hashes, node_prefix, tree_rows
from stattests.faults import FAULTS
from stattests.faults.specimen import _module, _verifier
from stattests.probing import Probe, probe
from stattests.problems import make_problem
from stattests.subject import Subject, builtin, of_object
from stattests.verdict import CaseResult, ContractError, Reason, Run, Verdict
from univer import PAPER, VERIFIERS, DraftTree, StopLaw, stop_law, verify

RUN = Run(alpha=1e-12, delta=0.05, root=1)


class OneAtATime:
    """UniVer behind the protocol for one tree at a time, with the stop law of `claimed`."""

    drafting = "top_residual"
    batched = False

    def __init__(self, law_of: str = "univer", returns: Any = None) -> None:
        self.law_of, self.returns = law_of, returns

    def verify(self, tree: Any, target: Any, draft: Any, *, uniforms: Any) -> Any:
        """The path and the token."""
        out = verify("univer", *_batch(tree, target, draft), uniforms=torch.tensor(uniforms)[None])
        return out.accepted_nodes[0, : out.num_accepted[0]].tolist(), int(out.next_token[0])

    def stop_law(self, tree: Any, target: Any, draft: Any) -> Any:
        """The two fields, or what `returns` makes of them."""
        law = stop_law(self.law_of, *_batch(tree, target, draft))
        fields = law.stop_probs[0].numpy(), law.next_token_probs()[0].numpy()
        return fields if self.returns is None else self.returns(*fields)


def _batch(tree: Any, target: Any, draft: Any) -> tuple[DraftTree, Tensor, Tensor]:
    tokens = torch.from_numpy(tree.tokens)[None]
    return DraftTree(tree.topology, tokens), torch.tensor(target)[None], torch.tensor(draft)[None]


@pytest.fixture(scope="module")
def probe_of_verify() -> Probe:
    """What probing finds of OneAtATime: its `verify` is the same whatever its stop law says."""
    toy = make_problem("sharp", "chain:2", 4)
    limit = budget.PROBE_CALLS_SLOW
    return probe(of_object("one", OneAtATime()), toy, max_calls=limit, seed=RUN.root)


@pytest.fixture
def probed(
    probe_of_verify: Probe, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Subject], list[CaseResult]]:
    """Lx and L1 of a OneAtATime."""

    def results(subject: Subject) -> list[CaseResult]:
        return list(layers.lx(subject, probe_of_verify.law.problem, RUN))

    monkeypatch.setattr(layers, "probe", lambda *_, **__: probe_of_verify)
    return results


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
def test_one_at_a_time_stop_laws_pass_every_exact_layer(
    dtype: Any, probed: Callable[[Subject], list[CaseResult]]
) -> None:
    subject = of_object("one", OneAtATime(returns=lambda s, r: (s.astype(dtype), r.astype(dtype))))
    found = probed(subject)
    assert [result.layer for result in found] == ["Lx", "L1"]
    exact = layers.l0(subject, make_problem("ties", "2x2", 4), RUN)
    deep = list(rao_blackwell.l2(subject, problem(*TREES.integrated[2]), RUN))
    assert exact is not None
    assert [result.layer for result in deep] == ["L2", "L1"]
    assert {r.verdict for r in [*found, exact, *deep]} == {Verdict.CERTIFIED}


def test_a_stop_law_of_another_verifier_is_not_the_law_of_verify(
    probed: Callable[[Subject], list[CaseResult]],
) -> None:
    """Both are lossless, so no law test sees it."""
    found = probed(of_object("one", OneAtATime(law_of="greedy")))
    assert [r.verdict for r in found] == [Verdict.CERTIFIED, Verdict.BROKEN]
    assert found[1].reason is Reason.ANOTHER_LAW


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        (lambda s, r: None, "returned NoneType"),  # noqa: ARG005
        (lambda s, r: (s, r, r), "returned tuple"),
        (lambda s, r: (s[:-1], r), r"stop_probs of shape \[1, 2\]; expected \[1, 3\]"),
        (lambda s, r: (s, r.T), "next_token_probs of shape"),
        (lambda s, r: (s - 1, r), "NaN, infinity or a negative number"),
        (lambda s, r: (s, r * np.nan), "NaN, infinity or a negative number"),
        (lambda s, r: (s.astype(int), r), "stop_probs, a NumPy array of shape .* and dtype int64"),
        (lambda s, r: (s, [[1.0], [1.0, 2.0]]), "next_token_probs, .* dtype object"),  # noqa: ARG005
    ],
)
def test_what_is_no_stop_law_is_refused(returns: Any, says: str) -> None:
    subject, toy = of_object("one", OneAtATime(returns=returns)), make_problem("near", "2x1", 4)
    tokens = torch.tensor([[0, 1, 2]])
    rows = tree_rows(toy, node_hashes(toy.topology, tokens))
    with pytest.raises(ContractError, match=says) as refused:
        subject.law(toy.topology, tokens, *rows)
    assert refused.value.reason is Reason.REFUSED_RETURN


def with_law(name: str) -> Subject:
    """A planted fault together with its own stop law."""
    row = next(row for row in FAULTS if row.name == name)
    verifier, module = _verifier(row), _module(row.patches)
    own = partial(module.stop_law, verifier)
    return Subject(name, verifier.drafting, partial(module.verify, verifier), own)


@pytest.mark.parametrize("topology", ["2x2", "[[0],[1],[1,0],[1,1]]"])
def test_masses_of_trees_average_to_the_exact_law(topology: str) -> None:
    toy = make_problem("near", topology, 4)
    for name in PAPER:
        row = VERIFIERS[name]
        tokens, chances = drafted_trees(toy, row.drafting)
        rows = tree_rows(toy, node_hashes(toy.topology, tokens))
        law = stop_law(name, DraftTree(toy.topology, tokens), *rows)
        masses = rao_blackwell.next_masses(
            toy.topology, tokens, law.stop_probs, law.next_token_probs()
        )
        exact = exact_law(toy, row.drafting, partial(stop_law, name))
        for prefix, due in exact.masses.items():
            mean = sum(
                chance * masses[tree, node].numpy()
                for tree, chance in enumerate(chances)
                for node in range(toy.topology.num_nodes)
                if tokens[tree, node] >= 0
                and node_prefix(toy.topology, tokens[tree].tolist(), node) == prefix
            )
            np.testing.assert_allclose(mean, due, atol=1e-14)


@pytest.mark.stat
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("ot-fallback-is-prefix", TREES.integrated[0]),
        ("accepted-without-q", TREES.integrated[1]),
        ("child-keeps-residual", TREES.integrated[2]),
        ("block-without-q", TREES.integrated[3]),
    ],
)
def test_biases_of_deep_trees_are_found_with_few_trees(name: str, case: Any) -> None:
    (result,) = rao_blackwell.l2(with_law(name), problem(*case), RUN)
    assert (result.verdict, result.reason) == (Verdict.BIASED, Reason.EVIDENCE)
    assert result.n <= 8192
    assert result.extra["path"][-1][1] == result.log10_e
    assert result.log10_e is not None
    assert result.log10_e > 12


@pytest.mark.stat
@pytest.mark.parametrize("name", PAPER)  # the others: test_gate_grid.py
def test_right_verifiers_pass_on_deep_trees(name: str) -> None:
    for case in TREES.integrated:
        for result in rao_blackwell.l2(builtin(name), problem(*case), RUN):
            assert result.verdict is Verdict.CERTIFIED
            assert result.log10_e is not None
            assert result.log10_e < 12


def test_lost_probability_and_lost_length_are_found() -> None:
    def leaking(*arguments: Any) -> StopLaw:
        law = stop_law("univer", *arguments)
        return replace(law, stop_probs=law.stop_probs * 0.99)

    deep = problem(*TREES.integrated[2])
    subject = replace(builtin("univer"), stop_law=leaking)
    (result,) = rao_blackwell.l2(subject, deep, RUN)
    assert result.reason is Reason.EXACT_BIAS
    shorter = replace(builtin("greedy"), claims="univer")
    result = next(rao_blackwell.l2(shorter, deep, RUN))
    assert (result.verdict, result.reason) == (Verdict.BROKEN, Reason.SHORTER)
