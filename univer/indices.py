"""A topology's tables as tensors, made once a device: no level of a tree copies them again.

`columns` and `set_columns` read and write the columns of some nodes, several times faster than
plain indexing does.

Letters: N nodes, I internal nodes, n nodes of a layer, m arity, D depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from univer.topology import Topology


@dataclass(frozen=True)
class Columns:
    """Numbers of columns, int64 [...], and their span where they follow one another."""

    ids: Tensor
    span: slice | None


@dataclass(frozen=True)
class LayerIndices:
    """One layer: its nodes [n], their child slots [n, m], their rows of draft_probs [n].

    `position` [N] says where in the layer a node is, -1 if it is not.
    """

    nodes: Columns
    slots: Columns
    draft_rows: Columns
    position: Tensor


@dataclass(frozen=True)
class Indices:
    """The tables of one topology on one device."""

    post_order: Columns  # [N]
    depths: Tensor  # [N]
    internal: Columns  # [I]
    leaves: Columns  # [N - I]
    paths: Tensor  # [N, D]: nodes from the root's child to v, -1 padded
    layers: tuple[LayerIndices, ...]


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
def indices(topology: Topology, device: torch.device) -> Indices:
    """The tensors of a topology on a device."""
    # A tensor made in inference mode could not take part in anything outside it.
    with torch.inference_mode(False):

        def tensor(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def table(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Columns:
            ids = tensor(numbers)
            flat = ids.flatten().tolist()
            run = len(flat) > 0 and flat == list(range(flat[0], flat[0] + len(flat)))
            return Columns(ids, slice(flat[0], flat[-1] + 1) if run else None)

        draft_row = {node: row for row, node in enumerate(topology.internal)}
        paths = torch.full((topology.num_nodes, topology.depth), -1)
        for node, parent in enumerate(topology.parents[1:], start=1):
            depth = topology.depths[node]
            paths[node, : depth - 1] = paths[parent, : depth - 1]
            paths[node, depth - 1] = node
        layers = []
        for layer in topology.layers:
            position = torch.full((topology.num_nodes,), -1)
            position[list(layer.nodes)] = torch.arange(len(layer.nodes))
            layers.append(
                LayerIndices(
                    nodes=table(layer.nodes),
                    slots=table(layer.children),
                    draft_rows=table([draft_row[v] for v in layer.nodes]),
                    position=position.to(device),
                )
            )
        return Indices(
            post_order=table(topology.post_order),
            depths=tensor(topology.depths),
            internal=table(topology.internal),
            leaves=table(topology.leaves),
            paths=paths.to(device),
            layers=tuple(layers),
        )
