"""Dynamic draft trees: EAGLE-2's expansion and re-ranking by the draft's own probabilities.

A token's value is the product of the draft probabilities on the path to it.

1. Expansion: of each level the `width` best nodes get their `width` most probable children.
2. Re-ranking: of all drafted tokens the `size` best are kept.

Equal values rank in level order. A child is worth no more than its parent and comes after it, nor
more than an earlier sibling, so that what is kept is a tree, and at each of its nodes the children
are the most probable ones: the draft law `top`. The tree depends on the draft alone. With the
target's own mass on every child (`target_only`) it is lossless, as every fixed tree is (SPEC 4, no
sampled child); a tree that depended on a token sampled from the target would not be.

At temperature 0 the draft laws are one-hot: all paths but one would be worth 0. There probabilities
are those of the logits at temperature 1, softmax(logits), as EAGLE-2 has them at any temperature:
they still say how sure the draft is. (Above 0 they are those of the draft law itself, filters
included.)

Letters: B trees, N nodes, I internal nodes, n nodes of a level, V vocabulary, m arity.
Source: Li et al. 2024 (EAGLE-2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from univer.composition import present_nodes
from univer.draft_laws import DRAFTING
from univer.drafting import DraftTree, NextLaw, check_level, check_tokens, laws_of_level
from univer.errors import InputError, check_prob_rows, check_rows_shape, described, node_in_tree
from univer.filters import Filters
from univer.indices import columns, indices, set_columns
from univer.topology import MAX_NODES, Topology

LAW = "top"  # the draft law of a dynamic tree
RANKED_AT_0 = Filters(temperature=1.0)  # what ranks where the draft laws are one-hot
ABSENT = -1.0  # the value of an absent node: below all others


def _check_count(argument: str, given: object) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InputError(f"{argument}: expected an integer >= 1, got {given!r}.")


@dataclass(frozen=True)
class Dynamic:
    """A tree whose shape follows the draft's probabilities, anew in every cycle.

    Args:
        width: nodes expanded a level, and children of each, >= 1.
        depth: levels of drafts, >= 1: a draft step each.
        size: drafted tokens kept, the root not counted, >= 1; all, where fewer are drafted.

    Raises:
        InputError: a number that is none of these, or more drafts than a topology has nodes.

    Example:
        >>> Dynamic.parse("dynamic:4x5:26") == Dynamic(width=4, depth=5, size=26)
        True
    """

    width: int
    depth: int
    size: int

    def __post_init__(self) -> None:
        for name in ("width", "depth", "size"):
            _check_count(name, getattr(self, name))
        drafted = self.width + (self.depth - 1) * self.width**2
        if drafted >= MAX_NODES:
            raise InputError(
                f"topology: {self} drafts up to {drafted} tokens before it keeps {self.size}; at"
                f" most {MAX_NODES - 1} are supported, take a smaller width or depth."
            )

    @staticmethod
    def parse(spec: str) -> Dynamic:
        """The dynamic tree that "dynamic:<width>x<depth>:<size>" describes."""
        match = re.fullmatch(r"dynamic:(\d{1,5})x(\d{1,5}):(\d{1,5})", spec.strip().lower())
        if match is None:
            raise InputError(
                f'topology: cannot read {spec!r}; expected "dynamic:<width>x<depth>:<size>", such'
                ' as "dynamic:4x5:26".'
            )
        return Dynamic(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"dynamic:{self.width}x{self.depth}:{self.size}"


def check_draft_law(shape: object, drafting: str) -> None:
    """Check that a tree of this shape can be drawn with this draft law."""
    if isinstance(shape, Dynamic) and drafting != LAW:
        raise InputError(
            f"verifier: a dynamic tree holds the draft's most probable tokens (draft law {LAW!r}),"
            f" but the verifier is for trees drafted by {drafting!r}; choose 'target_only'."
        )


def _child_values(parents: Tensor, laws: Tensor, children: Tensor) -> Tensor:
    """Values [B, n, m] of children from their parents' [B, n] and the laws there [B, n, V]."""
    probs = laws.gather(-1, children.clamp(min=0)).double()
    # Rounding may lift a probability above 1 or above an earlier sibling's.
    probs = probs.clamp(max=1).cummin(-1).values
    return torch.where(children >= 0, parents[..., None] * probs, ABSENT)


def _best(values: Tensor, count: int) -> Tensor:
    """Which are the `count` largest of each row [B, n], ties to the earlier; no absent ones."""
    order = values.sort(dim=-1, descending=True, stable=True).indices
    best = torch.zeros_like(values, dtype=torch.bool).scatter_(-1, order[:, :count], True)
    return best & (values > ABSENT)


