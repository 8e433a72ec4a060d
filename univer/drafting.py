"""Draft trees: what they are, what is checked of them, and how they are drawn (SPEC 3).

The law in a verifier's formula must be the law that was sampled: DRAFTING in `univer.draft_laws`
names the laws, and each allocation names those that it is lossless for.

Letters: B trees, N nodes, I internal nodes, n nodes of a layer, V vocabulary, m arity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from univer.draft_laws import DRAFTING
from univer.errors import (
    InputError,
    check_choice,
    check_floating,
    check_logit_rows,
    check_prob_rows,
    check_uniforms,
    described,
    first,
    node_in_tree,
)
from univer.indices import columns, indices, set_columns
from univer.sampling import take_uniforms
from univer.topology import Topology


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Drafted tokens on a topology.

    Args:
        topology: the shape of the tree.
        tokens: int64 [B, N]; [:, 0] is the root's token, -1 an absent node.

    Raises:
        InputError: the tokens are not int64 [B, N].
    """

    topology: Topology
    tokens: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Topology):
            raise InputError(
                f"tree.topology: expected a Topology, got {type(self.topology).__name__}."
            )
        if not isinstance(self.tokens, Tensor) or self.tokens.dtype != torch.int64:
            given = described(self.tokens)
            raise InputError(f"tree.tokens: expected an int64 tensor [B, N], got {given}.")
        if self.tokens.ndim != 2 or self.tokens.shape[1] != self.topology.num_nodes:
            raise InputError(
                f"tree.tokens: expected shape [B, N] with N = {self.topology.num_nodes},"
                f" got {list(self.tokens.shape)}."
            )


def check_arity(topology: Topology, most: int | None, whose: str) -> None:
    """Check that no node has more children than a draft law or a rule takes."""
    if most is not None and (widest := topology.max_arity) > most:
        node = next(v for v in topology.internal if len(topology.children(v)) == widest)
        raise InputError(
            f"topology: node {node} has {widest} children; {whose} takes at most {most} a node."
        )


def check_tokens(topology: Topology, tokens: Tensor, vocab: int, *, twins: bool = False) -> None:
    """Check a draft tree's ids [B, N]: in range, absent only at the end.

    Siblings must be distinct, unless `twins` are allowed.
    """
    bad = (tokens < -1) | (tokens >= vocab)
    if bad.any():
        tree, node = first(bad)
        raise InputError(
            f"tree.tokens: node {node} of tree {tree} holds token {tokens[tree, node].item()};"
            f" expected an id in [0, {vocab}) or -1 for an absent node."
        )
    table, absent = indices(topology, tokens.device), tokens < 0
    absent[:, 0] = False  # the root is always there
    orphan = absent.index_select(1, table.parents) & ~absent
    if orphan.any():
        tree, node = first(orphan)
        raise InputError(
            f"tree.tokens: node {node} of tree {tree} is present but its parent"
            f" {topology.parents[node]} is absent; the subtree of an absent node must be -1."
        )
    gap = absent.index_select(1, table.siblings[0]) & ~absent.index_select(1, table.siblings[1])
    if gap.any():
        tree, pair = first(gap)
        raise InputError(
            f"tree.tokens: node {table.siblings[0, pair].item()} of tree {tree} is absent (-1) but"
            " its next sibling is present; absent children come last."
        )
    if twins:
        return
    # Siblings with the same token share a number; absent nodes, and the root, have their own.
    numbers = table.parents * vocab + tokens
    alone = torch.arange(-1, -1 - tokens.shape[1], -1, device=tokens.device)
    numbers = torch.where(absent, alone, numbers)
    numbers[:, 0] = -1
    ordered = numbers.sort(-1).values
    twin = ordered[:, 1:] == ordered[:, :-1]
    if twin.any():
        tree, place = first(twin)
        parent, token = divmod(int(ordered[tree, place]), vocab)
        raise InputError(
            f"tree.tokens: token {token} is drafted twice below node {parent} of tree {tree};"
            " siblings must be distinct."
        )


def _check_rows(probs: object, scores: object, ndim: int) -> None:
    """Check the kind and shape of draft laws and of the scores beside them."""
    check_floating("draft_probs", probs)
    assert isinstance(probs, Tensor)
    if probs.ndim != ndim or probs.shape[-1] == 0:
        raise InputError(
            f"draft_probs: expected {ndim} axes, the last of size V >= 1, got {list(probs.shape)}."
        )
    if scores is None:
        return
    check_floating("scores", scores)
    assert isinstance(scores, Tensor)
    if scores.shape != probs.shape:
        raise InputError(
            f"scores: expected the shape of draft_probs, {list(probs.shape)},"
            f" got {list(scores.shape)}."
        )


