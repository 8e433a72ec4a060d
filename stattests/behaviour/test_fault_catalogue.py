"""The catalogue is what it says: faults are faulty, look-alikes are not, each exactly."""

from __future__ import annotations

from itertools import product
from math import log

import numpy as np
import pytest
import torch

from stattests.answers import Decisions
from stattests.engine import Drawn, cycles, emitted, forbidden
from stattests.etest import log_e
from stattests.exact import drafted_trees, node_hashes, tree_rows
from stattests.exact import exact_law as enumerated_law
from stattests.faults import (
    FAULTS,
    LOOK_ALIKES,
    Fault,
    LookAlike,
    Specimen,
    exact_law,
    exact_tv,
    laws,
    predicted_n,
    shown_law,
    subject,
)
from stattests.faults.drafters import numpy_top_residual, with_replacement
from stattests.faults.specimen import drafter
from stattests.probing import LARGEST
from stattests.problems import Problem, make_problem
from stattests.streams import torch_generator
from stattests.subject import Subject, builtin
from stattests.verdict import ContractError
from univer import DRAFTING, VERIFIERS, draft_children

SMALLEST = 1e-5  # every fault of the law is at least this biased on its problem
ROUNDING = 1e-6  # single precision inside a look-alike; double precision leaves 1e-11
ALPHA, BETA = 1e-9 / 300, 1e-3
TOYS = [
    (family, topology, 4)
    for family in ("sharp", "ties", "small-support")
    for topology in ("2x1", "chain:2")
]


def of_kind(kind: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.kind == kind]


def has_exact_law(specimen: Specimen) -> bool:
    """Its draft law is listed, or has a name and nothing is random but the uniforms."""
    if specimen.child_outcomes is not None:
        return specimen.make is None
    black_box = subject(specimen)
    return isinstance(black_box.drafting, str) and not black_box.own_randomness


EXACT = [row for row in LOOK_ALIKES if has_exact_law(row)]
SAMPLED = [row for row in LOOK_ALIKES if not has_exact_law(row)]


def trees_of(box: Subject, problem: Problem) -> Drawn:
    """Every drafted tree once (of RRSw's law where the subject draws its own)."""
    drafting = box.drafting if isinstance(box.drafting, str) else "without_replacement"
    tokens, _ = drafted_trees(problem, drafting)
    hashes = node_hashes(problem.topology, tokens)
    return Drawn(tokens, hashes, *tree_rows(problem, hashes), torch.arange(problem.vocab))


def decide(box: Subject, problem: Problem, drawn: Drawn, uniforms: torch.Tensor) -> Decisions:
    return box.decide(problem.topology, drawn.tokens, drawn.target, drawn.draft, uniforms)


def uniforms_for(name: str, drawn: Drawn) -> torch.Tensor:
    shape = (drawn.tokens.shape[0], drawn.tokens.shape[1] + 1)
    return torch.rand(shape, dtype=torch.float64, generator=torch_generator(name))


def same(one: Decisions, other: Decisions) -> bool:
    return torch.equal(one.stop, other.stop) and torch.equal(one.next_token, other.next_token)


def test_catalogue_is_large_enough_and_every_name_is_used_once() -> None:
    names = [specimen.name for specimen in (*FAULTS, *LOOK_ALIKES)] + list(VERIFIERS)
    assert len(set(names)) == len(names)
    assert len(FAULTS) >= 48
    assert len(LOOK_ALIKES) >= 12


@pytest.mark.parametrize("specimen", [*FAULTS, *LOOK_ALIKES], ids=str)
def test_every_patch_applies(specimen: Specimen) -> None:
    assert subject(specimen).name == specimen.name


@pytest.mark.parametrize(
    "specimen", [s for s in (*FAULTS, *LOOK_ALIKES) if s.child_outcomes], ids=str
)
def test_outcomes_of_an_own_draft_law_sum_to_one(specimen: Specimen) -> None:
    assert specimen.child_outcomes is not None
    for law, arity in product(make_problem("small-support", "3x1", 5).draft, (1, 2, 3)):
        chances = [chance for _, chance in specimen.child_outcomes(law, arity)]
        assert sum(chances) == pytest.approx(1.0, abs=1e-12)


