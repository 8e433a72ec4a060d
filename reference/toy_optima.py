"""`python -m reference.toy_optima FILE`: how far UniVer and Greedy are from the best possible.

For toy models with random laws: the exact expected number of accepted tokens of both verifiers and
the optimum of the linear programme over whole trees, all for the draft law `top_residual`. UniVer
reaches the optimum on chains and single layers, not on every tree (SPEC 7). Takes some seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reference import greedy, univer
from reference.decision import Topology
from reference.enumeration import NextLaw, Prefix, expected_accepted
from reference.laws import Law
from reference.optimum import tree_optimum

DRAFTING = "top_residual"
VOCAB, TOYS, SEED = 5, 24, 0
CONCENTRATIONS = (0.3, 1.0)  # of the Dirichlet laws, by turns: sharp and flat
TOPOLOGIES = {
    "chain:2": (-1, 0, 1),
    "chain:3": (-1, 0, 1, 2),
    "2x1": (-1, 0, 0),
    "3x1": (-1, 0, 0, 0),
    "[[0],[1],[0,0]]": (-1, 0, 0, 1),
    "[[0],[1],[0,0],[0,1]]": (-1, 0, 0, 1, 1),
    "2x2": (-1, 0, 0, 1, 1, 2, 2),
}


def toy_laws(concentration: float, rng: np.random.Generator) -> tuple[NextLaw, NextLaw]:
    """Target and draft law of the next token, drawn anew for each prefix and then kept."""

    def law() -> Callable[[Prefix], Law]:
        known: dict[Prefix, Law] = {}

        def of(prefix: Prefix) -> Law:
            if prefix not in known:
                known[prefix] = rng.dirichlet(np.full(VOCAB, concentration))
            return known[prefix]

        return of

    return law(), law()


def optima() -> dict[str, Any]:
    """All toys' numbers of accepted tokens, the next token not counted."""
    rows = []
    for place, (name, parents) in enumerate(TOPOLOGIES.items()):
        topology = Topology(parents)
        for toy in range(TOYS):
            rng = np.random.default_rng([SEED, place, toy])
            target, draft = toy_laws(CONCENTRATIONS[toy % len(CONCENTRATIONS)], rng)
            found = {
                verifier.__name__.rpartition(".")[2]: float(
                    expected_accepted(verifier.stop_law, DRAFTING, topology, target, draft)
                )
                for verifier in (greedy, univer)
            }
            best = tree_optimum(DRAFTING, topology, target, draft)
            rows.append({"topology": name, "toy": toy, **found, "optimum": best})
    return {
        "command": "python -m reference.toy_optima",
        "drafting": DRAFTING,
        "vocab": VOCAB,
        "seed": SEED,
        "rows": rows,
    }


def main(arguments: list[str]) -> None:
    """Write the optima to the file that is named, or to the screen."""
    text = json.dumps(optima(), indent=1) + "\n"
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
