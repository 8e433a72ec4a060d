"""What the papers say of single rules, as functions that raise AssertionError where it fails.

Each takes the module that it judges, so that test_published_rules.py can hand it broken ones.
Letters: s scale, p target law, q draft law, k or m children; everything is exact in fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from reference import k_seq as reference_k_seq
from reference import optimal, optimum
from reference.composed import Composed, Layer
from reference.drafting import children_law
from reference.enumeration import drafted_trees, tree_laws
from reference.laws import Law, normalise, positive_part, ratio, without
from stattests.crosscheck.both import THRESHOLD_MARGIN, acceptance_of, drawn_batch
from stattests.strategies import Toy
from stattests.streams import torch_generator
from stattests.theorems.checks import LP_TOLERANCE, check_output_law
from univer import DRAFTING as DRAFT_LAWS

ROOT_MARGIN = Fraction(1, 10**12)  # relative: how near rho must be to the root
ROUNDING = Fraction(1, 2**50)  # of sums of some numbers in [0, 1]
RHO_LOSS = Fraction(1, 2**40)  # of what is accepted, as rho is found from above to 2^-46


def accepted(layer: Layer, drafting: str, s: Fraction, p: Law, q: Law, m: int) -> Any:
    """Expected accepted mass of one layer; each outcome's masses sum to 1."""
    mean: Any = Fraction(0)
    for children, chance in children_law(drafting, q, m):
        masses, residual, rejected = layer(s, p, q, [x for x in children if x >= 0])
        assert min([*masses, *residual, rejected]) >= 0
        assert sum(masses) + residual.sum() + rejected == 1
        mean += chance * sum(masses)
    return mean


def equation_10(s: Fraction, p: Law, q: Law, m: int) -> Any:
    """The UniVer paper's Eq. 10: what `top_residual` can keep at most."""
    fixed = sorted(range(len(q)), key=lambda token: (-q[token], token))[: m - 1]
    rest = normalise(without(q, *fixed))
    return sum(s * p[token] for token in fixed) + np.minimum(s * p, rest).sum()


def check_spechub(spechub: ModuleType, s: Fraction, p: Law, q: Law) -> None:
    """It keeps s p(a) + sum over x != a of min(s p(x), q(x) / (1 - q(a))): Eq. 10 for m = 2."""
    hub = min(range(len(q)), key=lambda token: (-q[token], token))
    others = normalise(without(q, hub))
    said = s * p[hub] + np.minimum(without(s * p, hub), others).sum()
    assert accepted(spechub.layer, "spechub_pairs", s, p, q, 2) == said
    assert said == equation_10(s, p, q, 2)


def check_rrs(rrs: ModuleType, s: Fraction, p: Law, q: Law, m: int) -> None:
    """RRS keeps 1 - product over the children of (1 - c + S), with S = sum [c P - q]+.

    A child is kept with chance sum min(c P, q) = c - S; after it c is S / (S + 1 - c) and P is
    [c P - q]+ / S, whichever token it was. At scale 1, c stays 1: 1 - product of S.
    """
    c, law, failed = s, p, Fraction(1)
    for _ in range(m):
        left = positive_part(c * law - q)
        mass = left.sum()
        failed *= 1 - c + mass
        c, law = ratio(mass, mass + 1 - c), normalise(left) if mass else law
    assert accepted(rrs.layer, "with_replacement", s, p, q, m) == 1 - failed


def passing(p: Law, q: Law, rho: Fraction, k: int) -> tuple[Any, Any, Any]:
    """With beta, the chance that one draft passes: 1 - (1 - beta)^k, that over beta, rho beta."""
    beta = np.minimum(p / rho, q).sum()
    return 1 - (1 - beta) ** k, sum((1 - beta) ** j for j in range(k)), rho * beta


def check_rho(rho: Fraction, p: Law, q: Law, k: int) -> None:
    """1 - (1 - beta)^k - rho beta, over beta, changes its sign within 1e-12 of rho, or rho is 1."""
    assert 1 <= rho <= k
    below, above = rho * (1 - ROOT_MARGIN), rho * (1 + ROOT_MARGIN)
    assert passing(p, q, above, k)[1] <= above
    if below > 1:
        assert passing(p, q, below, k)[1] > below


def check_k_seq(k_seq: ModuleType, p: Law, q: Law, k: int) -> None:
    """k-SEQ keeps 1 - (1 - beta)^k, at least 1 - (1 - 1/k)^k > 1 - 1/e of the best rule's."""
    rho = k_seq.solve_rho(Fraction(1), p, q, k)
    check_rho(rho, p, q, k)
    some, _, most = passing(p, q, rho, k)
    assert some <= most, "tokens get more than their target mass"
    assert accepted(k_seq.layer, "with_replacement", Fraction(1), p, q, k) == some
    best = optimal.accepted_mass("with_replacement", Fraction(1), p, q, k)
    share = 1 - (1 - Fraction(1, k)) ** k
    assert some >= share * best - RHO_LOSS


