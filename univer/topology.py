"""The shape of a draft tree: which node hangs below which, level by level.

Node 0 is the root, the last token already emitted; it is never verified. Nodes are numbered in
level order, the children of a node in the order in which they are drawn. A leaf may sit at any
depth, and a tree may be the root alone.

Letters: N nodes, D depth, m arity, n nodes of one layer.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from univer.errors import InputError

MAX_NODES = 4_096  # tables and masks of N x N numbers outgrow everything else

# The 26-node tree of EAGLE-1's default choices ("mc_sim_7b_63" in its code, choices.py).
EAGLE_PARENTS = (
    *(-1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4),
    *(5, 5, 5, 6, 6, 7, 7, 8, 13, 13, 13, 21, 21),
)

SPEC_HELP = (
    'expected "2x5" (branching x depth), "chain:5", "eagle", "none" or a list of child-index paths'
    " such as [[0], [1], [0, 0]]"
)


@dataclass(frozen=True)
class Layer:
    """The internal nodes of one level that have the same arity: one call of an allocation.

    `nodes` holds n node ids, `children` the ids of their m child slots, one row a node.
    """

    nodes: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def arity(self) -> int:
        """Number m of child slots of each node."""
        return len(self.children[0])


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree, as one parent id a node.

    Args:
        parents: for each node its parent's id; -1 for the root, which comes first. Parents come
            before their children and nodes are in level order.
        name: a label for tables; two topologies are equal when their parents are.

    Raises:
        InputError: the parents do not describe such a tree.

    Example:
        >>> tree = Topology.from_parents([-1, 0, 0, 1])
        >>> tree.children(0), tree.depth, tree.post_order
        ((1, 2), 2, (3, 1, 2, 0))
    """

    parents: tuple[int, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        try:
            parents = tuple(map(operator.index, self.parents))
        except TypeError as error:
            raise InputError(
                f"topology: parents must be whole numbers, got {self.parents!r}."
            ) from error
        object.__setattr__(self, "parents", parents)
        if not parents or parents[0] != -1:
            raise InputError(f"topology: parents[0] must be -1 (the root), got {parents[:1]}.")
        if len(parents) > MAX_NODES:
            raise InputError(f"topology: {len(parents)} nodes; at most {MAX_NODES} are supported.")
        depths = [0]
        for node, parent in enumerate(parents[1:], start=1):
            if not 0 <= parent < node:
                raise InputError(
                    f"topology: node {node} has parent {parent};"
                    f" a parent must come before its child, in [0, {node})."
                )
            depths.append(depths[parent] + 1)
            if depths[node] < depths[node - 1]:
                raise InputError(
                    f"topology: node {node} is at depth {depths[node]} but comes after depth"
                    f" {depths[node - 1]}; nodes must be in level order."
                )

    @staticmethod
    def from_parents(parents: Iterable[int], name: str = "") -> Topology:
        """The topology with these parents, e.g. [-1, 0, 0, 1]."""
        return Topology(tuple(parents), name)

    @staticmethod
    def from_paths(paths: Iterable[Sequence[int]], name: str = "") -> Topology:
        """The topology whose nodes are these child-index paths, e.g. [[0], [1], [0, 0]]."""
        try:
            given = [tuple(map(operator.index, path)) for path in paths]
        except TypeError as error:
            raise InputError(f"topology: cannot read {paths!r}; {SPEC_HELP}.") from error
        ordered = [(), *sorted((path for path in given if path), key=lambda p: (len(p), p))]
        ids = {path: node for node, path in enumerate(ordered)}
        if len(ids) != len(ordered):
            twin = next(path for path in ordered if ordered.count(path) > 1)
            raise InputError(f"topology: the path {list(twin)} is given twice.")
        for path in ordered[1:]:
            needed = path[:-1] if path[-1] == 0 else (*path[:-1], path[-1] - 1)
            if needed not in ids:
                raise InputError(
                    f"topology: the path {list(path)} needs {list(needed)}, which is not given;"
                    " every parent and every earlier sibling must be there."
                )
        return Topology((-1, *(ids[path[:-1]] for path in ordered[1:])), name)

    @staticmethod
    def parse(spec: str | Topology | Sequence[Sequence[int]]) -> Topology:
        """The topology that a spec describes.

        Args:
            spec: "2x5" (branching x depth), "chain:5", "eagle" (EAGLE-1's 26 nodes), "none" (the
                root alone), a list of child-index paths, the same as JSON text, or a Topology.

        Raises:
            InputError: the spec is none of these.

        Example:
            >>> Topology.parse("2x2").parents
            (-1, 0, 0, 1, 1, 2, 2)
            >>> Topology.parse([[0], [1], [0, 0]]) == Topology.from_parents([-1, 0, 0, 1])
            True
        """
        if isinstance(spec, Topology):
            return spec
        text = spec.strip().lower() if isinstance(spec, str) else ""
        if text == "eagle":
            return Topology(EAGLE_PARENTS, text)
        if text == "none":
            return Topology((-1,), text)
        if match := re.fullmatch(r"chain:(\d{1,5})", text):
            return _regular(1, int(match[1]), text)
        if match := re.fullmatch(r"(\d{1,5})x(\d{1,5})", text):
            return _regular(int(match[1]), int(match[2]), text)
        try:
            paths = json.loads(text) if isinstance(spec, str) else spec
        except (ValueError, RecursionError) as error:
            raise InputError(f"topology: cannot read {spec!r}; {SPEC_HELP}.") from error
        return Topology.from_paths(paths, text)

    def __str__(self) -> str:
        return self.name or str(list(self.parents))

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; the root's is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Depth D of the deepest node."""
        return self.depths[-1]

    @cached_property
    def max_arity(self) -> int:
        """Most children of a node; 0 for the empty tree."""
        return max(map(len, self._children))

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Node ids by depth."""
        levels: list[list[int]] = [[] for _ in range(self.depth + 1)]
        for node, depth in enumerate(self.depths):
            levels[depth].append(node)
        return tuple(map(tuple, levels))

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(map(tuple, children))

    def children(self, node: int) -> tuple[int, ...]:
        """The child slots of a node, in draw order."""
        return self._children[node]

    @cached_property
    def internal(self) -> tuple[int, ...]:
        """Nodes with child slots, in level order: the rows of draft_probs."""
        return tuple(v for v, children in enumerate(self._children) if children)

    @cached_property
    def draft_rows(self) -> dict[int, int]:
        """The row of draft_probs of each internal node."""
        return {node: row for row, node in enumerate(self.internal)}

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without child slots, in level order."""
        return tuple(v for v, children in enumerate(self._children) if not children)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The internal nodes, level by level, grouped by arity."""
        found: dict[tuple[int, int], list[int]] = {}
        for node in self.internal:
            found.setdefault((self.depths[node], len(self.children(node))), []).append(node)
        return tuple(
            Layer(tuple(nodes), tuple(self.children(v) for v in nodes))
            for _, nodes in sorted(found.items())
        )

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root's child down to `node`; empty for the root."""
        nodes: list[int] = []
        while node > 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @cached_property
    def post_order(self) -> tuple[int, ...]:
        """All nodes, children in order, each child's subtree first, then the node."""

        # A node's post-order rank needs no recursion: in the mirrored pre-order (node, then its
        # children from the last to the first) every node comes before its subtree; reverse it.
        def mirrored() -> Iterator[int]:
            stack = [0]
            while stack:
                node = stack.pop()
                yield node
                stack.extend(self._children[node])

        return tuple(reversed(list(mirrored())))

    def attention_mask(self) -> Tensor:
        """Which node sees which: bool [N, N], True where the column is the row or an ancestor."""
        mask = torch.eye(self.num_nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node] |= mask[parent]
        return mask


TopologySpec = str | Topology | Sequence[Sequence[int]]  # what `Topology.parse` takes


def _regular(branching: int, depth: int, name: str) -> Topology:
    if branching < 1 or depth < 1:
        raise InputError(f"topology: {name!r} has no drafts; branching and depth must be >= 1.")
    parents, level = [-1], [0]
    for _ in range(depth):
        if len(parents) + branching * len(level) > MAX_NODES:
            raise InputError(f"topology: {name!r} has more than {MAX_NODES} nodes.")
        start = len(parents)
        parents += [node for node in level for _ in range(branching)]
        level = list(range(start, len(parents)))
    return Topology(tuple(parents), name)
