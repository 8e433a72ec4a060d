"""Draws with given uniforms, where a running sum is at its worst."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stattests.crosscheck.both import LARGEST
from univer import InputError, sampling
from univer.sampling import inverse_cdf, take_uniforms

EDGES = torch.tensor([0.0, 2**-24, 0.5, 1 - 2**-24, LARGEST], dtype=torch.float64)


def test_large_flat_vocabularies_keep_their_tails(device: torch.device) -> None:
    """A float32 running sum of 32 000 equal terms ends at .9998: the last ids were never drawn."""
    for vocab in (32_000, 128_256):
        weights = torch.full((1, vocab), 1 / vocab, dtype=torch.float32, device=device)
        last = inverse_cdf(weights, torch.tensor([LARGEST], dtype=torch.float64, device=device))
        assert last.tolist() == [vocab - 1]
        middle = inverse_cdf(weights, torch.tensor([0.75], dtype=torch.float64, device=device))
        assert abs(middle.item() - 0.75 * vocab) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_zero_tail_is_never_drawn(dtype: torch.dtype, device: torch.device) -> None:
    weights = torch.zeros(5, 50_000, dtype=dtype, device=device)
    weights[:, 1000:2000] = 0.1
    drawn = inverse_cdf(weights, EDGES.to(device))
    assert drawn.min() >= 1000
    assert drawn.max() < 2000
    assert drawn[0] == 1000
    assert drawn[-1] == 1999


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=5, max_size=5),
    scale=st.sampled_from([1.0, 1e-300, 1e300, 5e-324]),
)
def test_only_ids_with_weight_are_drawn_at_any_scale(rows: list[list[int]], scale: float) -> None:
    weights = torch.tensor(rows, dtype=torch.float64) * scale
    drawn = inverse_cdf(weights, EDGES)
    for row, token in zip(rows, drawn.tolist(), strict=True):
        assert row[token] > 0 if any(row) else token == -1
    # The way of other devices, on this one.
    assert torch.equal(sampling._first_by_mask(weights.cumsum(-1), EDGES, weights > 0), drawn)


def test_exactly_one_source_of_randomness() -> None:
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.zeros(1, 2, dtype=torch.float64)
    cpu = torch.device("cpu")
    for pair, given_ in [((None, None), "neither"), ((uniforms, generator), "both")]:
        with pytest.raises(InputError, match=f"exactly one of the two, got {given_}"):
            take_uniforms(*pair, (1, 2), cpu)
    drawn = take_uniforms(None, generator, (1000, 3), cpu)
    assert drawn.dtype == torch.float64
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert len(drawn.unique()) == 3000


@pytest.mark.parametrize(
    ("uniforms", "says"),
    [
        (torch.zeros(1, 2), "expected a float64 tensor, got torch.float32"),
        ([[0.0, 0.0]], "expected a float64 tensor, got list"),
        (torch.zeros(2, 2, dtype=torch.float64), r"expected shape \[1, 2\], got \[2, 2\]"),
        (torch.tensor([[0.0, 1.0]], dtype=torch.float64), r"entry \[0, 1\] is 1.0"),
        (torch.tensor([[-1e-9, 0.0]], dtype=torch.float64), r"entry \[0, 0\] is -1e-09"),
        (torch.tensor([[0.0, torch.nan]], dtype=torch.float64), r"entry \[0, 1\] is nan"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_uniforms_are_named(uniforms: object, says: str) -> None:
    with pytest.raises(InputError, match=f"^uniforms: .*{says}"):
        take_uniforms(uniforms, None, (1, 2), torch.device("cpu"))  # type: ignore[arg-type]
