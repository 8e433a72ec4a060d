"""Every drafted tree with its probability, and from it the exact law of a verifier's output.

A toy model is given by its laws: `target(prefix)` and `draft(prefix)` return the law [V] of the
next token after a tuple of tokens. Everything is exact for fractions.

| here | SPEC 6 |
|---|---|
| output_law | P(output = o'), o' the accepted tokens and the next token |
| conditional_violations | every visited prefix is followed by the target's law |
| joint_law | sum over prefixes o' of o of P(o') M_b(o given o') |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from reference.decision import StopLaw, TopologyLike, Tree, path
from reference.drafting import children_law
from reference.laws import Law, Number, as_laws, one

Prefix = tuple[int, ...]
NextLaw = Callable[[Prefix], Law]
StopLawOf = Callable[[Tree, Law, Law], StopLaw]
Outputs = dict[Prefix, Number]


def node_path(tree: Tree, node: int) -> Prefix:
    """The tokens from the root's child down to `node`."""
    return tuple(int(tree.tokens[v]) for v in path(tree.topology, node))


def drafted_trees(
    drafting: str, topology: TopologyLike, draft: NextLaw
) -> Iterator[tuple[Tree, Number]]:
    """Every tree that can be drawn, with its probability; the root's token is 0."""
    internal = topology.internal

    def extend(position: int, tokens: list[int], prob: Number) -> Iterator[tuple[Tree, Number]]:
        if position == len(internal):
            yield Tree(topology, tuple(tokens)), prob
            return
        node = internal[position]
        if tokens[node] < 0:
            yield from extend(position + 1, tokens, prob)
            return
        slots = topology.children(node)
        prefix = node_path(Tree(topology, tuple(tokens)), node)
        for children, chance in children_law(drafting, draft(prefix), len(slots)):
            filled = tokens.copy()
            for slot, token in zip(slots, children, strict=True):
                filled[slot] = token
            yield from extend(position + 1, filled, prob * chance)

    start = [0] + [-1] * (topology.num_nodes - 1)
    yield from extend(0, start, one(as_laws(draft(()))))


def tree_laws(tree: Tree, target: NextLaw, draft: NextLaw) -> tuple[Law, Law]:
    """target_probs [N, V] and draft_probs [I, V] of a tree; the root's laws at absent nodes."""

    def rows(law: NextLaw, nodes: range | tuple[int, ...]) -> Law:
        chosen = [law(node_path(tree, v) if tree.tokens[v] >= 0 else ()) for v in nodes]
        return np.array(chosen) if chosen else np.empty((0, len(law(()))))

    topology = tree.topology
    return rows(target, range(topology.num_nodes)), rows(draft, topology.internal)


def output_law(
    stop_law: StopLawOf, drafting: str, topology: TopologyLike, target: NextLaw, draft: NextLaw
) -> Outputs:
    """The probability of every output (accepted tokens and the next token)."""
    return outputs_on(stop_law, drafted_trees(drafting, topology, draft), target, draft)


def outputs_on(
    stop_law: StopLawOf, trees: Iterable[tuple[Tree, Number]], target: NextLaw, draft: NextLaw
) -> Outputs:
    """The same for trees that are given with their probabilities."""
    outputs: Outputs = defaultdict(int)
    for tree, chance in trees:
        law = stop_law(tree, *tree_laws(tree, target, draft))
        rows = law.next_token_probs()
        for node in range(tree.topology.num_nodes):
            if law.stop_probs[node] > 0:
                prefix = node_path(tree, node)
                for token in np.flatnonzero(rows[node] > 0):
                    outputs[(*prefix, int(token))] += (
                        chance * law.stop_probs[node] * rows[node][token]
                    )
    return dict(outputs)


def expected_accepted(
    stop_law: StopLawOf, drafting: str, topology: TopologyLike, target: NextLaw, draft: NextLaw
) -> Number:
    """Mean number of accepted draft tokens over all drafted trees."""
    total: Number = 0
    for tree, chance in drafted_trees(drafting, topology, draft):
        total += chance * stop_law(tree, *tree_laws(tree, target, draft)).expected_accepted
    return total


def passing_masses(outputs: Outputs) -> dict[Prefix, Number]:
    """For each sequence, the probability that the output begins with it."""
    masses: dict[Prefix, Number] = defaultdict(int)
    for tokens, prob in outputs.items():
        for length in range(len(tokens) + 1):
            masses[tokens[:length]] += prob
    return dict(masses)


def conditional_violations(
    outputs: Outputs, target: NextLaw
) -> list[tuple[Prefix, int, Number, Number]]:
    """Where the output is not the target's: (prefix, token, mass found, mass expected).

    A prefix counts as far as the output goes beyond it; the list is empty for a lossless verifier
    in exact arithmetic.
    """
    masses = passing_masses(outputs)
    found = []
    for prefix, mass in masses.items():
        beyond = mass - outputs.get(prefix, 0)
        if beyond > 0:
            for token, prob in enumerate(as_laws(target(prefix))):
                got = masses.get((*prefix, token), 0)
                if got != beyond * prob:
                    found.append((prefix, token, got, beyond * prob))
    return found


def joint_law(outputs: Outputs, target: NextLaw, length: int) -> Outputs:
    """The law of the first `length` tokens when the target continues shorter outputs.

    Longer outputs are cut; at `length` >= depth + 1 nothing is.
    """
    joint: Outputs = defaultdict(int)

    def extend(tokens: Prefix, prob: Number) -> None:
        if len(tokens) >= length:
            joint[tokens[:length]] += prob
            return
        for token, chance in enumerate(as_laws(target(tokens))):
            if chance > 0:
                extend((*tokens, token), prob * chance)

    for tokens, prob in outputs.items():
        extend(tokens, prob)
    return dict(joint)
