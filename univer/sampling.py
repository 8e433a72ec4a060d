"""Draws with given uniforms: inverse CDF in token-id order (SPEC 8), and where uniforms come from.

Letters: V vocabulary; "..." any batch axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.errors import InputError, check_exactly_one, check_uniforms

PIECE = 2**17  # weights whose running sums are taken at once on a CPU: 1 MB stays in the cache
LARGEST = 1 - 2**-53  # the largest float64 below 1


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose cumulative weight exceeds uniforms x total; -1 where nothing has weight.

    A token of zero weight is never drawn, whatever the uniform and however the running sum rounds.

    Args:
        weights: non-negative, [..., V]; need not sum to 1.
        uniforms: float64 in [0, 1), [...].

    Returns:
        Token ids, int64 [...].

    Example:
        >>> weights = torch.tensor([0.0, 1.0, 0.0, 3.0], dtype=torch.float64)
        >>> uniforms = torch.tensor([0.0, 0.25, 1 - 2**-53], dtype=torch.float64)
        >>> inverse_cdf(weights.expand(3, 4), uniforms)
        tensor([1, 3, 3])
    """
    if weights.device.type == "cpu":
        few = max(1, PIECE // weights.shape[-1])
        if uniforms.numel() <= few:
            return _first_by_search(weights.cumsum(-1, dtype=torch.float64), uniforms)
        rows = weights.reshape(-1, weights.shape[-1]).split(few)
        parts = zip(rows, uniforms.flatten().split(few), strict=True)
        return torch.cat([inverse_cdf(*part) for part in parts]).view(uniforms.shape)
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # Elsewhere sums are not taken in order, and need not be monotone.
    return _first_by_mask(cumulative, uniforms, weights > 0)


def _first_by_search(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    whole = cumulative[..., -1]
    # uniforms x whole may round up to the whole, which nothing exceeds.
    bound = torch.minimum(uniforms * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    found = torch.searchsorted(cumulative, bound[..., None], right=True)[..., 0]
    return torch.where(whole > 0, found, -1)


def _first_by_mask(cumulative: Tensor, uniforms: Tensor, positive: Tensor) -> Tensor:
    # Only ids that have weight count, and the last of them is the answer where none exceeds.
    exceeds = positive & (cumulative > uniforms[..., None] * cumulative[..., -1:])
    ids = torch.arange(positive.shape[-1], device=positive.device)
    last = torch.where(positive, ids, -1).amax(-1)
    return torch.where(exceeds.any(-1), exceeds.to(torch.uint8).argmax(-1), last)


def take_uniforms(
    uniforms: Tensor | None,
    generator: torch.Generator | None,
    shape: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """The given uniforms, checked, or fresh ones from the given generator: float64 of this shape.

    Raises:
        InputError: both or neither are given, or the uniforms are not as expected.
    """
    check_exactly_one("uniforms", uniforms, "generator", generator)
    if uniforms is not None:
        check_uniforms("uniforms", uniforms, shape, device)
        return uniforms
    if not isinstance(generator, torch.Generator):
        raise InputError(f"generator: expected a torch.Generator, got {type(generator).__name__}.")
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
    return drawn.to(device)
