"""The Triton kernels against the plain float64 path: acceptance, decisions, draws, bad input.

They run on a CUDA device, or on the CPU under TRITON_INTERPRET=1; test_fused.py starts them so.

Letters: B trees, N nodes, I inner nodes, V vocabulary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import univer
from gpu_runs import kernel_times
from stattests.behaviour.kernel_problems import (
    CASES,
    DEVICE,
    MIXED,
    Case,
    Laws,
    Problem,
    apart,
    disjoint,
    equal,
    holes,
    peaked,
    problem,
    repeated,
)
from stattests.behaviour.test_verify_numerics import NoSync
from stattests.streams import torch_generator
from univer import (
    VERIFIERS,
    DraftTree,
    InputError,
    Topology,
    fused,
    verify,
    verify_logits,
)
from univer.allocation import ALLOCATION
from univer.composition import COMPOSITION, judge
from univer.indices import columns

kernels = pytest.importorskip("univer.kernels", reason="triton is not installed")
pytestmark = pytest.mark.skipif(
    not fused.runs_kernels(DEVICE),
    reason="needs triton and CUDA, or TRITON_INTERPRET=1 (test_fused.py sets it)",
)

NAMES = sorted(name for name, verifier in VERIFIERS.items() if verifier.allocation == "ot")
BELOW_ONE = 1 - 2**-53
# Masses are float32 sums of one block: some 1e-7 of a node's whole.
TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def _no_trace_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are set by each case."""
    monkeypatch.setattr(fused, "BLOCK", fused.BLOCK)


def stop_probs(name: str, part: Problem, acceptance: Tensor) -> Tensor:
    return COMPOSITION[VERIFIERS[name].composition].stop_probs(part.tree.topology, acceptance)


def plain_acceptance(name: str, part: Problem) -> Tensor:
    target, draft = part.laws()
    return judge(
        part.tree.topology,
        part.tree.tokens,
        ALLOCATION["ot"].allocate,
        VERIFIERS[name].composition == "conditional",
        lambda rows: columns(target, rows),
        lambda rows: columns(draft, rows),
    ).acceptance


def check_acceptance(name: str, part: Problem) -> None:
    """The numbers that uniforms are compared with, and what they make of the tree."""
    verifier = VERIFIERS[name]
    values = fused.allocate(verifier, part.tree, part.target, part.draft, part.temperature)
    found, expected = values["acceptance"], plain_acceptance(name, part)
    assert not values["flag"].item()
    stops = stop_probs(name, part, expected)
    assert (stop_probs(name, part, found) - stops).abs().max() <= TOLERANCE
    # Where laws agree a node may be left with probability 1e-16, to be told apart from 0 by
    # nobody: then what would follow is a quotient of roundings.
    reached = torch.where(expected > 0, stops / expected, 1.0) > 1e-9
    assert torch.where(reached, found - expected, 0.0).abs().max() <= TOLERANCE


def check_decisions(name: str, part: Problem, uniforms: Tensor) -> None:
    """The plain path's decision, unless a uniform is at a threshold: then 1e-6 further it moves."""
    verifier, laws = VERIFIERS[name], part.laws()
    found = fused.verify_logits_fused(
        verifier, part.tree, part.target, part.draft,
        temperature=part.temperature, uniforms=uniforms,
    )  # fmt: skip
    assert found is not None
    expected = verify(verifier, part.tree, *laws, uniforms=uniforms)
    for field in ("accepted_nodes", "num_accepted", "next_token", "tokens"):
        assert getattr(found, field).dtype == torch.int64
        assert getattr(found, field).shape == getattr(expected, field).shape
    differs = (found.tokens != expected.tokens).any(1)
    differs |= (found.accepted_nodes != expected.accepted_nodes).any(1)
    differs |= (found.num_accepted != expected.num_accepted) | (
        found.next_token != expected.next_token
    )
    near = torch.zeros_like(differs)
    for step in (-TOLERANCE, TOLERANCE):
        moved = (uniforms + step).clamp(0, BELOW_ONE)
        other = verify(verifier, part.tree, *laws, uniforms=moved)
        near |= (other.tokens != expected.tokens).any(1)
    assert not (differs & ~near).any()
    assert differs.sum() <= 1