def draft_children(
    drafting: str,
    draft_probs: Tensor,
    arity: int,
    uniforms: Tensor,
    scores: Tensor | None = None,
) -> Tensor:
    """Draw the children of n nodes.

    Args:
        drafting: a name in DRAFTING.
        draft_probs: each node's draft law, [n, V].
        arity: number m of child slots, no more than the law's max_arity (`spechub_pairs`: 2).
        uniforms: float64 in [0, 1), [n, m]; column j draws slot j, where it is drawn at all.
        scores: logits [n, V] that replace probabilities for ranking, for the limit T -> 0 only:
            a slot for which no draft mass is left takes the best score left.

    Returns:
        Child tokens in draw order, int64 [n, m]; -1 for an absent child.

    Raises:
        InputError: an unknown draft law; a type, shape or value that is not as above.

    Source: SPEC 3; `univer.draft_laws` names whose each law is.

    Example:
        >>> law = torch.tensor([[0.5, 0.1, 0.4]])
        >>> draft_children("top_residual", law, 2, torch.full((1, 2), 0.9, dtype=torch.float64))
        tensor([[0, 2]])
    """
    check_choice("drafting", drafting, DRAFTING)
    most = DRAFTING[drafting].max_arity
    if not isinstance(arity, int) or arity < 1:
        raise InputError(f"arity: expected an integer >= 1, got {arity!r}.")
    if most is not None and arity > most:
        raise InputError(f"arity: {arity} is too many; {drafting!r} draws at most {most} children.")
    _check_rows(draft_probs, scores, 2)
    check_uniforms("uniforms", uniforms, (draft_probs.shape[0], arity), draft_probs.device)
    everywhere = torch.ones(len(draft_probs), dtype=torch.bool, device=draft_probs.device)
    check_prob_rows("draft_probs", draft_probs, everywhere, lambda index: f"row {index[0]}")
    if scores is not None:
        check_logit_rows("scores", scores, everywhere, lambda index: f"row {index[0]}")
    return DRAFTING[drafting].draw(draft_probs, uniforms, scores)


NextLaw = Callable[[DraftTree, tuple[int, ...]], tuple[Tensor, Tensor | None]]


def laws_of_level(
    next_law: NextLaw, tree: DraftTree, nodes: tuple[int, ...], vocab: int | None
) -> tuple[Tensor, Tensor | None]:
    """What `next_law` says of these nodes, its kinds and shapes checked, but no numbers."""
    probs, scores = next_law(tree, nodes)
    _check_rows(probs, scores, 3)
    shape = (len(tree.tokens), len(nodes), probs.shape[2] if vocab is None else vocab)
    if probs.shape != shape:
        raise InputError(
            f"next_law: expected laws of shape {list(shape)} for nodes {list(nodes)}, got"
            f" {list(probs.shape)}."
        )
    return probs, scores


def check_level(probs: Tensor, scores: Tensor | None, here: Tensor, nodes: tuple[int, ...]) -> None:
    """Check the numbers of a level, laws and scores [B, n, V], at nodes that are here [B, n]."""
    check_prob_rows("draft_probs", probs, here, node_in_tree(nodes))
    if scores is not None:
        check_logit_rows("scores", scores, here, node_in_tree(nodes))


def draft_tree(
    drafting: str,
    topology: Topology,
    root: Tensor,
    next_law: NextLaw,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[DraftTree, Tensor]:
    """Draw a tree level by level.

    Args:
        drafting: a name in DRAFTING.
        topology: the tree's shape.
        root: the root's tokens, int64 [B].
        next_law: called once a level with the tree so far and that level's internal nodes;
            returns their draft laws [B, nodes, V] and, in the limit T -> 0, their logits (else
            None). Rows of absent nodes are ignored.
        uniforms: float64 [B, N]; slot v draws node v (slot 0 is not used).
        generator: draws the uniforms instead.

    Returns:
        The tree, and draft_probs [B, I, V] in the order of topology.internal (V = 0 for the empty
        tree).

    Raises:
        InputError: an unknown draft law; a topology, root, law or uniforms that do not fit.
    """
    check_choice("drafting", drafting, DRAFTING)
    if not isinstance(topology, Topology):
        raise InputError(f"topology: expected a Topology, got {type(topology).__name__}.")
    check_arity(topology, DRAFTING[drafting].max_arity, f"the draft law {drafting!r}")
    if not isinstance(root, Tensor) or root.dtype != torch.int64 or root.ndim != 1:
        raise InputError(f"root: expected an int64 tensor [B], got {described(root)}.")
    uniforms = take_uniforms(uniforms, generator, (root.shape[0], topology.num_nodes), root.device)
    law, table = DRAFTING[drafting], indices(topology, root.device)
    tokens = root.new_full((root.shape[0], topology.num_nodes), -1)
    tokens[:, 0] = root
    present = torch.zeros_like(tokens, dtype=torch.bool)
    present[:, 0] = True  # whatever its token: an unknown root is written as -1
    levels: list[tuple[tuple[int, ...], Tensor, Tensor | None]] = []
    layers = list(zip(topology.layers, table.layers, strict=True))
    for level in topology.levels:
        nodes = tuple(v for v in level if topology.children(v))
        if not nodes:
            continue
        vocab = levels[0][1].shape[2] if levels else None
        probs, scores = laws_of_level(next_law, DraftTree(topology, tokens.clone()), nodes, vocab)
        levels.append((nodes, probs, scores))
        while layers and layers[0][0].nodes[0] in nodes:
            layer, at = layers.pop(0)
            rows = at.draft_rows.ids - topology.internal.index(nodes[0])
            children = law.draw(
                probs.index_select(1, rows).flatten(0, 1),
                columns(uniforms, at.slots).flatten(0, 1),
                None if scores is None else scores.index_select(1, rows).flatten(0, 1),
            ).view(len(root), len(layer.nodes), layer.arity)
            drawn = torch.where(columns(present, at.nodes)[..., None], children, -1)
            set_columns(tokens, at.slots, drawn)
            set_columns(present, at.slots, drawn >= 0)
    for nodes, probs, scores in levels:  # last, so that no level waits for the device
        check_level(probs, scores, present[:, list(nodes)], nodes)
    if not levels:
        return DraftTree(topology, tokens), torch.zeros(len(root), 0, 0, device=root.device)
    return DraftTree(topology, tokens), torch.cat([probs for _, probs, _ in levels], 1)
