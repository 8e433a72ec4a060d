"""What the papers claim of single rules: acceptance in closed form, the best rule, chains.

| rule | claim |
|---|---|
| SpecHub | keeps p(a) + sum over x != a of min(p(x), q(x) / (1 - q(a))): Eq. 10 for m = 2 |
| RRS | keeps 1 - product of (1 - c + S) over the children |
| k-SEQ | keeps 1 - (1 - beta)^k at the root rho, at least 1 - 1/e of the best |
| optimal | the largest flow is the linear programme's optimum; Eq. 10 for `top_residual` |
| Block Verification | UniVer and Traversal on chains: the same stop laws and decisions |
| token verification | Greedy and RRSw on chains |
| target-only | lossless for every draft law; one law, local or conditional |
| merged twins | independent rollouts as one prefix tree: lossless for every rule |

All in fractions, except where a linear programme or torch is one side. Each check fails on a module
that is broken in one line.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import univer.rules.k_seq
import univer.rules.optimal
import univer.rules.single_draft
import univer.verifiers
from reference import (
    block_verification,
    greedy,
    k_seq,
    optimal,
    rrs,
    rrsw,
    spechub,
    target_only,
    token_verification,
    traversal,
)
from reference import univer as univer_reference
from reference.composed import Composed, Layer
from reference.drafting import DRAFTING
from stattests.strategies import (
    FractionLaw,
    Toy,
    Weights,
    chains,
    fractions,
    law_pairs,
    scales,
    topologies,
    toys,
)
from stattests.theorems import published
from stattests.theorems.checks import check_output_law
from stattests.theorems.planted import Fault
from stattests.theorems.test_planted_faults import CHAIN, POOL, on_layers, on_toys
from univer.draft_laws import DRAFTING as LAWS

PAIRS = st.integers(2, 5).flatmap(law_pairs)
BLOCK = ("block_verification", "univer", "traversal")
LAYERS: dict[str, Layer] = {
    "rrs": rrs.layer,
    "k_seq": k_seq.layer,
    "optimal": partial(optimal.layer, "with_replacement"),
}
TOKEN = ("token_verification", "greedy", "rrsw")
Pair = tuple[Weights, Weights]
few = settings(max_examples=40)  # where one takes long


@given(pair=PAIRS, scale=scales)
def test_spechub_keeps_equation_10(pair: Pair, scale: Fraction) -> None:
    target, draft = map(fractions, pair)
    published.check_spechub(spechub, scale, target, draft)


@given(pair=PAIRS, scale=scales, arity=st.integers(1, 3))
def test_rrs_keeps_its_product(pair: Pair, scale: Fraction, arity: int) -> None:
    target, draft = map(fractions, pair)
    published.check_rrs(rrs, scale, target, draft, arity)


@few
@example(pair=((10**9, 1), (1, 0)), arity=3)  # nearly equal: the hardest root
@given(pair=st.integers(2, 4).flatmap(law_pairs), arity=st.integers(1, 3))
def test_k_seq_keeps_its_share_of_the_best(pair: Pair, arity: int) -> None:
    target, draft = map(fractions, pair)
    published.check_k_seq(k_seq, target, draft, arity)


@few
@given(pair=PAIRS, scale=scales, arity=st.integers(1, 4))
def test_torch_finds_rho(pair: Pair, scale: Fraction, arity: int) -> None:
    target, draft = map(fractions, pair)
    published.check_torch_rho(univer.rules.k_seq, scale, target, draft, arity)


@pytest.mark.parametrize("drafting", DRAFTING)
@few
@given(pair=st.integers(2, 4).flatmap(law_pairs), scale=scales, arity=st.integers(1, 3))
def test_largest_flow_is_the_optimum(
    drafting: str, pair: Pair, scale: Fraction, arity: int
) -> None:
    arity = min(arity, LAWS[drafting].max_arity or arity)
    target, draft = map(fractions, pair)
    published.check_optimal(optimal, drafting, scale, target, draft, arity)
    published.check_torch_optimal(
        univer.rules.optimal, drafting, scale, target, draft, min(arity, 2)
    )


@given(pair=st.integers(2, 3).flatmap(law_pairs), scale=scales, arity=st.integers(1, 2))
def test_rule_of_the_largest_flow_is_lossless(pair: Pair, scale: Fraction, arity: int) -> None:
    target, draft = map(fractions, pair)
    published.check_optimal_layer(optimal, scale, target, draft, arity)


@given(toy=toys(shapes=chains()))
def test_chains_have_one_block_rule_and_one_token_rule(toy: Toy) -> None:
    blocks = [block_verification, univer_reference, traversal]
    published.check_same_stop_laws(blocks, "without_replacement", toy)
    tokens = [token_verification, greedy, rrsw]
    published.check_same_stop_laws(tokens, "without_replacement", toy)


@pytest.mark.parametrize("names", [BLOCK, TOKEN], ids=lambda names: names[0])
def test_chains_have_the_same_decisions(names: tuple[str, ...]) -> None:
    found = []

    @few
    @given(toy=toys(shapes=chains()))
    def look(toy: Toy) -> None:
        found.append(published.check_same_decisions(univer.verifiers, names, toy))

    look()
    alike, seen = map(sum, zip(*found, strict=True))
    print(f"{names[0]}: {alike} of {seen} decisions are those of {' and '.join(names[1:])}")
    assert alike >= 0.999 * seen


@pytest.mark.parametrize("drafting", DRAFTING)
@few
@given(data=st.data())
def test_target_only_needs_no_draft_law(drafting: str, data: st.DataObject) -> None:
    shapes = topologies(max_nodes=6, max_arity=2)
    toy = data.draw(toys(shapes, max_drafted=40, drafting=drafting))
    published.check_target_only(target_only, drafting, toy)


@pytest.mark.parametrize("conditional", [False, True], ids=["local", "conditional"])
@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=20)
@given(data=st.data())
def test_merged_twins_are_lossless(name: str, conditional: bool, data: st.DataObject) -> None:
    shapes = topologies(max_nodes=5, max_arity=2)
    toy = data.draw(toys(shapes, max_drafted=30, drafting="with_replacement"))
    verifier = Composed("with_replacement", LAYERS[name], conditional, merged=True)
    check_output_law(verifier, toy)


def on_laws(check: Callable[[FractionLaw, FractionLaw], None]) -> None:
    for target, draft in POOL:
        check(fractions(target), fractions(draft))


def chain_rules(verifiers: list[ModuleType]) -> None:
    on_toys(lambda t: published.check_same_stop_laws(verifiers, "without_replacement", t), [CHAIN])


def same_decisions(module: ModuleType) -> None:
    def check(toy: Toy) -> None:
        published.check_same_decisions(module, BLOCK, toy)

    on_toys(check, [CHAIN])


def any_draft_law(module: ModuleType) -> None:
    for drafting in DRAFTING:
        check = partial(published.check_target_only, module, drafting)
        on_toys(check, [(-1, 0, 0), (-1, 0, 0, 1)])


def largest_flow(module: ModuleType) -> None:
    for drafting in DRAFTING:
        on_layers(lambda s, p, q, d=drafting: published.check_optimal(module, d, s, p, q, 2))


def torch_optimal(module: ModuleType) -> None:
    for drafting in DRAFTING:
        on_layers(lambda s, p, q, d=drafting: published.check_torch_optimal(module, d, s, p, q, 2))


STAGE_4 = "stage_4 = min(p[hub] - stage_3, open_first)"
CHECKS: dict[str, tuple[Callable[[ModuleType], None], str, tuple[Fault, ...]]] = {
    "spechub": (
        lambda module: on_layers(partial(published.check_spechub, module)),
        "reference.spechub",
        (
            Fault("no-fourth-stage", spechub, STAGE_4, "stage_4 = p[hub] * 0"),
            Fault("turned-unscaled", spechub, "(q[hub] / pair_first.sum())", "q[hub]"),
        ),
    ),
    "rrs": (
        lambda module: on_layers(lambda s, p, q: published.check_rrs(module, s, p, q, 2)),
        "reference.rrs",
        (
            Fault("scale-kept", rrs, "c = ratio(mass, mass + (1 - c))", "c = c"),
            Fault("target-kept", rrs, "p = normalise(rejected) if mass > 0 else p", "p = p"),
        ),
    ),
    "k-seq": (
        lambda module: on_laws(lambda p, q: published.check_k_seq(module, p, q, 2)),
        "reference.k_seq",
        (
            Fault("nearly-enough", k_seq, "bool(times <= rho)", "bool(times <= rho * 1.001)"),
            Fault("one-draft-less", k_seq, "j in range(k))", "j in range(k - 1))"),
            Fault("rho-is-k", k_seq, "return rho", "return one(p) * k"),
        ),
    ),
    "torch-rho": (
        lambda module: on_layers(lambda s, p, q: published.check_torch_rho(module, s, p, q, 3)),
        "univer.rules.k_seq",
        (
            Fault("few-digits", univer.rules.k_seq, "EXACT = 2.0**-50", "EXACT = 2.0**-30"),
            Fault("one-draft-less", univer.rules.k_seq, "arity >= drafts", "arity > drafts"),
        ),
    ),
    "largest-flow": (
        largest_flow,
        "reference.optimal",
        (Fault("first-only", optimal, "set(children) - {-1}", "set(children[:1]) - {-1}"),),
    ),
    "best-layer": (
        lambda module: on_layers(lambda s, p, q: published.check_optimal_layer(module, s, p, q, 2)),
        "reference.optimal",
        (
            Fault("twins-twice", optimal, "[x] * (x not in tokens[:j])", "[x]"),
            Fault(
                "scale-forgotten",
                optimal,
                "sum(masses), residual, s)",
                "sum(masses), residual, s * 0 + 1)",
            ),
        ),
    ),
    "torch-optimal": (
        torch_optimal,
        "univer.rules.optimal",
        (
            Fault(
                "half-of-the-drafts",
                univer.rules.optimal,
                "bounds = np.concatenate([chances, wanted])",
                "bounds = np.concatenate([chances / 2, wanted])",
            ),
        ),
    ),
    "block": (
        lambda module: chain_rules([module, univer_reference]),
        "reference.block_verification",
        (
            Fault(
                "token-wise",
                block_verification,
                "ratio(keep[i - 1] * p[x], q[x])",
                "ratio(p[x], q[x])",
            ),
            Fault("this-row", block_verification, "mass + (1 - keep[i])", "mass"),
        ),
    ),
    "token": (
        lambda module: chain_rules([module, greedy]),
        "reference.token_verification",
        (Fault("recovered-from-target", token_verification, "positive_part(p - q)", "p"),),
    ),
    "decisions": (
        same_decisions,
        "univer.verifiers",
        (
            Fault(
                "unscaled-surplus",
                univer.rules.single_draft,
                "surplus = (scaled - q).clamp_(min=0)",
                "surplus = (target - q).clamp_(min=0)",
            ),
        ),
    ),
    "target-only": (
        any_draft_law,
        "reference.target_only",
        (
            Fault("twins-twice", target_only, "s * p[x] * (x not in tokens[:j])", "s * p[x]"),
            Fault("unscaled-rest", target_only, "without(s * p, *tokens)", "without(p, *tokens)"),
        ),
    ),
}
FAULTS = [(name, fault) for name, (_, _, faults) in CHECKS.items() for fault in faults]


@pytest.mark.parametrize("name", CHECKS)
def test_whole_module_passes_these_toys(name: str) -> None:
    check, module, _ = CHECKS[name]
    check(importlib.import_module(module))


@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=[f"{name}-{fault}" for name, fault in FAULTS]
)
def test_fault_is_caught(name: str, fault: Fault) -> None:
    check, module, _ = CHECKS[name]
    with pytest.raises(AssertionError):
        check(fault.plant()[module])
