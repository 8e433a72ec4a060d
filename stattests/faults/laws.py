"""The exact output laws of the catalogue on a few small toys, kept as data.

A diagnosis compares what was seen with what each known fault would give. The laws are kept in a
file because the code under test may be the very code that faults are planted in: once it is broken
by hand, nothing planted on top of it says anything. `python -m stattests.faults --laws` writes the
file again; a test compares it with the code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.resources import files
from itertools import chain
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
)
FILE = Path(str(files("stattests.faults"))) / "laws.json"
SMALLEST = 1e-15  # what rounding leaves of an output that never comes

Outputs = dict[Prefix, float]
Known = list[Outputs | None]  # one a toy, None for one that is too wide


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


def variants(fault: Fault) -> Iterator[Fault]:
    """The fault's lines in its own verifier, then in the others that draft alike."""
    drafting = VERIFIERS[fault.base].drafting
    for name, row in VERIFIERS.items():
        if row.drafting == drafting and _touches(fault, row):
            label = fault.name if name == fault.base else f"{fault.name}@{name}"
            yield replace(fault, name=label, base=name)


def _fits(verifier: Verifier, toy: Problem) -> bool:
    most = verifier.max_arity
    return most is None or toy.topology.max_arity <= most


def compute(toys: Sequence[tuple[str, str, int]] = TOYS) -> dict[str, Known]:
    """The laws of all comparable faults and, as `no-fault/<verifier>`, of the built-in ones.

    `<fault>@<verifier>` is the fault in another verifier than its own, where it changes anything.
    """
    models = [problem(*toy) for toy in toys]
    laws: dict[str, Known] = {
        f"no-fault/{name}": [
            outputs_of(enumerated_law(model, verifier.drafting, partial(stop_law, name)))
            if _fits(verifier, model)
            else None
            for model in models
        ]
        for name, verifier in VERIFIERS.items()
    }
    for fault in chain.from_iterable(map(variants, filter(comparable, FAULTS))):
        try:
            found = [
                exact_law(fault, model) if _fits(VERIFIERS[fault.base], model) else None
                for model in models
            ]
        except (ProbeError, ContractError):
            continue  # no boxes on some toy, or no answer: it cannot be compared
        differs = any(law is not None and law.joint_tv() > PROBE_TOLERANCE for law in found)
        if differs or "@" not in fault.name:
            laws[fault.name] = [None if law is None else outputs_of(law) for law in found]
    return laws


def write(file: Path = FILE) -> None:
    """Compute the laws and write them."""
    data = {
        name: [
            None
            if law is None
            else {",".join(map(str, out)): float(f"{p:.15g}") for out, p in law.items()}
            for law in rows
        ]
        for name, rows in compute().items()
    }
    file.write_text(json.dumps(data, indent=0, sort_keys=True) + "\n", encoding="utf-8")


@lru_cache(maxsize=1)
def known() -> dict[str, Known]:
    """The laws in the file."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: [
            None if law is None else {tuple(map(int, out.split(","))): p for out, p in law.items()}
            for law in rows
        ]
        for name, rows in data.items()
    }
