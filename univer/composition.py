"""From the layers of a tree to its stop law and its decision (SPEC 5).

| paper | name | meaning |
|---|---|---|
| p~_v | prefix acceptance | acceptance of v given that the decision reaches v |
| p~_v^res | fallback acceptance | acceptance of v itself after all its children failed |

- `local` (top-down): every entered node has scale 1; its children are tried in order; if none is
  entered the cycle stops there.
- `conditional` (post-order): a child's prefix acceptance is the scale of its own layer; nodes are
  tried in post-order, a leaf with its prefix acceptance, an internal node with its fallback.

Where a node's slots are all empty nothing was drafted and no rule is asked: it is a leaf.

In both, the number that slot v of the uniforms is compared with is `acceptance[v]`.

Letters: B trees, N nodes, n nodes of a layer, m arity, V vocabulary, D depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from univer.indices import Columns, LayerIndices, columns, indices, set_columns
from univer.rows import ratio, total
from univer.rules import Allocated, Rule
from univer.topology import MAX_NODES, Topology

Rows = Callable[[Columns], Tensor]  # row numbers [n] of a tensor -> its laws, float64 [B, n, V]


def present_nodes(tokens: Tensor) -> Tensor:
    """Which nodes are in each tree, [B, N]; the root is, whatever its token."""
    present = tokens >= 0
    present[:, 0] = True
    return present


def drafted_nodes(topology: Topology, tokens: Tensor) -> Tensor:
    """Below which internal nodes something was drafted, [B, I]: whose draft laws mean something."""
    table = indices(topology, tokens.device)
    below = torch.zeros_like(tokens).index_add_(1, table.parents[1:], (tokens[:, 1:] >= 0).long())
    return columns(below > 0, table.internal)


@dataclass(frozen=True)
class Judged:
    """What the laws of B trees say of each node, float64 [B, N]: its acceptance and its scale."""

    acceptance: Tensor
    scale: Tensor


def allocate_layer(
    layer: LayerIndices,
    tokens: Tensor,
    scale: Tensor,
    allocate: Rule,
    target: Tensor,
    draft: Rows,
) -> Allocated:
    """The masses of one layer's nodes in all trees, B n rows.

    Args:
        layer: which nodes.
        tokens: int64 [B, N].
        scale: float64 [B, N].
        allocate: the rule.
        target: the target's laws after these nodes, [B, n, V].
        draft: laws by row of draft_probs.
    """
    return allocate(
        columns(scale, layer.nodes).flatten(),
        target.flatten(0, 1),
        draft(layer.draft_rows).flatten(0, 1),
        columns(tokens, layer.slots).flatten(0, 1),
    )


def judge(
    topology: Topology,
    tokens: Tensor,
    allocate: Rule,
    conditional: bool,
    target: Rows,
    draft: Rows,
    widest: int = MAX_NODES,
) -> Judged:
    """Allocate every layer from the root down, its nodes' rows forgotten with the layer.

    Args:
        topology: the tree's shape.
        tokens: int64 [B, N].
        allocate: the rule of one layer.
        conditional: whether a child's layer is scaled by its prefix acceptance (else by 1).
        target: laws by row of target_probs (one a node).
        draft: laws by row of draft_probs (one an internal node).
        widest: nodes a tree whose rows are looked at together.
    """
    batch = tokens.shape[0]
    scale = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
    acceptance = torch.ones_like(scale)
    for layer in indices(topology, tokens.device, widest).layers:
        nodes, slots = layer.nodes, layer.slots
        children = columns(tokens, slots)
        masses = allocate_layer(layer, tokens, scale, allocate, target(nodes), draft)
        shape = (batch, len(nodes.ids))
        # Rows that nothing was drawn from mean nothing, may even be NaN: select, never multiply.
        accepted = torch.where(children >= 0, masses.child_acceptance.view(children.shape), 0.0)
        drafted, whole = (children >= 0).any(-1), columns(scale, nodes)
        residual_mass = total(masses.residual).view(shape)
        residual_mass = torch.where(drafted, residual_mass, whole)
        beyond = residual_mass + torch.where(drafted, masses.rejection_mass.view(shape), 1 - whole)
        # Ratios of what is left, summed from the last term on: 1 - (sum of the earlier ones) would
        # come out as 1e-16 where it is 0, and a uniform of 0 would then enter a forbidden place.
        left = torch.cat([accepted, beyond[..., None]], -1).flip(-1).cumsum(-1).flip(-1)
        prefix_acceptance = ratio(accepted, left[..., :-1])
        set_columns(acceptance, slots, prefix_acceptance)
        if conditional:
            set_columns(scale, slots, prefix_acceptance)
            set_columns(acceptance, nodes, ratio(residual_mass, beyond))
    acceptance[:, 0] = 1.0  # whatever rounding leaves at the root: something is always emitted
    return Judged(acceptance, scale)


def _exclusive_product(probs: Tensor) -> Tensor:
    """Product of 1 - p over the entries before each one, along the last axis."""
    kept = (1 - probs).cumprod(-1)
    return torch.cat([torch.ones_like(kept[..., :1]), kept[..., :-1]], -1)


def _local_stop_probs(topology: Topology, acceptance: Tensor) -> Tensor:
    stop = torch.zeros_like(acceptance)
    stop[:, 0] = 1.0  # from here on: the probability of being entered, until a layer spreads it
    for layer in indices(topology, acceptance.device).layers:
        nodes, slots = layer.nodes, layer.slots
        entered = columns(acceptance, slots)
        reached = columns(stop, nodes)
        set_columns(stop, slots, reached[..., None] * _exclusive_product(entered) * entered)
        set_columns(stop, nodes, reached * (1 - entered).prod(-1))
    return stop


def _conditional_stop_probs(topology: Topology, acceptance: Tensor) -> Tensor:
    order = indices(topology, acceptance.device).post_order
    tried = columns(acceptance, order)
    stop = torch.zeros_like(acceptance)
    set_columns(stop, order, _exclusive_product(tried) * tried)
    return stop


def _local_stop_node(topology: Topology, acceptance: Tensor, uniforms: Tensor) -> Tensor:
    passes = uniforms < acceptance
    on_path = torch.zeros_like(passes)
    on_path[:, 0] = True
    for layer in indices(topology, acceptance.device).layers:
        nodes, slots = layer.nodes, layer.slots
        tried = columns(passes, slots)
        first = tried & (tried.cumsum(-1) == 1)
        set_columns(on_path, slots, columns(on_path, nodes)[..., None] & first)
    ids = torch.arange(topology.num_nodes, device=acceptance.device)
    return torch.where(on_path, ids, 0).amax(-1)  # level order: the deepest entered node comes last


def _conditional_stop_node(topology: Topology, acceptance: Tensor, uniforms: Tensor) -> Tensor:
    order = indices(topology, acceptance.device).post_order
    accepted = columns(uniforms < acceptance, order)
    return order.ids.index_select(0, accepted.to(torch.uint8).argmax(-1))


@dataclass(frozen=True)
class Composition:
    """How layers become a decision.

    `stop_probs(topology, acceptance [B, N]) -> [B, N]`;
    `stop_node(topology, acceptance [B, N], uniforms [B, N]) -> [B]`.
    """

    name: str
    conditional: bool
    stop_probs: Callable[[Topology, Tensor], Tensor]
    stop_node: Callable[[Topology, Tensor, Tensor], Tensor]


COMPOSITION = {
    row.name: row
    for row in (
        Composition("local", False, _local_stop_probs, _local_stop_node),
        Composition("conditional", True, _conditional_stop_probs, _conditional_stop_node),
    )
}


def next_token_weights(
    topology: Topology,
    tokens: Tensor,
    allocate: Rule,
    scale: Tensor,
    stop: Tensor,
    target: Tensor,
    draft: Callable[[Tensor], Tensor],
) -> Tensor:
    """The weights [B, V] from which each tree's next token is drawn, given its stop node [B].

    Args:
        topology: the tree's shape.
        tokens: int64 [B, N].
        allocate: the rule of one layer, here once more for the stop nodes alone.
        scale: of every node, as `judge` found it.
        stop: the node at which each cycle stops.
        target: target laws after those nodes, [B, V].
        draft: row numbers of draft_probs, one a tree [B] -> laws [B, V].

    Returns:
        The target's law at a leaf, the residual where something was drafted (and the target's law
        should rounding have left no residual).
    """
    table = indices(topology, stop.device)
    weights, arities = target, table.arities.index_select(0, stop)
    laws = draft(table.draft_rows.index_select(0, stop)) if table.layers else target
    scales = scale.gather(1, stop[:, None])[:, 0]
    for arity in sorted({layer.arity for layer in topology.layers}):  # a rule takes one at once
        here = (arities == arity)[:, None]
        slots = table.slots.index_select(0, stop)[:, -arity:]
        children = torch.where(here, tokens.gather(1, slots.clamp(min=0)), -1)
        residual = allocate(scales, target, laws, children).residual
        recovered = torch.where((total(residual) > 0)[:, None], residual, target)
        weights = torch.where((children >= 0).any(-1, keepdim=True), recovered, weights)
    return weights