def check_torch_rho(k_seq: ModuleType, s: Fraction, p: Law, q: Law, k: int) -> None:
    """The same root in float64, wherever the rows' own rounding leaves one; else, what is kept.

    For nearly equal laws 1 - (1 - beta)^k touches rho beta (both are nearly 1): there a change of
    the laws' last bit moves rho by much more than 1e-12, and what is accepted by nothing.
    """
    rows = torch.tensor(np.array([p, q]).astype(np.float64))
    scale = torch.tensor([float(s)], dtype=torch.float64)
    rho = Fraction(k_seq.solve_rho(scale, rows[:1], rows[1:], torch.tensor([k])).item())
    s, (p, q) = Fraction(float(s)), (exact(rows[0]), exact(rows[1]))
    some, _, most = passing(s * p, q, rho, k)
    assert some - most <= ROUNDING, "tokens get more than their target mass"
    least = reference_k_seq.solve_rho(s, s * p, q, k)
    assert abs(some - passing(s * p, q, least, k)[0]) <= ROUNDING
    near = rho * (1 - ROOT_MARGIN)
    some_near, _, most_near = passing(s * p, q, near, k)
    if abs((some_near - most_near) - (some - most)) > ROUNDING:
        check_rho(rho, s * p, q, k)


def exact(row: torch.Tensor) -> Law:
    """A row of floats as a law in fractions that sums to 1."""
    values: Law = np.array([Fraction(x) for x in row.tolist()], dtype=object)
    return normalise(values)


def check_optimal(module: ModuleType, drafting: str, s: Fraction, p: Law, q: Law, m: int) -> None:
    """The largest flow is the linear programme's optimum, for `top_residual` Eq. 10 exactly."""
    best = module.accepted_mass(drafting, s, p, q, m)
    assert abs(float(best) - optimum.layer_optimum(drafting, float(s), p, q, m)) <= LP_TOLERANCE
    if drafting == "top_residual":
        assert best == equation_10(s, p, q, m)


def check_optimal_layer(module: ModuleType, s: Fraction, p: Law, q: Law, m: int) -> None:
    """The rule made of the largest flow keeps it, for independent drafts, and is lossless."""
    layer = partial(module.layer, "with_replacement")
    best = module.accepted_mass("with_replacement", s, p, q, m)
    assert accepted(layer, "with_replacement", s, p, q, m) == best
    mean: Any = p * 0
    for children, chance in children_law("with_replacement", q, m):
        masses, residual, _ = layer(s, p, q, children)
        mean = mean + chance * residual
        for x, mass in zip(children, masses, strict=True):
            mean[x] += chance * mass
    assert (mean == s * p).all()


def check_torch_optimal(
    rule: ModuleType, drafting: str, s: Fraction, p: Law, q: Law, m: int
) -> None:
    """The torch rule keeps the largest flow, within the solver's 1e-7."""
    listed = list(children_law(drafting, q, m))
    children = torch.tensor([children for children, _ in listed])
    rows = [np.tile(law.astype(np.float64), (len(listed), 1)) for law in (p, q)]
    found = rule.optimal(
        torch.full((len(listed),), float(s), dtype=torch.float64),
        *map(torch.tensor, rows),
        children,
        outcomes=DRAFT_LAWS[drafting].outcomes,
    )
    chances = torch.tensor([float(chance) for _, chance in listed], dtype=torch.float64)
    kept = float((chances * found.child_acceptance.sum(1)).sum())
    best = float(optimal.accepted_mass(drafting, s, p, q, m))
    assert abs(kept - best) <= LP_TOLERANCE


def check_same_stop_laws(verifiers: Sequence[Any], drafting: str, toy: Toy) -> None:
    """The verifiers have one stop law, tree by tree, in fractions."""
    for tree, _ in drafted_trees(drafting, toy.topology, toy.draft):
        rows = tree_laws(tree, toy.target, toy.draft)
        first, *others = (verifier.stop_law(tree, *rows) for verifier in verifiers)
        for other in others:
            assert (other.stop_probs == first.stop_probs).all()
            assert (other.next_token_probs() == first.next_token_probs()).all()


def check_same_decisions(verifiers: ModuleType, names: Sequence[str], toy: Toy) -> tuple[int, int]:
    """Given the same uniforms, the torch verifiers decide alike; (alike, looked at).

    They may differ only where a uniform is within rounding of what it is compared with.
    """
    batch = drawn_batch(toy, "without_replacement")
    tree, rows = batch.draft_tree, batch.rows()
    shape = (len(batch.trees), toy.topology.num_nodes + 1)
    eta = torch.rand(shape, dtype=torch.float64, generator=torch_generator(f"published/{toy}"))
    first, *others = (verifiers.verify(name, tree, *rows, uniforms=eta) for name in names)
    thresholds = acceptance_of(names[0], tree, *rows)
    laws = verifiers.stop_law(names[0], tree, *rows).next_token_probs().cumsum(-1)
    near = (eta[:, :-1] - thresholds).abs().amin(1) < THRESHOLD_MARGIN
    near |= (eta[:, -1, None, None] - laws).abs().amin((1, 2)) < THRESHOLD_MARGIN
    alike = 0
    for other in others:
        same = (other.tokens == first.tokens).all(1)
        same &= (other.accepted_nodes == first.accepted_nodes).all(1)
        assert (same | near).all()
        alike += int(same.sum())
    return alike, len(others) * len(batch.trees)


def check_target_only(module: ModuleType, drafting: str, toy: Toy) -> None:
    """Target-only: lossless whatever drew the trees; conditional and local are one law."""
    both = [Composed(drafting, module.layer, conditional) for conditional in (False, True)]
    check_same_stop_laws(both, drafting, toy)
    check_output_law(both[0], toy)