def check(name: str, case: Case) -> None:
    fused.BLOCK = case.block
    part = problem(name, case)
    check_acceptance(name, part)
    check_decisions(name, part, part.uniforms("decisions"))


# What a layer does is the same for both; a local composition differs in its scales alone.
LOCAL = {"plain", "apart", "holes", "equal", "absent"}
RUNS = [(name, case) for name in NAMES for case in CASES if name == "univer" or case.name in LOCAL]


@pytest.mark.parametrize(("name", "case"), RUNS, ids=lambda part: str(part))
def test_kernels_equal_the_plain_path(name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.parametrize("name", NAMES)
def test_laws_that_almost_agree_leave_the_stop_law_right(name: str) -> None:
    """Acceptance at a place reached with probability 1e-3 is a ratio of masses that small."""

    def close(target: Tensor, draft: Tensor) -> Laws:
        noise = torch.randn(draft.shape, generator=torch_generator("close"))
        return equal(target, draft + 1e-3 * noise)[0], draft

    fused.BLOCK = 128
    part = problem(name, Case("close", "chain:3", 500, 128, close, batch=1))
    found = fused.allocate(VERIFIERS[name], part.tree, part.target, part.draft, 1.0)["acceptance"]
    laws = [stop_probs(name, part, numbers) for numbers in (found, plain_acceptance(name, part))]
    assert (laws[0] - laws[1]).abs().max() <= TOLERANCE


def decide_many(name: str, part: Problem, uniforms: Tensor) -> tuple[univer.VerifyOutput, Tensor]:
    """The decisions [B] of the kernels for one tree, judged once, and the stop nodes."""
    verifier = VERIFIERS[name]
    values = fused.allocate(verifier, part.tree, part.target, part.draft, part.temperature)
    for argument in ("tokens", "acceptance", "rows", "scale", "residual_mass"):
        whole = values[argument].expand(len(uniforms), *values[argument].shape[1:])
        values[argument] = whole.contiguous()
    values |= {"target_tree": 0, "draft_tree": 0}
    return fused.decide(values, uniforms)


@pytest.mark.parametrize("name", NAMES)
def test_many_decisions_equal_the_plain_path(name: str) -> None:
    """Of 200 x 10 thresholds, 4e-3 are expected within 1e-6 of a uniform."""
    fused.BLOCK = 16
    one = problem(name, Case("many", "2x2", 24, 16, apart, batch=1, temperature=1.5))
    many = repeated(one, 200)
    uniforms = many.uniforms(f"many/{name}")
    found, _ = decide_many(name, one, uniforms)
    expected = verify(name, many.tree, *many.laws(), uniforms=uniforms)
    assert (found.tokens != expected.tokens).any(1).sum() <= 1
    assert len(expected.tokens.unique(dim=0)) > 12
    assert len(expected.num_accepted.unique()) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_many_stop_nodes_equal_the_plain_path(name: str) -> None:
    """800 trees with leaves of every depth; a third of the numbers are 0 or 1."""
    topology, generator = Topology.parse(MIXED), torch_generator("stops")
    rule, table = VERIFIERS[name].composition, fused.tables(topology, DEVICE)
    draws = torch.rand(2, 800, topology.num_nodes + 1, generator=generator, dtype=torch.float64)
    acceptance = (1.5 * draws[0, :, :-1] - 0.25).clamp(0, 1).to(DEVICE).contiguous()
    acceptance[:, 0], uniforms = 1.0, draws[1].to(DEVICE)
    values: dict[str, Any] = {
        "acceptance": acceptance, "uniforms": uniforms, "order": table.shared.post_order.ids,
        "row_of": table.row_of, "slots": table.slots, "M": table.slots.shape[1], "SLOTS": 4,
        "N": topology.num_nodes, "NODES": 8, "DEPTH": topology.depth,
        "stop": torch.full((800,), -1, device=DEVICE), "CONDITIONAL": rule == "conditional",
        "flag": torch.zeros(1, dtype=torch.int32, device=DEVICE),
    }  # fmt: skip
    fused._launch(kernels.decide, (800,), values)
    expected = COMPOSITION[rule].stop_node(topology, acceptance, uniforms[:, :-1])
    assert torch.equal(values["stop"], expected)
    assert len(expected.unique()) == topology.num_nodes
    assert not values["flag"].item()


@pytest.mark.parametrize("change", [holes, disjoint], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_zero_probability_token_is_never_emitted(
    name: str, change: Callable[[Tensor, Tensor], Laws]
) -> None:
    fused.BLOCK = 16
    one = problem(name, Case("edges", "2x2", 60, 16, change, batch=1))
    part = repeated(one, 36)
    uniforms = part.uniforms("edges")
    for row, step in enumerate((0.0, BELOW_ONE) * 18):
        uniforms[row, -1] = step
        if row < 24:  # a decision at its edges too, at each node in turn
            uniforms[row, : row // 4] = 0.0 if row % 4 < 2 else BELOW_ONE
    found, stop = decide_many(name, one, uniforms)
    law = part.laws()[0]
    for b in range(len(uniforms)):
        node = 0
        for child in [*found.accepted_nodes[b, : found.num_accepted[b]].tolist(), None]:
            token = found.next_token[b] if child is None else part.tree.tokens[b, child]
            assert law[b, node, token] > 0
            node = node if child is None else child
        assert node == stop[b]


@pytest.mark.parametrize("name", NAMES)
def test_answer_does_not_depend_on_the_batch(name: str) -> None:
    """To the last bit; nor on strides."""
    fused.BLOCK = 32
    part = problem(name, Case("batch", "2x2", 100, 32, batch=3))
    uniforms, verifier = part.uniforms("batch"), VERIFIERS[name]
    together = fused.allocate(verifier, part.tree, part.target, part.draft, 1.0)
    decided, _ = fused.decide(together, uniforms)
    for b in range(3):
        tree = DraftTree(part.tree.topology, part.tree.tokens[b : b + 1])
        strided = part.target[b : b + 1].transpose(0, 2).contiguous().transpose(0, 2)
        alone = fused.allocate(verifier, tree, strided, part.draft[b : b + 1], 1.0)
        assert torch.equal(alone["acceptance"][0], together["acceptance"][b])
        output, _ = fused.decide(alone, uniforms[b : b + 1])
        assert torch.equal(output.tokens[0], decided.tokens[b])


def spoiled(part: Problem, what: str) -> tuple[Problem, Tensor]:
    """A problem with one thing wrong, and its uniforms."""
    uniforms, tokens = part.uniforms("bad").clamp(0.6, 0.9), part.tree.tokens.clone()
    target, draft = part.target.clone(), part.draft.clone()
    match what:
        case "NaN target":
            target[1, 1, 37] = torch.nan
        case "infinite draft":
            draft[0, 2, 5] = torch.inf
        case "empty target":
            target[1, 0] = -torch.inf
        case "empty draft":
            draft[1, 1] = -torch.inf
        case "bad leaf":  # a uniform of 0 stops there
            uniforms[0, :], target[0, 3:, 59] = 0.0, torch.nan
        case "empty leaf":
            uniforms[0, :], target[0, 3:] = 0.0, -torch.inf
        case "token beyond":
            tokens[1, 3] = 60
        case "token below":
            tokens[0, 0] = -2
        case "orphan":
            tokens[0, 2] = -1
        case "gap":
            tokens[0, 3] = -1
        case "twins":
            tokens[1, 4] = tokens[1, 3]
        case "uniform of 1":
            uniforms[1, 2] = 1.0
        case "uniform NaN":
            uniforms[0, -1] = torch.nan
    return replace(
        part, tree=DraftTree(part.tree.topology, tokens), target=target, draft=draft
    ), uniforms


BAD = {
    "NaN target": "target_logits: the row of node 1 in tree 1",
    "infinite draft": "draft_logits: the row of node 2 in tree 0",
    "empty target": "target_logits: the row of node 0 in tree 1",
    "empty draft": "draft_logits: the row of node 1 in tree 1",
    "bad leaf": "target_logits: the row of node 3 in tree 0",
    "empty leaf": "target_logits: the row of node 3 in tree 0",
    "token beyond": "tree.tokens: node 3 of tree 1 holds token 60",
    "token below": "tree.tokens: node 0 of tree 0 holds token -2",
    "orphan": "tree.tokens: node 5 of tree 0 is present but its parent",
    "gap": "tree.tokens: node 3 of tree 0 is absent",
    "twins": "tree.tokens: token .* is drafted twice below node 1 of tree 1",
    "uniform of 1": "uniforms: entry .*1, 2",
    "uniform NaN": "uniforms: entry .*0, 7",
}


# NumPy, which interprets, warns of what the flag then says.
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what: str) -> None:
    fused.BLOCK = 32
    part, uniforms = spoiled(problem("univer", Case("bad", "2x2", 60, 32)), what)
    with pytest.raises(InputError, match=BAD[what]):
        fused.verify_logits_fused(
            VERIFIERS["univer"], part.tree, part.target, part.draft, uniforms=uniforms
        )


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the launches, that is: the launches themselves do not wait."""
    part = problem("univer", Case("quiet", "2x2", 60, 64))
    uniforms = part.uniforms("quiet")
    fused.tables(part.tree.topology, part.tree.tokens.device)  # made once
    launched = []
    monkeypatch.setattr(fused, "_launch", lambda kernel, *_: launched.append(kernel))
    with NoSync():
        fused.decide(fused.allocate(VERIFIERS["univer"], part.tree, part.target, part.draft, 1.0),
                     uniforms)  # fmt: skip
    assert len(launched) == 2 + 2 * 2 + 3


def test_device_check_times_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_times, "ROUNDS", 1)
    monkeypatch.setattr(kernel_times, "FLUSHED", 1000)
    monkeypatch.setattr(kernel_times, "SHAPES", ("2x1",))
    rows = list(kernel_times.findings(DEVICE, 50, (1,)))
    assert len(rows) == len(kernel_times.DTYPES)
    assert all(row.holds for row in rows)


FAULTS = {
    "z-without-scale": ("whole = (1 - s) + residual", "whole = residual"),
    "sampled-child-in-residual": (
        "p = _without(_logits(target, ids, V), ids, tokens, slots, 0, M)",
        "p = _logits(target, ids, V)",
    ),
    "last-block-lost": (
        "beside = tl.load(sums + (tree * I + row) * K + i, mask=i < K,",
        "beside = tl.load(sums + (tree * I + row) * K + i, mask=i < K - 1,",
    ),
    "fixed-children-in-draft": (
        "left = _without(q, ids, tokens + tree * N, slots + row * M, 0, M - 1)", "left = q",
    ),
    "scale-not-passed-down": (
        "        tl.store(scale + tree * N + slot, prefix, mask=slot >= 0)\n", "",
    ),
    "blocks-without-temperature": (
        "tl.exp2((peaks - _shift(peak)) * k)", "tl.exp2(peaks - _shift(peak))",
    ),
    "uniform-used-twice": ("uniforms + tree * (N + 1) + N)", "uniforms + tree * (N + 1))"),
    "draws-from-the-target": ("other=0.0) > 0:\n", "other=0.0) > 2:\n"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = FAULTS[fault]
    text = Path(str(kernels.__file__)).read_text(encoding="utf-8")
    assert text.count(whole) == 1
    path = tmp_path / "kernels.py"
    path.write_text(text.replace(whole, broken), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    monkeypatch.setattr(univer, "kernels", copy)
    with pytest.raises(AssertionError):
        check("univer", Case("faults", "2x2", 60, 16, apart, batch=4))


def test_a_draft_at_the_end_of_float32_is_left_to_the_plain_path() -> None:
    """What is left of it was drawn with float32's rounding of tiny numbers, which differs."""
    part = problem("univer", Case("peaked-1e-40", "2x2", 60, 16, peaked(95.0)))
    uniforms = part.uniforms("peaked")
    for part_, answered in ((part, False), (replace(part, draft=part.draft * 0.25), True)):
        found = fused.verify_logits_fused(
            VERIFIERS["univer"], part_.tree, part_.target, part_.draft, uniforms=uniforms
        )
        assert (found is not None) == answered
    out = verify_logits("univer", part.tree, part.target, part.draft, uniforms=uniforms)
    assert (out.next_token >= 0).all()
