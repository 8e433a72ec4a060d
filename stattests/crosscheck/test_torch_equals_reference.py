"""STATS L1: torch gives the oracle's answer for the same trees, laws and uniforms.

Decisions may differ only where a uniform lies within rounding of a threshold; such rows are counted
and printed (`-s`). Stop laws are compared with the exact ones, in fractions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

import reference
from stattests.crosscheck.both import (
    FLOAT32_MARGIN,
    FLOAT64_TOLERANCE,
    Batch,
    drawn_batch,
)
from stattests.strategies import Toy, toys
from stattests.streams import torch_generator
from univer import VERIFIERS, DraftTree, stop_law, verify, verify_logits
from univer.verifiers import _check_probs, _judge

NAMES = sorted(VERIFIERS)
MARGINS = {torch.float64: FLOAT64_TOLERANCE, torch.float32: FLOAT32_MARGIN}


def moved(batch: Batch, device: torch.device, dtype: torch.dtype) -> Any:
    """Tree, target and draft laws on a device."""
    target, draft = batch.rows(dtype)
    tree = DraftTree(batch.topology, batch.draft_tree.tokens.to(device))
    return tree, target.to(device), draft.to(device)


def uniforms_for(case: str, batch: Batch) -> torch.Tensor:
    shape = (len(batch.trees), batch.topology.num_nodes + 1)
    return torch.rand(shape, dtype=torch.float64, generator=torch_generator(case))


def near_a_threshold(
    name: str, tree: DraftTree, rows: Any, uniforms: torch.Tensor, margin: float
) -> torch.Tensor:
    """Rows [B] in which some uniform is within the margin of what it is compared with."""
    verifier, target, draft = _check_probs(name, tree, *rows)
    judged = _judge(verifier, tree, target, draft)
    close = (uniforms[:, :-1].to(judged.acceptance) - judged.acceptance).abs() < margin
    law = stop_law(verifier, tree, *rows)
    edges = law.next_token_probs().cumsum(-1)
    closest = (uniforms[:, -1].to(edges)[:, None, None] - edges).abs().amin((1, 2))
    return (close.any(-1) | (closest < margin)).cpu()


def check_decisions(
    name: str, batch: Batch, uniforms: torch.Tensor, dtype: torch.dtype, device: torch.device
) -> int:
    """Compare every decision with the oracle's; return how many rows were within rounding."""
    tree, target, draft = moved(batch, device, dtype)
    out = verify(name, tree, target, draft, uniforms=uniforms.to(device))
    near = near_a_threshold(name, tree, (target, draft), uniforms, MARGINS[dtype])
    # The oracle sees the very laws that torch saw, renormalised as SPEC 10 says.
    exact = [rows.double().cpu().numpy() for rows in (target, draft)]
    exact = [rows / rows.sum(-1, keepdims=True) for rows in exact]
    for b, oracle_tree in enumerate(batch.trees):
        expected = reference.VERIFIERS[name].verify(
            oracle_tree, exact[0][b], exact[1][b], uniforms=uniforms[b].numpy()
        )
        if out.tokens[b].tolist() != expected.tokens.tolist():
            assert near[b], (b, out.tokens[b], expected.tokens)
            continue
        assert out.accepted_nodes[b].tolist() == expected.accepted_nodes.tolist()
        assert out.num_accepted[b] == expected.num_accepted
        assert out.next_token[b] == expected.next_token
    return int(near.sum())


def check_stop_laws(name: str, batch: Batch) -> None:
    """Compare stop laws and expected lengths with the exact ones."""
    law = stop_law(name, batch.draft_tree, *batch.rows())
    rows = law.next_token_probs().numpy()
    for b, tree in enumerate(batch.trees):
        exact = reference.VERIFIERS[name].stop_law(tree, batch.target[b], batch.draft[b])
        stop = exact.stop_probs.astype(np.float64)
        joint = stop[:, None] * exact.next_token_probs().astype(np.float64)
        ours = law.stop_probs[b].numpy()
        assert np.abs(ours - stop).max() <= FLOAT64_TOLERANCE
        assert np.abs(ours[:, None] * rows[b] - joint).max() <= FLOAT64_TOLERANCE
        assert abs(law.expected_accepted[b] - float(exact.expected_accepted)) <= FLOAT64_TOLERANCE
        assert ((rows[b].sum(-1) == 0) == (ours == 0)).all()