def test_own_top_residual_draws_as_ours_does() -> None:
    laws = torch.cat([make_problem(family, "3x1", 5).pool[1] for family in ("ties", "near")])
    uniforms = torch.rand(len(laws), 3, dtype=torch.float64, generator=torch_generator("own"))
    ours = draft_children("top_residual", laws, 3, uniforms)
    assert torch.equal(numpy_top_residual(laws, 3, uniforms), ours)


@pytest.mark.stat
def test_trees_are_drawn_from_the_listed_outcomes() -> None:
    """False alarms at most 1e-9."""
    law = make_problem("near", "3x1", 5).pool[1][:1]
    outcomes = with_replacement(law[0].numpy(), 2)
    uniforms = torch.rand(20_000, 2, dtype=torch.float64, generator=torch_generator("outcomes"))
    drawn = drafter(with_replacement)(law.expand(20_000, -1), 2, uniforms)
    codes = (drawn[:, 0] * 5 + drawn[:, 1]).bincount(minlength=25).numpy()
    null = np.zeros(25)
    null[[5 * first + second for (first, second), _ in outcomes]] = [p for _, p in outcomes]
    assert log_e(codes, null, 1000.0) < log(1e9)


@pytest.mark.parametrize("fault", [f for f in of_kind("law") if has_exact_law(f)], ids=str)
def test_law_fault_is_biased_by_a_known_amount(fault: Fault) -> None:
    assert exact_tv(fault) > SMALLEST
    if not fault.reads_ids:  # the average over renamings takes some seconds
        assert 0 < predicted_n(fault, ALPHA, BETA) < np.inf


def scripted_token_is_forbidden(box: Subject, problem: Problem) -> bool:
    drawn = trees_of(box, problem)
    return any(
        forbidden(
            problem,
            emitted(
                problem,
                drawn,
                decide(box, problem, drawn, uniforms_for("", drawn).fill_(uniform)),
            ),
        )
        is not None
        for uniform in (0.0, LARGEST)
    )


@pytest.mark.parametrize("fault", of_kind("scripted"), ids=str)
def test_scripted_fault_emits_a_forbidden_token(fault: Fault) -> None:
    assert scripted_token_is_forbidden(subject(fault), fault.problem)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_whole_verifier_emits_none(name: str) -> None:
    box = builtin(name)
    toys = [make_problem(*shown) for shown in sorted({f.shows_on for f in of_kind("scripted")})]
    fitting = [
        toy for toy in toys if box.max_arity is None or toy.topology.max_arity <= box.max_arity
    ]
    assert fitting
    for toy in fitting:
        assert not scripted_token_is_forbidden(box, toy), toy.name


@pytest.mark.parametrize("fault", of_kind("length"), ids=str)
def test_length_fault_is_lossless_and_shorter(fault: Fault) -> None:
    assert exact_tv(fault) < ROUNDING
    law = builtin(fault.base).stop_law
    assert law is not None
    promised = enumerated_law(fault.problem, VERIFIERS[fault.base].drafting, law)
    assert shown_law(fault).expected_accepted < promised.expected_accepted - 1e-3


def decide_thrice(fault: Fault) -> None:
    box, problem = subject(fault), fault.problem
    drawn = trees_of(box, problem)
    for call in range(3):
        decide(box, problem, drawn, uniforms_for(f"{fault}/{call}", drawn))


@pytest.mark.parametrize("fault", [f for f in of_kind("contract") if f.name != "hangs"], ids=str)
def test_contract_fault_is_refused(fault: Fault) -> None:
    with pytest.raises(ContractError):
        decide_thrice(fault)


def row(drawn: Drawn, which: int | torch.Tensor) -> Drawn:
    """One tree of a batch, or several by their numbers."""
    at = torch.as_tensor(which).reshape(-1)
    return Drawn(
        drawn.tokens[at], drawn.hashes[at], drawn.target[at], drawn.draft[at], drawn.renamed
    )


