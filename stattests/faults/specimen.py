"""What the suite is tested by: verifiers changed on purpose, and what is exactly known of each.

A specimen is a row of a table. Most are a built-in verifier with lines of its source replaced, some
draw their trees otherwise than the formulas assume, some are objects of their own. `subject` hides
all of that: what comes out is a black box without a stop law.

Letters: T trees, N nodes, V vocabulary, K cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import permutations
from math import ceil, inf, log
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stattests.answers import Decisions
from stattests.early_stops import Outcomes
from stattests.engine import translated
from stattests.etest import required_n
from stattests.exact import (
    ExactLaw,
    Masses,
    Prefix,
    drafted_trees,
    law_of_stops,
    node_hashes,
    tree_rows,
)
from stattests.planting import Patch, plant
from stattests.probing import probe
from stattests.problems import Problem, make_problem
from stattests.subject import Subject, of_object
from univer import DraftTree, Topology, verifiers
from univer.sampling import inverse_cdf

Drafter = Callable[[Tensor, int, Tensor], Tensor]
Kind = Literal["law", "scripted", "length", "contract", "dependence"]


@dataclass(frozen=True)
class Specimen:
    """A changed verifier.

    name: in kebab case, unique in the catalogue.
    ids: the known faults or controls that it stands for.
    says: what was changed, in a sentence.
    base: the row of VERIFIERS that was changed.
    patches: the lines that were replaced.
    drafting: another draft law: a name in DRAFTING or a callable; None for the base's.
    child_outcomes: all outcomes (law [V], arity) -> [(children, probability)] of its own draft law;
        without `drafting`, trees are drawn from these.
    make: builds an object of its own instead; `base` is then what it imitates.
    """

    name: str
    ids: str
    says: str
    base: str
    patches: tuple[Patch, ...] = ()
    drafting: str | Drafter | None = None
    child_outcomes: Outcomes | None = None
    make: Callable[[], Any] | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Fault(Specimen):
    """A specimen that must be caught.

    kind: `law` emits another law; `scripted` does so only at the ends of the uniforms; `length` is
        lossless but shorter than its claim; `contract` answers what is no answer, or changes its
        inputs; `dependence` lets calls or rows see each other, or draws in secret.
    shows_on: family, topology and vocabulary of a problem that shows it well.
    reads_ids: whether its law changes when token ids are renamed.
    """

    kind: Kind = "law"
    shows_on: tuple[str, str, int] = ("sharp", "2x1", 4)
    reads_ids: bool = False

    @property
    def claims(self) -> str | None:
        """The verifier whose length it promises and does not reach."""
        return self.base if self.kind == "length" else None

    @property
    def problem(self) -> Problem:
        """The problem that shows it."""
        return make_problem(*self.shows_on)


@dataclass(frozen=True)
class LookAlike(Specimen):
    """A specimen that is correct and must pass."""


@lru_cache(maxsize=256)
def _module(patches: tuple[Patch, ...]) -> Any:
    return plant(*patches)["univer.verifiers"] if patches else verifiers


def _verifier(specimen: Specimen) -> Any:
    """The row of the grid that decides, as the patched module knows it."""
    row = _module(specimen.patches).VERIFIERS[specimen.base]
    named = isinstance(specimen.drafting, str)
    return replace(row, drafting=specimen.drafting) if named else row


def subject(specimen: Specimen) -> Subject:
    """The specimen as a black box; an object of its own is built anew."""
    if specimen.make is not None:
        return of_object(specimen.name, specimen.make())
    verifier = _verifier(specimen)
    drafting = specimen.drafting or verifier.drafting
    if specimen.drafting is None and specimen.child_outcomes is not None:
        drafting = drafter(specimen.child_outcomes)
    return Subject(
        specimen.name,
        drafting,
        partial(_module(specimen.patches).verify, verifier),
        claims=getattr(specimen, "claims", None),
    )


def drafter(outcomes: Outcomes) -> Drafter:
    """A drafting callable that picks among the outcomes of each row's law."""

    def draw(draft_probs: Tensor, arity: int, uniforms: Tensor) -> Tensor:
        laws, which = draft_probs.unique(dim=0, return_inverse=True)
        drawn = torch.full((len(draft_probs), arity), -1)
        for number, law in enumerate(laws):
            listed = outcomes(law.numpy(), arity)
            children = torch.tensor([children for children, _ in listed])
            chances = torch.tensor([chance for _, chance in listed], dtype=torch.float64)
            rows = which == number
            picked = inverse_cdf(chances.expand(int(rows.sum()), -1), uniforms[rows, 0])
            drawn[rows] = children[picked]
        return drawn

    return draw


