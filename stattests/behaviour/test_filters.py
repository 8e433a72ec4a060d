"""Temperature, top-k, top-p and min-p against their definitions, ties and extremes included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from univer import Filters, InputError

LOGITS = torch.tensor([1.0, 3.0, 2.0, 3.0, -torch.inf, 0.0], dtype=torch.float64)


def kept_by_definition(probs: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Ids that survive, by walking the tokens from the most probable, ties by id."""
    ranked = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    if top_k:
        ranked = ranked[:top_k]
    total = sum(probs[token] for token in ranked)
    kept: list[int] = []
    mass = 0.0
    for token in ranked:
        if mass < top_p or not kept:
            kept.append(token)
        mass += probs[token] / total
    floor = min_p * max(probs)
    return {token for token in kept if probs[token] >= floor and probs[token] > 0}


@given(
    weights=st.lists(st.integers(0, 7), min_size=2, max_size=8).filter(any),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.01, 0.3, 0.55, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.21, 0.71, 1.0]),
)
def test_filters_keep_what_their_definitions_say(
    weights: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.tensor(weights, dtype=torch.float64).log()
    law = Filters(1.0, top_k, top_p, min_p)(logits)
    probs = [weight / sum(weights) for weight in weights]
    kept = kept_by_definition(probs, top_k, top_p, min_p)
    assert set(law.nonzero()[:, 0].tolist()) == kept
    expected = torch.tensor([p if t in kept else 0.0 for t, p in enumerate(probs)])
    torch.testing.assert_close(law, (expected / expected.sum()).double(), rtol=1e-6, atol=1e-6)


def test_a_row_alone_is_a_row_in_a_batch(device: torch.device) -> None:
    rows = torch.stack([LOGITS, LOGITS.flip(0)]).to(device)
    for filters in (Filters(), Filters(0.7, 3), Filters(0.5, top_p=0.8), Filters(2, min_p=0.2)):
        batch = filters(rows[None])
        assert torch.equal(batch[0, 0], filters(rows[0]))
        assert torch.equal(batch[0, 1], filters(rows[1]))
        assert filters(rows[:1]).shape == (1, 6)


def test_the_hottest_law_is_flat_and_finite() -> None:
    law = Filters(1e39)(torch.tensor([1.0, 3.0, -torch.inf]))
    torch.testing.assert_close(law, torch.tensor([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("logits", [[1.0, 2.0], torch.zeros(2, 0), torch.tensor(1.0)], ids=str)
def test_what_is_not_logits_is_refused(logits: object) -> None:
    with pytest.raises(InputError, match=r"^logits: expected a tensor \[..., V\]"):
        Filters()(logits)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0, 1e-320, 1e-8, 1e-4])
def test_cold_laws_are_finite_and_on_the_largest_logit(temperature: float) -> None:
    law = Filters(temperature)(torch.tensor([1.0, 3.0, 2.0, -torch.inf]))
    assert law.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_ties_at_temperature_0_go_to_the_lower_id() -> None:
    """And only there: any temperature above 0 splits a tie evenly."""
    assert Filters(0)(LOGITS).tolist() == [0, 1, 0, 0, 0, 0]
    assert Filters(1e-8)(LOGITS).tolist() == [0, 0.5, 0, 0.5, 0, 0]


def test_hot_laws_are_flat_over_what_can_come() -> None:
    law = Filters(1e6)(LOGITS)
    torch.testing.assert_close(
        law[[0, 1, 2, 3, 5]], torch.full((5,), 0.2).double(), atol=1e-5, rtol=0
    )
    assert law[4] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_laws_are_at_least_float32_and_inputs_stay(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    before = logits.clone()
    law = Filters(0.9, top_k=4, top_p=0.9)(logits)
    assert law.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(logits, before)
    assert abs(law.sum() - 1) < 1e-6


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("temperature", "1"),
        ("temperature", None),
        ("top_k", True),
        ("top_p", "0.9"),
        ("min_p", None),
        ("min_p", -0.1),
        ("min_p", 1.5),
    ],
)
def test_values_out_of_range_are_named(argument: str, value: float) -> None:
    with pytest.raises(InputError, match=f"^{argument}: .*{value}"):
        Filters(**{argument: value})  # type: ignore[arg-type]
