"""STATS L1: torch gives the oracle's answer for the same trees, laws and uniforms.

The oracle works in fractions, on the very numbers that torch is given (float32 rows included).
Decisions may differ only where a uniform lies within rounding of a threshold; such rows are counted
and printed (`-s`).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from stattests.crosscheck.both import (
    FLOAT64_TOLERANCE,
    THRESHOLD_MARGIN,
    Batch,
    acceptance_of,
    drawn_batch,
)
from stattests.strategies import Toy, for_toys
from stattests.streams import torch_generator
from univer import VERIFIERS, DraftTree, stop_law, verify, verify_logits

NAMES = sorted(VERIFIERS)
DTYPES = [torch.float64, torch.float32]


def seen_by(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with the laws that rows of this dtype say."""
    return batch if dtype == torch.float64 else batch.as_float32()


def uniforms_for(case: str, batch: Batch) -> torch.Tensor:
    shape = (len(batch.trees), batch.topology.num_nodes + 1)
    return torch.rand(shape, dtype=torch.float64, generator=torch_generator(case))


def near_a_threshold(
    name: str,
    tree: DraftTree,
    target: torch.Tensor,
    draft: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Rows [B] in which some uniform is within the margin of what it is compared with."""
    thresholds = acceptance_of(name, tree, target, draft)
    uniforms = uniforms.to(thresholds.device)
    close = (uniforms[:, :-1] - thresholds).abs() < THRESHOLD_MARGIN
    edges = stop_law(name, tree, target, draft).next_token_probs().cumsum(-1)
    closest = (uniforms[:, -1, None, None] - edges).abs().amin((1, 2))
    return (close.any(-1) | (closest < THRESHOLD_MARGIN)).cpu()


def check_decisions(
    name: str, batch: Batch, uniforms: torch.Tensor, dtype: torch.dtype, device: torch.device
) -> int:
    """Compare every decision with the oracle's; return how many rows were within rounding."""
    tree, rows = batch.on(device), batch.rows(dtype, device)
    out = verify(name, tree, *rows, uniforms=uniforms.to(device))
    near = near_a_threshold(name, tree, *rows, uniforms)
    exact = seen_by(batch, dtype)
    for b, oracle_tree in enumerate(exact.trees):
        expected = reference.VERIFIERS[name].verify(
            oracle_tree, exact.target[b], exact.draft[b], uniforms=uniforms[b].numpy()
        )
        if out.tokens[b].tolist() != expected.tokens.tolist():
            assert near[b], (b, out.tokens[b], expected.tokens)
            continue
        assert out.accepted_nodes[b].tolist() == expected.accepted_nodes.tolist()
        assert out.num_accepted[b] == expected.num_accepted
        assert out.next_token[b] == expected.next_token
    return int(near.sum())


def check_stop_laws(name: str, batch: Batch, dtype: torch.dtype, device: torch.device) -> None:
    """Compare stop laws and expected lengths with the exact ones."""
    law = stop_law(name, batch.on(device), *batch.rows(dtype, device))
    ours, rows = law.stop_probs.cpu().numpy(), law.next_token_probs().cpu().numpy()
    lengths = law.expected_accepted.cpu().tolist()
    seen = seen_by(batch, dtype)
    for b, tree in enumerate(seen.trees):
        exact = reference.VERIFIERS[name].stop_law(tree, seen.target[b], seen.draft[b])
        stop = exact.stop_probs.astype(np.float64)
        joint = stop[:, None] * exact.next_token_probs().astype(np.float64)
        assert np.abs(ours[b] - stop).max() <= FLOAT64_TOLERANCE
        assert np.abs(ours[b][:, None] * rows[b] - joint).max() <= FLOAT64_TOLERANCE
        assert abs(lengths[b] - float(exact.expected_accepted)) <= FLOAT64_TOLERANCE
        assert ((rows[b].sum(-1) == 0) == (ours[b] == 0)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_torch_equals_reference_given_uniforms(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    skipped, seen = 0, 0

    def compare(toy: Toy) -> None:
        nonlocal skipped, seen
        batch = drawn_batch(toy, VERIFIERS[name].drafting)
        skipped += check_decisions(name, batch, uniforms_for(repr(toy), batch), dtype, device)
        seen += len(batch.trees)

    for_toys(name, compare)
    print(f"{name} {dtype}: {skipped} of {seen} decisions within {THRESHOLD_MARGIN} of a threshold")
    assert skipped <= 1e-3 * seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_stop_law_equals_the_exact_one(name: str, dtype: torch.dtype, device: torch.device) -> None:

    def compare(toy: Toy) -> None:
        check_stop_laws(name, drawn_batch(toy, VERIFIERS[name].drafting, size=4), dtype, device)

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_reference_in_floats_equals_reference_in_fractions(name: str) -> None:

    def compare(toy: Toy) -> None:
        batch = drawn_batch(toy, VERIFIERS[name].drafting, size=4)
        module = reference.VERIFIERS[name]
        for tree, target, draft in zip(batch.trees, batch.target, batch.draft, strict=True):
            exact = module.stop_law(tree, target, draft)
            plain = module.stop_law(tree, target.astype(np.float64), draft.astype(np.float64))
            joint = exact.stop_probs[:, None] * exact.next_token_probs()
            ours = plain.stop_probs[:, None] * plain.next_token_probs()
            assert np.abs(ours - joint.astype(np.float64)).max() <= FLOAT64_TOLERANCE

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_batch_equals_singles_and_permutes(name: str, device: torch.device) -> None:

    def compare(toy: Toy) -> None:
        batch = drawn_batch(toy, VERIFIERS[name].drafting, size=5)
        uniforms = uniforms_for(repr(toy), batch).to(device)
        tree, (target, draft) = batch.on(device), batch.rows(device=device)
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
        order = torch.tensor([3, 0, 4, 2, 1], device=device)
        turned = DraftTree(batch.topology, tree.tokens[order])
        again = verify(name, turned, target[order], draft[order], uniforms=uniforms[order])
        assert torch.equal(again.tokens, together.tokens[order])

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_verify_logits_is_verify_of_the_softmax(name: str, device: torch.device) -> None:
    """Laws taken through logarithms move by rounding; a row within it of an edge may differ."""

    def compare(toy: Toy) -> None:
        batch = drawn_batch(toy, VERIFIERS[name].drafting)
        uniforms = uniforms_for(repr(toy), batch).to(device)
        tree, (target, draft) = batch.on(device), batch.rows(device=device)
        expected = verify(name, tree, target, draft, uniforms=uniforms)
        logits = [0.5 * target.log(), 0.5 * draft.log() + 3]
        out = verify_logits(name, tree, *logits, temperature=0.5, uniforms=uniforms)
        same = (out.tokens == expected.tokens).all(-1).cpu()
        assert (same | near_a_threshold(name, tree, target, draft, uniforms)).all()

    for_toys(name, compare)