def depends(specimen: Specimen | str, problem: Problem) -> bool:
    """Whether calls or rows see each other, or anything is random besides the uniforms."""

    def fresh() -> Subject:
        return builtin(specimen) if isinstance(specimen, str) else subject(specimen)

    box = fresh()
    listed = trees_of(box, problem)
    chosen = torch.randint(len(listed.tokens), (1_025,), generator=torch_generator("depends"))
    drawn = row(listed, chosen)
    first, second = (uniforms_for(f"depends/{i}", drawn) for i in range(2))
    if box.own_randomness:
        alike = row(drawn, torch.zeros(64, dtype=torch.int64))
        answers = [decide(box, problem, alike, first) for _ in range(2)]
        codes = answers[0].stop * problem.vocab + answers[0].next_token
        return same(*answers) or len(codes.unique()) == 1
    answer = decide(box, problem, drawn, first)
    after = [decide(box, problem, drawn, second) for _ in range(30)]
    some = [*range(47), len(first) - 1]  # the batch is large and odd
    alone = [decide(fresh(), problem, row(drawn, i), first[i : i + 1]) for i in some]
    apart = Decisions(
        torch.cat([one.stop for one in alone]), torch.cat([one.next_token for one in alone])
    )
    return (
        not all(same(after[0], other) for other in after)
        or not same(after[0], decide(fresh(), problem, drawn, second))
        or not same(Decisions(answer.stop[some], answer.next_token[some]), apart)
    )


@pytest.mark.parametrize("fault", of_kind("dependence"), ids=str)
def test_dependence_fault_depends(fault: Fault) -> None:
    assert depends(fault, fault.problem)


@pytest.mark.parametrize("specimen", [*LOOK_ALIKES, *sorted(VERIFIERS)], ids=str)
def test_correct_verifier_does_not_depend(specimen: LookAlike | str) -> None:
    chains = isinstance(specimen, str) and VERIFIERS[specimen].max_arity == 1
    assert not depends(specimen, make_problem("near", "chain:2" if chains else "2x1", 4))


@pytest.mark.parametrize("look_alike", EXACT, ids=str)
def test_look_alike_is_lossless(look_alike: LookAlike) -> None:
    for toy in TOYS:
        assert exact_law(look_alike, make_problem(*toy)).joint_tv() < ROUNDING, toy


@pytest.mark.stat
@pytest.mark.parametrize("look_alike", SAMPLED, ids=str)
def test_look_alike_without_an_exact_law_follows_the_target(look_alike: LookAlike) -> None:
    """The first token; false alarms at most 1e-9 a row."""
    box, problem = subject(look_alike), make_problem("sharp", "2x1", 4)
    torch.manual_seed(0)
    out = cycles(box, problem, 50_000 if box.batched else 4_000, torch_generator(look_alike.name))
    counts = out.tokens[:, 0].bincount(minlength=problem.vocab).numpy()
    assert log_e(counts, problem.target_law(()), 100.0) < log(1e9)


@pytest.mark.parametrize("name", VERIFIERS)
def test_kept_laws_are_those_of_the_code(name: str) -> None:
    chains = VERIFIERS[name].max_arity == 1
    at = next(i for i, (_, spec, _) in enumerate(laws.TOYS) if not chains or "chain" in spec)
    kept, now = laws.known(name), laws.compute(name, [laws.TOYS[at]])  # all take three minutes
    writes = f"python -m stattests.faults --laws {name} writes the kept laws again"
    # Another verifier's fault may change nothing on one toy.
    own = {fault.name for fault in FAULTS if fault.base == name}
    assert kept.keys() & own <= now.keys() <= kept.keys(), writes
    for fault, (law,) in now.items():
        ours = kept[fault][at]
        assert law is not None
        assert ours is not None
        assert ours.keys() == law.keys(), (fault, writes)
        assert max(abs(ours[out] - prob) for out, prob in law.items()) <= ROUNDING, (fault, writes)


def test_laws_are_kept_of_every_verifier_and_of_nothing_else() -> None:
    missing = [said for drafting in DRAFTING if (said := laws.missing(drafting))]
    assert missing == []
    assert {file.stem for file in laws.FOLDER.iterdir()} == {*VERIFIERS}
    base = {fault.name: fault.base for fault in FAULTS} | {laws.NO_FAULT: None}
    for name in VERIFIERS:
        assert laws.known(name).keys() <= base.keys()
    elsewhere = [
        base[fault] not in (name, None) for name in VERIFIERS for fault in laws.known(name)
    ]
    assert sum(elsewhere) > 20
