"""A topology's tables as tensors, made once a device: no level of a tree copies them again.

Letters: N nodes, I internal nodes, n nodes of a layer, m arity, D depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from univer.topology import Topology


@dataclass(frozen=True)
class LayerIndices:
    """One layer: its nodes [n], their child slots [n, m], their rows of draft_probs [n].

    `position` [N] says where in the layer a node is, -1 if it is not.
    """

    nodes: Tensor
    slots: Tensor
    draft_rows: Tensor
    position: Tensor


@dataclass(frozen=True)
class Indices:
    """The tables of one topology on one device."""

    post_order: Tensor  # [N]
    depths: Tensor  # [N]
    internal: Tensor  # [I]
    leaves: Tensor  # [N - I]
    paths: Tensor  # [N, D]: nodes from the root's child to v, -1 padded
    layers: tuple[LayerIndices, ...]


@lru_cache(maxsize=64)
def indices(topology: Topology, device: torch.device) -> Indices:
    """The tensors of a topology on a device."""
    # A tensor made in inference mode could not take part in anything outside it.
    with torch.inference_mode(False):

        def tensor(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

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
                    nodes=tensor(layer.nodes),
                    slots=tensor(layer.children),
                    draft_rows=tensor([draft_row[v] for v in layer.nodes]),
                    position=position.to(device),
                )
            )
        return Indices(
            post_order=tensor(topology.post_order),
            depths=tensor(topology.depths),
            internal=tensor(topology.internal),
            leaves=tensor(topology.leaves),
            paths=paths.to(device),
            layers=tuple(layers),
        )