def exact_law(specimen: Specimen, problem: Problem) -> ExactLaw:
    """What it emits on a problem, exactly: probed, or enumerated where it draws its own trees.

    Raises:
        ProbeError: its outcomes are no boxes of the uniforms.
        ContractError: it breaks the contract.
        ValueError: an object of its own whose randomness or draft law is its own too.
    """
    if specimen.child_outcomes is None or specimen.make is not None:
        return probe(subject(specimen), problem).law
    tokens, chances = drafted_trees(problem, specimen.child_outcomes)
    rows = tree_rows(problem, node_hashes(problem.topology, tokens))
    tree = DraftTree(problem.topology, tokens)
    law = _module(specimen.patches).stop_law(_verifier(specimen), tree, *rows)
    return law_of_stops(
        problem, tokens, chances, law.stop_probs.numpy(), law.next_token_probs().numpy()
    )


@lru_cache(maxsize=256)
def shown_law(fault: Fault) -> ExactLaw:
    """The exact law on the problem that shows it."""
    return exact_law(fault, fault.problem)


def exact_tv(fault: Fault) -> float:
    """TV of its joint law on the problem that shows it. Errors as in `exact_law`."""
    return shown_law(fault).joint_tv()


@dataclass
class _Renamed(Subject):
    """A subject that sees every token under another name."""

    renamed: Tensor | None = None

    def decide(
        self, topology: Topology, tokens: Tensor, target: Tensor, draft: Tensor, uniforms: Tensor
    ) -> Decisions:
        assert self.renamed is not None
        own = self.renamed.argsort()
        seen = translated(self.renamed, tokens)
        out = super().decide(topology, seen, target[..., own], draft[..., own], uniforms)
        return Decisions(out.stop, own[out.next_token])


@lru_cache(maxsize=256)
def renamed_law(fault: Fault) -> ExactLaw:
    """`shown_law` averaged over all renamings of the ids, as the engine runs it; some seconds."""
    if not fault.reads_ids:
        return shown_law(fault)
    problem, box = fault.problem, subject(fault)
    masses: Masses = defaultdict(lambda: np.zeros(problem.vocab))
    total = accepted = 0.0
    names = list(permutations(range(problem.vocab)))
    for name in names:
        renamed = _Renamed(box.name, box.drafting, box.verify, renamed=torch.tensor(name))
        law = probe(renamed, problem).law
        total, accepted = total + law.total, accepted + law.expected_accepted
        for prefix, row in law.masses.items():
            masses[prefix] += row / len(names)
    return ExactLaw(problem, dict(masses), accepted / len(names), total / len(names))


def predicted_n(fault: Fault, alpha: float, beta: float) -> float:
    """Cycles after which the e-test has caught it with power 1 - beta; inf if it never must.

    The best of all prefixes, each with its own bias; a token of probability 0 needs to come once.
    """
    law = renamed_law(fault)
    return min((_prefix_n(law, prefix, alpha, beta) for prefix in law.masses), default=inf)


def _prefix_n(law: ExactLaw, prefix: Prefix, alpha: float, beta: float) -> float:
    null, row = law.problem.target_law(prefix), law.masses[prefix]
    visit_prob, cells = law.visit_prob(prefix), int((null > 0).sum())
    forbidden = float(row[null <= 0].sum())
    by_token = ceil(log(1 / beta) / forbidden) if forbidden > 0 else inf
    delta = visit_prob * law.conditional_tv(prefix) if visit_prob > 0 else 0.0
    if cells < 2 or delta < 1e-9:  # what rounding leaves of no bias
        return by_token
    return min(by_token, required_n(cells, delta, alpha, beta, visit_prob))
