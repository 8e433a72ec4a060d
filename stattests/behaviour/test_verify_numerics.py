"""Numerics of `verify` and `stop_law`: dtypes, large vocabularies, threads, strides, the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stattests.behaviour.test_verify import NAMES, outputs, problem
from stattests.streams import torch_generator
from univer import (
    DRAFTING,
    VERIFIERS,
    DraftTree,
    Filters,
    stop_law,
    verifiers,
    verify,
    verify_logits,
)
from univer.indices import indices


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_laws_are_read_as_they_are(name: str, dtype: torch.dtype) -> None:
    """Their sums are off by rounding alone; the numbers count, renormalised. Dtypes may differ."""
    tree, target, draft, uniforms = problem(name, "2x2", vocab=3000)
    rows = [part.softmax(-1).to(dtype) for part in (target, draft)]
    exact = [row.double() / row.double().sum(-1, keepdim=True) for row in rows]
    expected = verify(name, tree, *exact, uniforms=uniforms)
    assert torch.equal(verify(name, tree, *rows, uniforms=uniforms).tokens, expected.tokens)
    mixed = verify(name, tree, exact[0], rows[1], uniforms=uniforms)
    assert torch.equal(mixed.tokens, expected.tokens)


@pytest.mark.parametrize("name", NAMES)
def test_answer_does_not_depend_on_batch_threads_or_strides(name: str) -> None:
    """To the last bit, on rows long enough to be summed by several threads."""
    tree, target, draft, _ = problem(name, "2x1", batch=3, vocab=33_000)
    target, draft = target.softmax(-1), draft.softmax(-1)
    one = stop_law(name, tree, target, draft)
    torch.set_num_threads(2)
    try:
        two = stop_law(name, tree, target, draft)
        alone = [
            stop_law(name, DraftTree(tree.topology, tree.tokens[b : b + 1]), p[None], q[None])
            for b, (p, q) in enumerate(zip(target, draft, strict=True))
        ]
    finally:
        torch.set_num_threads(1)
    strided = [part.transpose(0, 2).contiguous().transpose(0, 2) for part in (target, draft)]
    turned = stop_law(name, tree, *strided)
    for law in (two, turned):
        assert torch.equal(law.stop_probs, one.stop_probs)
        assert torch.equal(law.next_token_probs(), one.next_token_probs())
    assert torch.equal(torch.cat([law.stop_probs for law in alone]), one.stop_probs)


@pytest.mark.parametrize("name", NAMES)
def test_inference_mode_and_gradients_leave_no_trace(name: str) -> None:
    tree, target, draft, uniforms = problem(name, "2x2")
    target, draft = target.softmax(-1), draft.softmax(-1)
    indices.cache_clear()  # its tables are made in inference mode now
    with torch.inference_mode():
        first = verify(name, tree, target, draft, uniforms=uniforms)
    again = verify(name, tree, target.requires_grad_(), draft, uniforms=uniforms)
    assert torch.equal(first.tokens, again.tokens)
    law = stop_law(name, tree, target, draft)
    assert not law.stop_probs.requires_grad
    assert not law.next_token_probs().requires_grad


def test_filtered_law_does_not_depend_on_batch_or_threads() -> None:
    logits = torch.randn(3, 50_000, generator=torch_generator("filters")) * 4
    for filters in (Filters(0.7, top_p=0.9), Filters(top_k=1000), Filters(min_p=0.001)):
        together = filters(logits)
        torch.set_num_threads(2)
        try:
            alone = [filters(row) for row in logits]
        finally:
            torch.set_num_threads(1)
        assert torch.equal(torch.stack(alone), together)


def test_outputs_can_be_compared_without_an_error() -> None:
    part = problem("univer", "2x2")
    assert outputs("univer", *part) != outputs("univer", *part)
    assert part[0] == part[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_read_and_never_summed(name: str, dtype: torch.dtype) -> None:
    """Low-precision logits give the answer of the very same numbers in float64."""
    tree, target, draft, uniforms = problem(name, "2x2", vocab=5000)
    target, draft = target.to(dtype), draft.to(dtype)
    out = verify_logits(name, tree, target, draft, uniforms=uniforms)
    expected = verify_logits(name, tree, target.double(), draft.double(), uniforms=uniforms)
    assert torch.equal(out.tokens, expected.tokens)


@pytest.mark.parametrize("name", NAMES)
def test_float32_softmax_rows_of_a_large_vocabulary_pass(name: str) -> None:
    tree, target, draft, uniforms = problem(name, "2x2", batch=2, vocab=128_256)
    rows = [(0.01 * part).float().softmax(-1) for part in (target, draft)]
    children = tree.tokens[:, list(tree.topology.children(0))]
    assert (children >= 0).all()
    out = verify(name, tree, *rows, uniforms=uniforms)
    assert (out.next_token >= 0).all()


class NoSync(TorchDispatchMode):
    """Refuses every operation that makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unless its result has to reach the host."""
        del types
        if func.overloadpacket in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
        ):
            raise AssertionError(f"{func} synchronises with the host")
        return func(*args, **(kwargs or {}))


# k-SEQ looks whether its roots are found.
@pytest.mark.parametrize("spec", ["eagle", "2x2"])
@pytest.mark.parametrize("name", [name for name in NAMES if "k_seq" not in name])
def test_no_level_waits_for_the_device(
    name: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the checks at the door and the answer nothing is read back to the host."""
    for step in ("judge", "next_token_weights", "inverse_cdf"):
        original = getattr(verifiers, step)

        def watched(*arguments: Any, original: Any = original) -> Any:
            with NoSync():
                return original(*arguments)

        monkeypatch.setattr(verifiers, step, watched)
    law = VERIFIERS[name].drafting
    row = DRAFTING[law]

    def watched_draw(*arguments: Any) -> Any:
        with NoSync():
            return row.draw(*arguments)

    monkeypatch.setitem(DRAFTING, law, replace(row, draw=watched_draw))
    tree, target, draft, uniforms = problem(name, spec)
    outputs(name, tree, target, draft, uniforms)
    verify_logits(name, tree, target, draft, uniforms=uniforms)
    stop_law(name, tree, target.softmax(-1), draft.softmax(-1))
    with pytest.raises(AssertionError, match="synchronises"), NoSync():
        torch.zeros(1).item()
