"""A cache's state at one length of the text, to be brought back after a rejection."""

from __future__ import annotations

import copy
from typing import Any


class State:
    """What the layers of a cache hold, which goes on being written to.

    Args:
        cache: of transformers.
        length: tokens of the text that it holds.
    """

    def __init__(self, cache: Any, length: int) -> None:
        self.length = length
        self._layers = [_own(vars(layer)) for layer in cache.layers]

    def bring_back(self, cache: Any) -> None:
        """Put the cache back to this state, as often as wanted."""
        for layer, held in zip(cache.layers, self._layers, strict=True):
            vars(layer).clear()
            vars(layer).update(_own(held))


def _own(held: dict[str, Any]) -> dict[str, Any]:
    # Layers that grow make new keys and values; everything else may be written in place.
    shared = ("keys", "values")
    return {name: x if name in shared else copy.deepcopy(x) for name, x in held.items()}
