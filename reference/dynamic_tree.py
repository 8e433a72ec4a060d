"""EAGLE-2's dynamic draft tree (Li et al. 2024): expansion, then re-ranking.

A node is the tuple of the tokens on its path; its value is the product of the draft probabilities
along it. Equal values rank in the order in which the nodes were drafted: level by level, in a level
by parents, below a parent by draft probability (ties: the lower id).
"""

from __future__ import annotations

import numpy as np

from reference.decision import Topology, Tree, TreeLike
from reference.enumeration import NextLaw, Prefix, node_path
from reference.laws import Number, as_laws, one


def value(node: Prefix, draft: NextLaw) -> Number:
    """The product of the draft probabilities on the path to a node."""
    product = one(as_laws(draft(())))
    for end, token in enumerate(node):
        product = product * as_laws(draft(node[:end]))[token]
    return product


def best(nodes: list[Prefix], draft: NextLaw, count: int) -> list[Prefix]:
    """The `count` nodes of the largest values, in the order given; ties to the earlier."""
    ranked = sorted(nodes, key=lambda node: -value(node, draft))[:count]  # a stable sort
    return [node for node in nodes if node in ranked]


def dynamic_tree(draft: NextLaw, width: int, depth: int, size: int) -> Tree:
    """The tree behind a text: `size` drafted tokens, or all if there are fewer; the root's is 0.

    Example:
        >>> law = np.array([0.1, 0.6, 0.3])
        >>> tree = dynamic_tree(lambda prefix: law, width=2, depth=3, size=4)
        >>> tree.topology.parents, tree.tokens
        ((-1, 0, 0, 1, 3), (0, 1, 2, 1, 1))
    """
    drafted: list[Prefix] = []
    level: list[Prefix] = [()]
    for _ in range(depth):  # expansion
        expanded, level = best(level, draft, width), []
        for node in expanded:
            law = as_laws(draft(node))
            ranked = sorted(range(len(law)), key=lambda token: (-law[token], token))
            level += [(*node, token) for token in ranked[:width]]
        drafted += level
    nodes = [(), *best(drafted, draft, size)]  # re-ranking
    parents = [nodes.index(node[:-1]) for node in nodes[1:]]
    return Tree(Topology((-1, *parents)), (0, *(node[-1] for node in nodes[1:])))


def pruned(tree: TreeLike, draft: NextLaw, size: int) -> Tree:
    """Re-ranking alone, of a tree on a fixed topology: all but the `size` best nodes become -1."""
    whole = Tree(tree.topology, tuple(int(token) for token in tree.tokens))
    drafted = [v for v in range(1, tree.topology.num_nodes) if whole.tokens[v] >= 0]
    kept = best([node_path(whole, v) for v in drafted], draft, size)
    tokens = np.full(tree.topology.num_nodes, -1)
    tokens[0] = whole.tokens[0]
    for v in drafted:
        if node_path(whole, v) in kept:
            tokens[v] = whole.tokens[v]
    return Tree(tree.topology, tuple(tokens.tolist()))
