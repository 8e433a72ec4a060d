"""Each theorem's check fails when its verifier is broken: which line, and which check sees it.

The toys are fixed: plain laws, zeros, a peaked draft, and a drafted token that the target
forbids; V >= m + 2, laws that depend on the prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import ModuleType

import pytest

from reference import enumeration, greedy, rrsw, traversal, univer
from stattests.strategies import Toy, Weights, fractions
from stattests.theorems import checks, invented
from stattests.theorems.planted import Fault, plant

POOL: tuple[tuple[Weights, Weights], ...] = (
    ((5, 0, 5, 2), (1, 4, 5, 1)),
    ((1, 3, 2, 5), (5, 2, 1, 1)),
    ((2, 8, 0, 3), (1, 1, 8, 2)),
    ((3, 3, 1, 1), (1, 1, 3, 3)),
    ((1, 1, 1, 1), (2, 5, 1, 3)),
)
TREES = [(-1, 0, 0), (-1, 0, 0, 1, 2), (-1, 0, 0, 1, 1), (-1, 0, 0, 2, 2)]
CHAIN = (-1, 0, 1)
SCALES = [Fraction(1, 3), Fraction(1)]


def on_toys(check: Callable[[Toy], None], trees: list[tuple[int, ...]]) -> None:
    for parents in trees:
        for shift in range(len(POOL)):
            check(Toy(4, parents, POOL[shift:] + POOL[:shift]))


def on_layers(check: Callable[..., None]) -> None:
    for target, draft in POOL:
        for scale in SCALES:
            check(scale, fractions(target), fractions(draft))


def theorem_3(module: ModuleType) -> None:
    on_layers(
        lambda s, p, q: checks.check_layer_is_locally_lossless(module, s, p, q, "top_residual", 2)
    )


def theorem_4(module: ModuleType) -> None:
    on_toys(lambda toy: checks.check_output_law(module, toy), TREES)


def theorem_5(module: ModuleType) -> None:
    on_layers(lambda s, p, q: checks.check_layer_is_optimal(module, s, p, q, 2))


def theorem_6(module: ModuleType) -> None:
    on_toys(lambda toy: checks.check_univer_accepts_at_least_greedy(module, greedy, toy), TREES)


def lemma_1(module: ModuleType) -> None:
    def check(toy: Toy) -> None:
        for scale in SCALES:
            checks.check_scaled_univer_accepts_at_least_its_share(module, greedy, toy, scale)

    on_toys(check, TREES)


def chains(module: ModuleType) -> None:
    on_toys(lambda toy: checks.check_chain(univer, module, toy), [CHAIN])


def chains_univer(module: ModuleType) -> None:
    on_toys(lambda toy: checks.check_chain(module, traversal, toy), [CHAIN])


Z = "total = 1 - scale + surplus.sum()"
FACTOR = "factor = (1 - at_sampled) / total"
AT_SAMPLED = "at_sampled = ratio(scale * p[sampled], residual_draft[sampled])"
IN_TURN = "yield from visits(laws, u, ratio(masses[j], sum(masses[j:], beyond)))"
RESIDUAL_DRAFT = "normalise(without(q, *fixed)) if sampled >= 0"
# Lossless for any draft law, and shorter: every child gets its scaled target mass.
FULL = "if total == 0:"
TARGET_ONLY = """tokens = [*fixed, sampled] if sampled >= 0 else fixed
    return [scale * p[x] for x in tokens], scale * without(p, *tokens), 1 - scale
    if total == 0:"""
DRAFT_IGNORED = Fault("draft-law-ignored", univer, FULL, TARGET_ONLY)


def corollary_1(module: ModuleType) -> None:
    """`module` is `invented`: its compositions with two rules mixed over the nodes."""
    rules = [module.transport, module.ignoring]

    def check(toy: Toy) -> None:
        for composition in ("local", "conditional"):
            outputs = enumeration.output_law(
                module.composed(rules, composition),
                "top_residual",
                toy.topology,
                toy.target,
                toy.draft,
            )
            checks.check_outputs(outputs, toy)

    on_toys(check, TREES)


FAULTS: list[tuple[Callable[[ModuleType], None], Fault]] = [
    (theorem_3, Fault("z-without-scale", univer, Z, "total = surplus.sum()")),
    (theorem_3, Fault("factor-without-z", univer, FACTOR, "factor = 1 - at_sampled")),
    (theorem_3, Fault("top-not-removed", univer, RESIDUAL_DRAFT, "q if sampled >= 0")),
    (
        theorem_3,
        Fault("not-renormalised", univer, RESIDUAL_DRAFT, "without(q, *fixed) if sampled >= 0"),
    ),
    (
        theorem_3,
        Fault(
            "unscaled-surplus",
            univer,
            "positive_part(scale * p - residual_draft)",
            "positive_part(p - residual_draft)",
        ),
    ),
    (
        theorem_4,
        Fault("unscaled-ratio", univer, AT_SAMPLED, AT_SAMPLED.replace("scale * ", "")),
    ),
    (
        theorem_4,
        Fault(
            "fallback-is-scale",
            univer,
            "fallback = ratio(residual.sum(), beyond)",
            "fallback = scale",
        ),
    ),
    (
        theorem_4,
        Fault("recovered-from-target", univer, "residual if fallback > 0 else p", "p"),
    ),
    (
        theorem_4,
        Fault("mass-not-conditioned", univer, IN_TURN, "yield from visits(laws, u, masses[j])"),
    ),
    (
        theorem_4,
        Fault(
            "greedy-ratio-of-draft",
            greedy,
            "residual_draft = normalise(without(laws.draft(node), *tokens[:-1]))",
            "residual_draft = laws.draft(node)",
        ),
    ),
    (
        theorem_4,
        Fault(
            "greedy-surplus-is-target", greedy, "normalise(positive_part(p - residual_draft))", "p"
        ),
    ),
    (
        theorem_4,
        Fault("rrsw-draft-not-reduced", rrsw, "q = normalise(without(q, x))", "q = q"),
    ),
    (
        theorem_4,
        Fault("rrsw-residual-is-target", rrsw, "rejected = positive_part(p - q)", "rejected = p"),
    ),
    (
        theorem_4,
        Fault(
            "traversal-unscaled-residual",
            traversal,
            "positive_part(acceptance[parent] * p[parent] - q[parent])",
            "positive_part(p[parent] - q[parent])",
        ),
    ),
    (
        theorem_4,
        Fault(
            "traversal-denominator-lost",
            traversal,
            "ratio(mass, mass + (1 - acceptance[parent]))",
            "mass",
        ),
    ),
    (
        corollary_1,
        Fault(
            "one-rule-is-lossy", invented, "_places(scale * p, 1 - scale)", "_places(p, scale * 0)"
        ),
    ),
    (corollary_1, Fault("masses-not-conditioned", invented, "left -= mass", "left -= 0")),
    (
        corollary_1,
        Fault(
            "scale-not-passed-down",
            invented,
            "_visits(laws, rules, u, acceptance)",
            "_visits(laws, rules, u, Fraction(1))",
        ),
    ),
    (theorem_5, DRAFT_IGNORED),
    (theorem_6, DRAFT_IGNORED),
    (lemma_1, DRAFT_IGNORED),
    (
        chains,
        Fault(
            "token-wise-traversal",
            traversal,
            "ratio(acceptance[parent] * p[parent][x]",
            "ratio(p[parent][x]",
        ),
    ),
    (chains_univer, Fault("chain-z-without-scale", univer, Z, "total = surplus.sum()")),
]


WHOLE = sorted({(check, fault.module) for check, fault in FAULTS}, key=str)


@pytest.mark.parametrize(
    ("check", "module"), WHOLE, ids=[f"{check.__name__}-{m.__name__}" for check, m in WHOLE]
)
def test_whole_verifier_passes_these_toys(
    check: Callable[[ModuleType], None], module: ModuleType
) -> None:
    check(module)


@pytest.mark.parametrize(
    ("check", "fault"), FAULTS, ids=[f"{check.__name__}-{fault}" for check, fault in FAULTS]
)
def test_fault_is_caught(check: Callable[[ModuleType], None], fault: Fault) -> None:
    with pytest.raises(AssertionError):
        check(plant(fault))


def test_only_the_length_theorems_see_an_ignored_draft_law() -> None:
    theorem_3(plant(DRAFT_IGNORED))
    theorem_4(plant(DRAFT_IGNORED))
