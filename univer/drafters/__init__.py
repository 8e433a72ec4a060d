"""Where drafts come from.

A drafter is anything with `start(target) -> DraftSession`; a session follows one text and gives
the logits from which the tree is drawn. `SmallModel` is another causal LM; `layer_skip` makes one
out of the target's own layers; `EagleHead` reads the target's features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from univer.cached_model import CachedModel
from univer.drafting import DraftTree


class DraftSession(Protocol):
    """A drafter that follows one text."""

    @property
    def vocabulary(self) -> int:
        """Number V of logits a row; it must be the target's."""

    @property
    def max_positions(self) -> int | None:
        """Longest text that it can follow; None when unlimited."""

    @property
    def device(self) -> torch.device:
        """Where it wants the tree and leaves its logits."""

    def logits(self, text: Sequence[int], tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """Logits [1, n, V] for the children of these nodes.

        Called once a level with that level's internal nodes, the root first; `text` ends with the
        root. Rows of absent nodes (token -1) are not read. Nothing is called for a tree without
        drafts, so that more than one token of the text may be new.
        """

    def keep(self, accepted: Sequence[int] = ()) -> None:
        """Forget the tree, but for these nodes, a path from the root's child down: text now."""


class Drafter(Protocol):
    """A way to draft.

    `start` is handed the target's own cached model, still empty. A drafter that reads the target's
    hidden states may feed it the prompt and take what it needs there.
    """

    def start(self, target: CachedModel) -> DraftSession:
        """A session for a new text."""
