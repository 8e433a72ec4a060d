"""The exact output laws of the catalogue on a few small toys, kept as data: one file a verifier.

A diagnosis compares what was seen with what each known fault would give. The laws are kept in
files because the code under test may be the very code that faults are planted in: once it is broken
by hand, nothing planted on top of it says anything. `python -m stattests.faults --laws` writes the
files again, all or those of the verifiers that are named; a test compares them with the code. A
verifier without a file is left out of the comparison, and the diagnosis says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path

from stattests.budget import PROBE_TOLERANCE
from stattests.cases import problem
from stattests.exact import ExactLaw, Prefix
from stattests.exact import exact_law as enumerated_law
from stattests.faults.catalogue import FAULTS
from stattests.faults.specimen import Fault, exact_law
from stattests.probing import ProbeError
from stattests.problems import Problem
from stattests.verdict import ContractError
from univer import VERIFIERS, Verifier, stop_law
from univer.allocation import ALLOCATION

TOYS = (
    ("sharp", "2x1", 4),
    ("sharp", "chain:2", 4),
    ("near", "[[0],[1],[0,0]]", 4),
    ("sharp", "3x1", 5),
    ("dirichlet-.3", "chain:2", 4),
    ("sharp", "chain:2/early", 4),
    ("sharp", "2x1/early", 4),
)
FOLDER = Path(str(files("stattests.faults"))) / "known_laws"
NO_FAULT = "no-fault"  # among the names of faults: the verifier as it is
SMALLEST = 1e-15  # what rounding leaves of an output that never comes

Outputs = dict[Prefix, float]
Known = list[Outputs | None]  # one a toy, None where there is none


def outputs_of(law: ExactLaw) -> Outputs:
    """The probability of each output: begins with (s, t) and does not go beyond it."""
    found = {
        (*prefix, token): float(row[token] - law.visit_prob((*prefix, token)))
        for prefix, row in law.masses.items()
        for token in range(len(row))
    }
    return {output: prob for output, prob in found.items() if prob > SMALLEST}


def comparable(fault: Fault) -> bool:
    """Whether its law can be had on any toy, with the draft law of its base."""
    return (
        fault.kind == "law"
        and bool(fault.patches)
        and fault.child_outcomes is None
        and fault.drafting is None
    )


def _rule(verifier: Verifier) -> str:
    """The module that a verifier's rule is written in."""
    rule = ALLOCATION[verifier.allocation].allocate
    return str(getattr(rule, "func", rule).__module__)


def _touches(fault: Fault, verifier: Verifier) -> bool:
    """Whether one of the fault's lines is not in another verifier's rule."""
    rules, own = "univer.rules.", _rule(verifier)
    return any(not p.module.startswith(rules) or p.module == own for p in fault.patches)


def faults_in(name: str) -> Iterator[Fault]:
    """The comparable faults that draft as this verifier does, their lines planted in it."""
    row = VERIFIERS[name]
    for fault in filter(comparable, FAULTS):
        if VERIFIERS[fault.base].drafting == row.drafting and _touches(fault, row):
            yield replace(fault, base=name)


def _own_faults(name: str) -> set[str]:
    return {fault.name for fault in FAULTS if fault.base == name and comparable(fault)}


def _fits(verifier: Verifier, toy: Problem) -> bool:
    most = verifier.max_arity
    return most is None or toy.topology.max_arity <= most


def compute(name: str, toys: Sequence[tuple[str, str, int]] = TOYS) -> dict[str, Known]:
    """The laws of a verifier of VERIFIERS: without a fault, and with each that changes anything.

    None on a toy that is too wide, or on which a fault cannot be compared.
    """
    row, models = VERIFIERS[name], [problem(*toy) for toy in toys]
    fitting = [model if _fits(row, model) else None for model in models]

    def on(model: Problem | None, law: Callable[[Problem], ExactLaw]) -> ExactLaw | None:
        try:
            return None if model is None else law(model)
        except (ProbeError, ContractError):  # no boxes, or no answer: who answers is not that
            return None

    def on_each(law: Callable[[Problem], ExactLaw]) -> list[ExactLaw | None]:
        return [on(model, law) for model in fitting]

    def whole(model: Problem) -> ExactLaw:
        return enumerated_law(model, row.drafting, partial(stop_law, name))

    laws, own = {NO_FAULT: on_each(whole)}, _own_faults(name)
    for fault in faults_in(name):
        found = on_each(partial(exact_law, fault))
        differs = any(law is not None and law.joint_tv() > PROBE_TOLERANCE for law in found)
        if differs or fault.name in own:
            laws[fault.name] = found
    return {
        fault: [None if law is None else outputs_of(law) for law in found]
        for fault, found in laws.items()
    }


def write(name: str) -> None:
    """Compute the laws of a verifier and write its file, a fault a line."""
    lines = [
        f"{json.dumps(fault)}: {json.dumps([_as_json(law) for law in rows])}"
        for fault, rows in sorted(compute(name).items())
    ]
    FOLDER.mkdir(exist_ok=True)
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
    known.cache_clear()


def _as_json(law: Outputs | None) -> dict[str, float] | None:
    if law is None:
        return None
    return {",".join(map(str, out)): float(f"{p:.15g}") for out, p in sorted(law.items())}


@lru_cache
def known(name: str) -> dict[str, Known]:
    """The laws in a verifier's file; none if it has none of these toys."""
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    if any(len(rows) != len(TOYS) for rows in data.values()):
        return {}  # written for other toys
    return {
        fault: [
            None if law is None else {tuple(map(int, out.split(","))): p for out, p in law.items()}
            for law in rows
        ]
        for fault, rows in data.items()
    }


def missing(drafting: str) -> str | None:
    """Which laws of a draft law's verifiers are not kept, and the command that writes them."""
    names = [
        name
        for name, row in VERIFIERS.items()
        if row.drafting == drafting and not {NO_FAULT, *_own_faults(name)} <= known(name).keys()
    ]
    if not names:
        return None
    return (
        f"the kept laws of {', '.join(names)} are missing or lack a fault;"
        f" python -m stattests.faults --laws {' '.join(names)} writes them"
    )
