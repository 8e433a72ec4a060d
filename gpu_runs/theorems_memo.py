"""A model's rows behind one prompt, computed once a prefix: cycles by the thousand in minutes.

Cycles that all start at the prompt need the laws after it and after each drafted first token; the
text's first two tokens depend on nothing deeper. (A verifier is lossless whatever laws it is told
of deeper nodes, so the prompt's own stand in for those.)

Letters: B trees, N nodes, I internal nodes, k new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from univer import DraftTree, Filters, InputError, Topology, draft_tree
from univer.cached_model import CachedModel
from univer.drafters.small_model import SmallModel

AT_ONCE = 32  # first tokens a forward


class PrefixMemo:
    """Target and draft laws after a prompt, and after the prompt and one more token.

    Args:
        target: a causal LM in evaluation mode.
        drafter: a Drafter, or another causal LM over the same token ids.
        prompt: token ids, not empty.
        filters: shapes both laws; not at temperature 0, where drafts are not drawn from a law.

    Raises:
        InputError: models that cannot be used, or temperature 0.
    """

    def __init__(self, target: Any, drafter: Any, prompt: Sequence[int], filters: Filters) -> None:
        if filters.greedy:
            raise InputError("temperature: expected > 0; at 0 there is no law to be tested.")
        self._text, self._filters = list(prompt), filters
        self._target = CachedModel(target)
        source = drafter if hasattr(drafter, "start") else SmallModel(drafter)
        self._drafter = source.start(self._target)
        self._slot: dict[int, int] = {}
        self._laws = self._read([])  # [2, capacity, V]: target and draft, the prompt's own first

    @property
    def known(self) -> int:
        """Number of rows."""
        return 1 + len(self._slot)

    @property
    def target(self) -> Tensor:
        """The target's laws [rows, V]; more rows come with `slots`."""
        return self._laws[0, : self.known]

    @property
    def draft(self) -> Tensor:
        """The draft laws, likewise."""
        return self._laws[1, : self.known]

    def slots(self, tokens: Tensor) -> Tensor:
        """The rows of `target` and `draft` after these first tokens, -1 for any; same shape."""
        distinct, which = tokens.unique(return_inverse=True)
        new = [token for token in distinct.tolist() if token >= 0 and token not in self._slot]
        for start in range(0, len(new), AT_ONCE):
            few = new[start : start + AT_ONCE]
            laws, known = self._read(few)[:, 1:], self.known
            if known + len(few) > self._laws.shape[1]:  # twice the room: few copies in all
                room = torch.empty(2, max(known, AT_ONCE), laws.shape[2], dtype=laws.dtype)
                self._laws = torch.cat([self._laws[:, :known], room], 1)
            self._laws[:, known : known + len(few)] = laws
            self._slot |= {token: known + i for i, token in enumerate(few)}
        found = [self._slot.get(token, 0) for token in distinct.tolist()]
        return torch.tensor(found)[which]

    def trees(
        self, drafting: str, topology: Topology, batch: int, generator: torch.Generator
    ) -> tuple[DraftTree, Tensor, Tensor]:
        """Draw trees behind the prompt; their target_probs [B, N, V], draft_probs [B, I, V]."""
        roots = torch.full((batch,), self._text[-1])

        def next_law(tree: DraftTree, nodes: tuple[int, ...]) -> tuple[Tensor, None]:
            rows = self._rows(tree)[:, list(nodes)]  # first: it may add to `draft`
            return self.draft[rows], None

        tree, draft = draft_tree(drafting, topology, roots, next_law, generator=generator)
        rows = self._rows(tree)
        return tree, self.target[rows], draft

    def _rows(self, tree: DraftTree) -> Tensor:
        """The memo's row for every node, [B, N]."""
        rows = torch.zeros_like(tree.tokens)
        first = [node for node, depth in enumerate(tree.topology.depths) if depth == 1]
        rows[:, first] = self.slots(tree.tokens[:, first])
        return rows

    def _read(self, tokens: Sequence[int]) -> Tensor:
        """Target and draft laws after the prompt, then after k first tokens: [2, 1 + k, V]."""
        star = Topology.from_parents([-1] + [0] * len(tokens))
        tree = DraftTree(star, torch.tensor([[self._text[-1], *tokens]]))
        self._target.keep()
        self._drafter.keep()
        there = DraftTree(star, tree.tokens.to(self._drafter.device))
        levels = [(0,), tuple(range(1, len(tokens) + 1))]
        draft = [self._drafter.logits(self._text, there, nodes)[0] for nodes in levels if nodes]
        target = self._target.logits(
            self._text, DraftTree(star, tree.tokens.to(self._target.device)), range(star.num_nodes)
        )[0]
        laws = (self._filters(target), self._filters(torch.cat(draft)))
        return torch.stack([law.cpu() for law in laws])
