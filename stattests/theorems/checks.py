"""What each theorem says, as a function that raises AssertionError where it does not hold.

The theorem files drive these with hypothesis; test_planted_faults.py hands them verifiers that are
broken in one line, and expects each to be caught.
"""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from reference import enumeration, optimum
from reference.decision import Laws, Verifier
from reference.drafting import children_law
from reference.laws import Law, normalise, positive_part, without
from stattests.strategies import Toy

LP_TOLERANCE = 1e-7  # HiGHS lets 1e-10 pass a constraint; a toy has at most some 1 000 of them


def layer_masses(univer: ModuleType, scale: Fraction, p: Law, q: Law, children: list[int]) -> Any:
    """The layer's masses by token [V] and its rejection mass, for one outcome of the draft."""
    tokens = [token for token in children if token >= 0]
    sampled = children[-1]
    fixed = tokens[:-1] if sampled >= 0 else tokens
    accepted, residual, rejected = univer.layer(scale, p, q, fixed, sampled)
    masses = residual.copy()
    for token, mass in zip(tokens, accepted, strict=True):
        assert masses[token] == 0, "a child has residual mass"
        masses[token] = mass
    return masses, rejected


def check_layer_is_locally_lossless(
    univer: ModuleType, scale: Fraction, p: Law, q: Law, drafting: str, arity: int
) -> None:
    """Theorem 3 (Definition 1): E[p_v(t)] = s p(t), and each outcome's masses sum to 1."""
    mean: Any = p * 0
    for children, chance in children_law(drafting, q, arity):
        masses, rejected = layer_masses(univer, scale, p, q, children)
        assert (masses >= 0).all()
        assert rejected >= 0
        assert masses.sum() + rejected == 1
        mean = mean + chance * masses
    assert (mean == scale * p).all()


def check_layer_is_optimal(univer: ModuleType, scale: Fraction, p: Law, q: Law, arity: int) -> None:
    """Theorem 5: expected accepted mass = Eq. 10 = the linear programme's optimum."""
    accepted: Any = 0
    for children, chance in children_law("top_residual", q, arity):
        masses, _ = layer_masses(univer, scale, p, q, children)
        accepted += chance * sum(masses[token] for token in children if token >= 0)
    fixed = sorted(range(len(q)), key=lambda token: (-q[token], token))[: arity - 1]
    rest = normalise(without(q, *fixed))
    eq10 = sum(scale * p[token] for token in fixed) + np.minimum(scale * p, rest).sum()
    assert accepted == eq10
    best = optimum.layer_optimum("top_residual", float(scale), p, q, arity)
    assert abs(float(eq10) - best) <= LP_TOLERANCE


def check_output_law(verifier: ModuleType | Verifier, toy: Toy) -> None:
    """Theorem 4: the output is lossless, in both forms of SPEC 6."""
    outputs = enumeration.output_law(
        verifier.stop_law, verifier.DRAFTING, toy.topology, toy.target, toy.draft
    )
    check_outputs(outputs, toy)


def check_outputs(outputs: enumeration.Outputs, toy: Toy) -> None:
    """The conditional form at every prefix, and the joint law of the first D + 1 tokens."""
    assert sum(outputs.values()) == 1
    assert enumeration.conditional_violations(outputs, toy.target) == []
    length = toy.topology.depth + 1
    joint = enumeration.joint_law(outputs, toy.target, length)
    assert joint == enumeration.joint_law({(): Fraction(1)}, toy.target, length)


def expected_accepted(verifier: ModuleType, toy: Toy) -> Any:
    """E[N], exactly."""
    return enumeration.expected_accepted(
        verifier.stop_law, verifier.DRAFTING, toy.topology, toy.target, toy.draft
    )


def check_univer_accepts_at_least_greedy(univer: ModuleType, greedy: ModuleType, toy: Toy) -> None:
    """Theorem 6: E[N_UniVer] >= E[N_Greedy] on one tree law."""
    assert expected_accepted(univer, toy) >= expected_accepted(greedy, toy)


def scaled_length(univer: ModuleType, toy: Toy, scale: Fraction) -> Any:
    """E[N_Mod]: UniVer with acceptance `scale` at the root; a rejected tree counts 0."""
    total: Any = 0
    topology = toy.topology
    for tree, chance in enumeration.drafted_trees("top_residual", topology, toy.draft):
        rows = enumeration.tree_laws(tree, toy.target, toy.draft)
        alive = Fraction(1)
        for node, acceptance, _ in univer.visits(Laws.of(tree, *rows), 0, scale):
            total += chance * alive * acceptance * topology.depths[node]
            alive *= 1 - acceptance
    return total


def check_scaled_univer_accepts_at_least_its_share(
    univer: ModuleType, greedy: ModuleType, toy: Toy, scale: Fraction
) -> None:
    """Lemma 1: E[N_Mod] >= s E[N_Greedy] for every root scale s."""
    assert scaled_length(univer, toy, scale) >= scale * expected_accepted(greedy, toy)


def block_verification_length(toy: Toy) -> Any:
    """E[N] on a chain by Block Verification (Sun et al. 2025), from its own formulas."""
    total: Any = 0
    topology = toy.topology
    for tree, chance in enumeration.drafted_trees("top_residual", topology, toy.draft):
        target, draft = enumeration.tree_laws(tree, toy.target, toy.draft)
        p, stay = Fraction(1), [Fraction(0)]
        depth = sum(token >= 0 for token in tree.tokens[1:])
        for i in range(depth):
            x = tree.tokens[i + 1]
            p = min(Fraction(1), p * target[i][x] / draft[i][x])
            if i + 1 < depth:
                mass = positive_part(p * target[i + 1] - draft[i + 1]).sum()
                stay.append(mass / (mass + 1 - p) if mass else Fraction(0))
            else:
                stay.append(p)
        # The longest prefix that passes is kept.
        longer = Fraction(1)
        for length in range(depth, 0, -1):
            total += chance * longer * stay[length] * length
            longer *= 1 - stay[length]
    return total


def check_chain(univer: ModuleType, traversal: ModuleType, toy: Toy) -> None:
    """On a chain: UniVer = Traversal, tree by tree; both reach the whole-tree optimum."""
    topology = toy.topology
    for tree, _ in enumeration.drafted_trees("top_residual", topology, toy.draft):
        rows = enumeration.tree_laws(tree, toy.target, toy.draft)
        ours, theirs = univer.stop_law(tree, *rows), traversal.stop_law(tree, *rows)
        assert (ours.stop_probs == theirs.stop_probs).all()
        assert (ours.next_token_probs() == theirs.next_token_probs()).all()
    length = expected_accepted(univer, toy)
    assert length == block_verification_length(toy)
    best = optimum.tree_optimum("top_residual", topology, toy.target, toy.draft)
    assert abs(float(length) - best) <= LP_TOLERANCE