def prune(tree: DraftTree, draft_probs: Tensor, size: int) -> DraftTree:
    """Keep the `size` best nodes of each tree; the others become absent, with their subtrees.

    Args:
        tree: B trees of one topology, drawn with the draft law `top`.
        draft_probs: [B, I, V] as in `verify`; at temperature 0 softmax(logits), since one-hot laws
            rank nothing. Rows of absent nodes are not read.
        size: drafted tokens kept a tree, the root not counted, >= 1.

    Returns:
        DraftTree: the same topology; siblings stay in order, absent ones come last.

    Raises:
        InputError: names the argument that is not as above.

    Source: Li et al. 2024 (EAGLE-2), re-ranking.

    Example:
        >>> tree = DraftTree(Topology.parse("2x2"), torch.tensor([[0, 1, 2, 1, 0, 0, 2]]))
        >>> draft = torch.tensor([[[0.1, 0.6, 0.3], [0.3, 0.7, 0.0], [0.5, 0.1, 0.4]]])
        >>> prune(tree, draft, 3).tokens
        tensor([[ 0,  1,  2,  1, -1, -1, -1]])
    """
    _check_count("size", size)
    if not isinstance(tree, DraftTree):
        raise InputError(f"tree: expected a DraftTree, got {type(tree).__name__}.")
    topology, tokens = tree.topology, tree.tokens
    if not topology.internal:
        return tree
    inner, table = topology.internal, indices(topology, tokens.device)
    vocab = check_rows_shape(
        "draft_probs", draft_probs, len(tokens), len(inner), None, tokens.device
    )
    check_tokens(topology, tokens, vocab)
    here = columns(present_nodes(tokens), table.internal)
    check_prob_rows("draft_probs", draft_probs, here, node_in_tree(inner))
    values = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
    for layer in table.layers:
        children = columns(tokens, layer.slots)
        parents, laws = columns(values, layer.nodes), columns(draft_probs, layer.draft_rows)
        set_columns(values, layer.slots, _child_values(parents, laws, children))
    kept = torch.where(_best(values[:, 1:], size), tokens[:, 1:], -1)
    return DraftTree(topology, torch.cat([tokens[:, :1], kept], 1))


@dataclass(frozen=True, eq=False)
class Grown:
    """A dynamic tree, B = 1, and where its nodes were while it grew.

    tree: the kept nodes on a topology of their own.
    draft_probs: [1, I, V], as in `verify`.
    nodes: for each node of the tree its id in the trees that `next_law` was shown.
    rows: for each internal node its place among the nodes that `next_law` was asked for.
    """

    tree: DraftTree
    draft_probs: Tensor
    nodes: tuple[int, ...]
    rows: tuple[int, ...]


def grow(shape: Dynamic, root: Tensor, next_law: NextLaw) -> Grown:
    """Draw a dynamic tree; nothing about it is random.

    Args:
        shape: how far it may grow and how much of it is kept.
        root: the root's token, int64 [1].
        next_law: called once a level with the tree so far and the nodes of its last level that are
            expanded; returns their draft laws [1, n, V] and, in the limit T -> 0, their logits
            (else None), as for `draft_tree`. Nodes keep their ids from call to call.

    Returns:
        Grown: the tree, on a topology of its own, with its laws.

    Raises:
        InputError: a root or a law that is not as above.

    Source: Li et al. 2024 (EAGLE-2).

    Example:
        >>> law = torch.tensor([0.1, 0.6, 0.3])
        >>> def next_law(tree, nodes):
        ...     return law.expand(1, len(nodes), 3), None
        >>> grown = grow(Dynamic(width=2, depth=3, size=4), torch.tensor([0]), next_law)
        >>> grown.tree.topology.parents, grown.tree.tokens
        ((-1, 0, 0, 1, 3), tensor([[0, 1, 2, 1, 1]]))
    """
    if not isinstance(root, Tensor) or root.dtype != torch.int64 or root.shape != (1,):
        raise InputError(f"root: expected an int64 tensor [1] (one tree), got {described(root)}.")
    parents, tokens = [-1], root[None]
    values = torch.ones(1, 1, dtype=torch.float64, device=root.device)
    expanded: list[int] = []
    laws: list[Tensor] = []
    level: tuple[int, ...] = (0,)
    while level and len(laws) < shape.depth:
        whole = DraftTree(Topology(tuple(parents)), tokens)
        vocab = laws[0].shape[2] if laws else None
        probs, scores = laws_of_level(next_law, whole, level, vocab)
        check_level(probs, scores, torch.ones_like(probs[..., 0], dtype=torch.bool), level)
        laws.append(probs)
        expanded += level
        unused = torch.zeros(len(level), shape.width, dtype=torch.float64, device=root.device)
        children = DRAFTING[LAW].draw(probs[0], unused, None if scores is None else scores[0])[None]
        weights = probs if scores is None else RANKED_AT_0(scores)
        worth = _child_values(values[:, list(level)], weights, children)
        drawn, first = children >= 0, len(parents)
        counts = drawn[0].sum(-1).tolist()
        parents += [v for v, count in zip(level, counts, strict=True) for _ in range(count)]
        tokens = torch.cat([tokens, children[drawn][None]], 1)
        values = torch.cat([values, worth[drawn][None]], 1)
        # What is not among the `size` best by now never will be, nor will anything below it.
        promising = _best(values[:, 1:], shape.size)[:, first - 1 :]
        chosen = promising & _best(values[:, first:], shape.width)
        level = tuple(first + i for i in _places(chosen))
    nodes = (0, *(1 + i for i in _places(_best(values[:, 1:], shape.size))))
    ids = {node: i for i, node in enumerate(nodes)}
    topology = Topology((-1, *(ids[parents[v]] for v in nodes[1:])))
    rows = tuple(expanded.index(nodes[v]) for v in topology.internal)
    tree = DraftTree(topology, tokens[:, list(nodes)])
    return Grown(tree, torch.cat(laws, 1)[:, list(rows)], nodes, rows)


def _places(chosen: Tensor) -> list[int]:
    """The columns of [1, n] that are True."""
    return chosen[0].nonzero().flatten().tolist()
