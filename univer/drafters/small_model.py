"""Drafting with another, smaller causal language model of the same tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from univer.cached_model import CachedModel


@dataclass(frozen=True)
class SmallModel:
    """Drafts from a causal LM: one forward a level, with its own KV cache.

    Args:
        model: a Hugging Face causal LM over the target's token ids, in evaluation mode.
    """

    model: Any

    def start(self, target: CachedModel) -> CachedModel:
        """A session for a new text."""
        return CachedModel(self.model, "drafter", check=target.check)