@pytest.mark.parametrize("dtype", MARGINS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_torch_equals_reference_given_uniforms(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    skipped, seen = 0, 0

    @given(toy=toys())
    def compare(toy: Toy) -> None:
        nonlocal skipped, seen
        batch = drawn_batch(toy, VERIFIERS[name].drafting)
        skipped += check_decisions(name, batch, uniforms_for(repr(toy), batch), dtype, device)
        seen += len(batch.trees)

    compare()
    print(f"{name} {dtype}: {skipped} of {seen} decisions within {MARGINS[dtype]} of a threshold")
    assert skipped <= 1e-3 * seen


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_stop_law_equals_the_exact_one(name: str, toy: Toy) -> None:
    check_stop_laws(name, drawn_batch(toy, VERIFIERS[name].drafting, size=4))


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_reference_in_floats_equals_reference_in_fractions(name: str, toy: Toy) -> None:
    batch = drawn_batch(toy, VERIFIERS[name].drafting, size=4)
    module = reference.VERIFIERS[name]
    for tree, target, draft in zip(batch.trees, batch.target, batch.draft, strict=True):
        exact = module.stop_law(tree, target, draft)
        plain = module.stop_law(tree, target.astype(np.float64), draft.astype(np.float64))
        joint = exact.stop_probs[:, None] * exact.next_token_probs()
        ours = plain.stop_probs[:, None] * plain.next_token_probs()
        assert np.abs(ours - joint.astype(np.float64)).max() <= FLOAT64_TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_batch_equals_singles_and_permutes(name: str, toy: Toy) -> None:
    batch = drawn_batch(toy, VERIFIERS[name].drafting, size=5)
    uniforms = uniforms_for(repr(toy), batch)
    tree, target, draft = moved(batch, torch.device("cpu"), torch.float64)
    together = verify(name, tree, target, draft, uniforms=uniforms)
    law = stop_law(name, tree, target, draft)
    for b in range(5):
        one = slice(b, b + 1)
        single = DraftTree(batch.topology, tree.tokens[one])
        alone = verify(name, single, target[one], draft[one], uniforms=uniforms[one])
        assert torch.equal(alone.tokens, together.tokens[one])
        assert torch.equal(alone.accepted_nodes, together.accepted_nodes[one])
        alone_law = stop_law(name, single, target[one], draft[one])
        assert torch.equal(alone_law.stop_probs, law.stop_probs[one])
    order = torch.tensor([3, 0, 4, 2, 1])
    turned = DraftTree(batch.topology, tree.tokens[order])
    again = verify(name, turned, target[order], draft[order], uniforms=uniforms[order])
    assert torch.equal(again.tokens, together.tokens[order])


@pytest.mark.parametrize("name", NAMES)
@given(toy=toys())
def test_verify_logits_is_verify_of_the_softmax(name: str, toy: Toy) -> None:
    batch = drawn_batch(toy, VERIFIERS[name].drafting)
    uniforms = uniforms_for(repr(toy), batch)
    tree, target, draft = moved(batch, torch.device("cpu"), torch.float64)
    expected = verify(name, tree, target, draft, uniforms=uniforms)
    near = near_a_threshold(name, tree, (target, draft), uniforms, FLOAT64_TOLERANCE)
    out = verify_logits(
        name, tree, 0.5 * target.log(), 0.5 * draft.log() + 3, temperature=0.5, uniforms=uniforms
    )
    assert torch.equal(out.tokens[~near], expected.tokens[~near])
    assert near.float().mean() <= 0.1
