"""Two tree rules in use that ignore the draft law, one tree at a time: one lossless, one not.

- `TargetOnly`: each child is entered with its share of what is left of the target's law (SGLang's
  tree kernel with both thresholds at 1). Lossless for any draft law; shorter than the others.
- `ArgmaxMatching`: a child is entered if it is the target's most probable token; only the last
  token is sampled. Right at temperature 0, a bias at any other.

Both use the uniforms as UniVer's verifiers do: one a node, the last one for the next token.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _draw(weights: Any, uniform: float) -> int:
    """Inverse CDF over the tokens that have weight."""
    ids = np.flatnonzero(weights > 0)
    edges = np.cumsum(weights[ids])
    at = np.searchsorted(edges, uniform * edges[-1], side="right")
    return int(ids[min(int(at), len(ids) - 1)])


class TargetOnly:
    """Multinomial acceptance from the target's law alone."""

    drafting = "without_replacement"
    batched = False

    def verify(
        self, tree: Any, target_probs: Any, draft_probs: Any, *, uniforms: Any
    ) -> tuple[list[int], int]:
        """Accepted nodes and the next token."""
        del draft_probs
        node = 0
        accepted: list[int] = []
        while True:
            left = target_probs[node].copy()
            for child in tree.topology.children(node):
                token = tree.tokens[child]
                if token >= 0 and uniforms[child] * left.sum() < left[token]:
                    accepted.append(child)
                    node = child
                    break
                if token >= 0:
                    left[token] = 0
            else:
                return accepted, _draw(left, uniforms[-1])


class ArgmaxMatching:
    """Exact match with the target's most probable token; the last token is sampled."""

    drafting = "top_residual"
    batched = False

    def verify(
        self, tree: Any, target_probs: Any, draft_probs: Any, *, uniforms: Any
    ) -> tuple[list[int], int]:
        """Accepted nodes and the next token."""
        del draft_probs
        node = 0
        accepted: list[int] = []
        while True:
            best = target_probs[node].argmax()
            children = tree.topology.children(node)
            child = next((u for u in children if tree.tokens[u] == best), None)
            if child is None:
                return accepted, _draw(target_probs[node], uniforms[-1])
            accepted.append(child)
            node = child
