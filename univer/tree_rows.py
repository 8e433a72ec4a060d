"""The rows of drafted trees: how they become laws, and the checks of those that are read.

Letters: B trees, N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from univer.composition import drafted_nodes, present_nodes
from univer.draft_laws import DRAFTING
from univer.drafting import DraftTree, check_arity, check_tokens
from univer.errors import (
    InputError,
    check_logit_rows,
    check_rows_shape,
    first,
    node_in_tree,
)
from univer.indices import Columns, columns, indices, set_columns
from univer.rows import total, without

if TYPE_CHECKING:
    from univer.verifiers import Verifier


def renormalise(probs: Tensor) -> Tensor:
    """The laws [..., V] in float64: float32 rows sum to 1 only within their rounding."""
    probs = probs.double().contiguous()
    return probs / total(probs)[..., None]


def rows_at(rows: Tensor, nodes: Tensor) -> Tensor:
    """Each tree's row [B, V] of [B, N, V] at its node [B]."""
    first = torch.arange(len(rows), device=nodes.device) * rows.shape[1]
    return rows.reshape(-1, rows.shape[-1]).index_select(0, first + nodes)


@dataclass(frozen=True, eq=False)
class Laws:
    """Rows [B, n, V] of probabilities or logits, and how they become laws in float64."""

    rows: Tensor
    law: Callable[[Tensor], Tensor]

    def __getitem__(self, trees: slice) -> Laws:
        """The laws of some of the trees."""
        return Laws(self.rows[trees], self.law)

    def __call__(self, table: Columns) -> Tensor:
        """The laws of these columns, [B, n, V]."""
        return self.law(columns(self.rows, table))

    def at(self, numbers: Tensor) -> Tensor:
        """One law a tree, [B, V], of its row [B]."""
        return self.law(rows_at(self.rows, numbers))


def check_shapes(
    verifier: Verifier, tree: DraftTree, target: Tensor, draft: Tensor, kind: str
) -> None:
    """Check a tree, its tokens and the shapes of its rows, `kind` "probs" or "logits"."""
    if not isinstance(tree, DraftTree):
        raise InputError(f"tree: expected a DraftTree, got {type(tree).__name__}.")
    topology, tokens = tree.topology, tree.tokens
    batch, device = tokens.shape[0], tokens.device
    vocab = check_rows_shape(f"target_{kind}", target, batch, topology.num_nodes, None, device)
    if topology.internal:
        check_rows_shape(f"draft_{kind}", draft, batch, len(topology.internal), vocab, device)
    rule = f"{verifier.allocation!r} on trees drafted by {verifier.drafting!r}"
    check_arity(topology, verifier.max_arity, rule)
    check_tokens(topology, tokens, vocab, twins=DRAFTING[verifier.drafting].twins)


def check_whole(verifier: Verifier, tree: DraftTree, draft: Laws) -> None:
    """Refuse half a node's children where the draft law gives that no meaning."""
    law, topology, tokens = DRAFTING[verifier.drafting], tree.topology, tree.tokens
    for layer in indices(topology, tokens.device).layers if law.whole else ():
        children = columns(tokens, layer.slots)
        half = (children >= 0).any(-1) & (children < 0).any(-1)
        if half.any():
            drawn = children[half]
            # One alone is all that there was where it has all of the draft's mass.
            wrong = half.index_put(
                (half,), total(without(draft(layer.draft_rows)[half], drawn)) > 0
            )
            if wrong.any():
                b, place = first(wrong)
                raise InputError(
                    f"tree.tokens: node {layer.nodes.ids[place].item()} of tree {b} has children"
                    f" {children[b, place].tolist()}, but its draft law has mass beside them;"
                    f" {law.name!r} draws all of a node's children, or the drafter none."
                )


def check_inner_logits(tree: DraftTree, target_logits: Tensor, draft_logits: Tensor) -> None:
    """Check the rows of the internal nodes that are read, without a copy of them."""
    topology = tree.topology
    if not topology.internal:
        return
    inner, present = indices(topology, tree.tokens.device).internal, present_nodes(tree.tokens)
    read = torch.zeros_like(present)
    set_columns(read, inner, columns(present, inner))
    check_logit_rows("target_logits", target_logits, read, node_in_tree(range(topology.num_nodes)))
    drafted, place = drafted_nodes(topology, tree.tokens), node_in_tree(topology.internal)
    check_logit_rows("draft_logits", draft_logits, drafted, place)


def check_stop_logits(target_logits: Tensor, stop: Tensor) -> None:
    """Check the rows of the nodes [B] that cycles stop at, one a tree."""
    check_logit_rows(
        "target_logits",
        rows_at(target_logits, stop),
        torch.ones_like(stop, dtype=torch.bool),
        lambda index: f"the row of node {stop[index].item()} in tree {index[0]}",
    )
