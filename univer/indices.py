"""A topology's tables as tensors, made once a device: no level of a tree copies them again.

`columns` and `set_columns` read and write the columns of some nodes, several times faster than
plain indexing does.

Letters: N nodes, I internal nodes, n nodes of a layer, m arity, D depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from univer.topology import MAX_NODES, Topology


@dataclass(frozen=True)
class Columns:
    """Numbers of columns, int64 [...], and their span where they follow one another."""

    ids: Tensor
    span: slice | None


@dataclass(frozen=True)
class LayerIndices:
    """A layer or a part of one: nodes [n], child slots [n, m], rows of draft_probs [n]."""

    nodes: Columns
    slots: Columns
    draft_rows: Columns


@dataclass(frozen=True)
class Indices:
    """The tables of one topology on one device."""

    post_order: Columns  # [N]
    depths: Tensor  # [N]
    internal: Columns  # [I]
    leaves: Columns  # [N - I]
    paths: Tensor  # [N, D]: nodes from the root's child to v, -1 padded
    layers: tuple[LayerIndices, ...]
    parents: Tensor  # [N], the root its own
    siblings: Tensor  # [2, P]: neighbouring children of one node, the earlier ones first
    draft_rows: Tensor  # [N]: rows of draft_probs, 0 for a leaf
    arities: Tensor  # [N], 0 for a leaf
    slots: Tensor  # [N, m]: child slots in order, -1 before them and for a leaf


def columns(values: Tensor, table: Columns) -> Tensor:
    """values[:, ids], [B, N, ...] -> [B, *ids.shape, ...]; a view where they follow one another."""
    if table.span is None:
        chosen = values.index_select(1, table.ids.flatten())
    else:
        chosen = values[:, table.span]
    return chosen if table.ids.ndim == 1 else chosen.unflatten(1, table.ids.shape)


def set_columns(values: Tensor, table: Columns, new: Tensor) -> None:
    """values[:, ids] = new, in place: [B, N], [B, *ids.shape]."""
    flat = new if table.ids.ndim == 1 else new.flatten(1)
    if table.span is None:
        values.index_copy_(1, table.ids.flatten(), flat)
    else:
        values[:, table.span] = flat


@lru_cache(maxsize=64)
def indices(topology: Topology, device: torch.device, widest: int = MAX_NODES) -> Indices:
    """The tensors of a topology on a device, its layers cut to `widest` nodes."""
    # A tensor made in inference mode could not take part in anything outside it.
    with torch.inference_mode(False):

        def tensor(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def table(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Columns:
            ids = tensor(numbers)
            flat = ids.flatten().tolist()
            run = len(flat) > 0 and flat == list(range(flat[0], flat[0] + len(flat)))
            return Columns(ids, slice(flat[0], flat[-1] + 1) if run else None)

        paths = torch.full((topology.num_nodes, topology.depth), -1)
        for node, parent in enumerate(topology.parents[1:], start=1):
            depth = topology.depths[node]
            paths[node, : depth - 1] = paths[parent, : depth - 1]
            paths[node, depth - 1] = node
        layers = []
        slots = torch.full(
            (topology.num_nodes, max((x.arity for x in topology.layers), default=0)), -1
        )
        for layer in topology.layers:
            slots[list(layer.nodes), -layer.arity :] = torch.tensor(layer.children)
            for start in range(0, len(layer.nodes), widest):
                nodes = layer.nodes[start : start + widest]
                layers.append(
                    LayerIndices(
                        nodes=table(nodes),
                        slots=table(layer.children[start : start + widest]),
                        draft_rows=table([topology.draft_rows[v] for v in nodes]),
                    )
                )
        return Indices(
            post_order=table(topology.post_order),
            depths=tensor(topology.depths),
            internal=table(topology.internal),
            leaves=table(topology.leaves),
            paths=paths.to(device),
            layers=tuple(layers),
            parents=tensor([0, *topology.parents[1:]]),
            siblings=tensor([p for v in topology.internal for p in pairwise(topology.children(v))])
            .reshape(-1, 2)
            .T.contiguous(),
            draft_rows=tensor([topology.draft_rows.get(v, 0) for v in range(topology.num_nodes)]),
            arities=tensor([len(topology.children(v)) for v in range(topology.num_nodes)]),
            slots=slots.to(device),
        )
