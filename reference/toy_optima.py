"""`python -m reference.toy_optima FILE`: how far every verifier is from the best possible.

For toys with random laws (`reference.toys`): the exact expected number of accepted tokens of each
verifier on each tree that it takes, and for each draft law the optimum of the linear programme over
whole trees, which no lossless verifier exceeds. Takes some minutes.

Beside the rows of VERIFIERS, for independent drafts: the best possible rule of one layer
(`optimal`), and rules with twins merged into one branch (`_merged`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from reference import LAYERS, VERIFIERS, optimal
from reference.composed import Composed, Layer
from reference.decision import Verifier
from reference.enumeration import NextLaw, drafted_trees, tree_laws
from reference.laws import Law, Number
from reference.optimum import tree_optimum
from reference.toys import SEED, SHAPES, kind_of, toy, write_or_show

TOYS = 32  # a tree
DIGITS = 10  # kept; HiGHS is exact to about 1e-9
INDEPENDENT = "with_replacement"


def max_arity(name: str) -> int | None:
    """Most children of a node that a row of VERIFIERS takes, as its module says; None for any."""
    rule = LAYERS.get(name.removesuffix("_conditional"), VERIFIERS.get(name))
    return getattr(rule, "MAX_ARITY", None)


def _remembered(layer: Layer) -> Layer:
    """The same rule; trees share most of their layers."""
    known: dict[object, tuple[list[Number], Law, Number]] = {}

    def of(s: Number, p: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law, Number]:
        key = (float(s), p.tobytes(), q.tobytes(), *tokens)
        if key not in known:
            known[key] = layer(s, p, q, tokens)
        return known[key]

    return of


def measured() -> dict[str, Verifier]:
    """What is measured, by name: the rows of VERIFIERS, the best rule, rules with merged twins."""
    best = partial(optimal.layer, INDEPENDENT)
    found: dict[str, Verifier] = dict(VERIFIERS)
    for name, conditional in (("optimal", False), ("optimal_conditional", True)):
        found[name] = Composed(INDEPENDENT, best, conditional)
    for name, verifier in list(found.items()):
        if isinstance(verifier, Composed) and verifier.DRAFTING == INDEPENDENT:
            found[f"{name}_merged"] = replace(verifier, merged=True)
    return found


def _fresh(verifier: Verifier) -> Verifier:
    if isinstance(verifier, Composed):
        return replace(verifier, layer=_remembered(verifier.layer))
    return verifier


def accepted(
    name: str, verifiers: Mapping[str, Verifier], target: NextLaw, draft: NextLaw
) -> dict[str, float]:
    """Expected accepted tokens of verifiers of one draft law, the next token not counted."""
    (drafting,) = {verifier.DRAFTING for verifier in verifiers.values()}
    means = dict.fromkeys(verifiers, 0.0)
    fresh = {key: _fresh(verifier) for key, verifier in verifiers.items()}
    for tree, chance in drafted_trees(drafting, SHAPES[name].topology, draft):
        rows = tree_laws(tree, target, draft)
        for key, verifier in fresh.items():
            means[key] += float(chance * verifier.stop_law(tree, *rows).expected_accepted)
    return means


def optima(say: Callable[[str], None]) -> dict[str, Any]:
    """All toys' numbers of accepted tokens, the next token not counted."""
    rows, verifiers = [], measured()
    start = time.monotonic()
    for place, (name, shape) in enumerate(SHAPES.items(), 1):
        laws: dict[str, dict[str, Verifier]] = {}
        for key, verifier in verifiers.items():
            if shape.arity <= (max_arity(key) or shape.arity):
                laws.setdefault(verifier.DRAFTING, {})[key] = verifier
        for number in range(TOYS):
            target, draft = toy(name, number)
            means: dict[str, float] = {}
            best: dict[str, float] = {}
            for drafting, own in laws.items():
                means |= accepted(name, own, target, draft)
                best[drafting] = tree_optimum(drafting, shape.topology, target, draft)
            numbers = {"accepted": _rounded(means), "optimum": _rounded(best)}
            rows.append({"topology": name, "toy": number, "kind": kind_of(number), **numbers})
        say(f"{name}: tree {place} of {len(SHAPES)}, {time.monotonic() - start:.0f} s")
    return {
        "command": "python -m reference.toy_optima",
        "seed": SEED,
        "topologies": {
            name: {"parents": shape.parents, "vocab": shape.vocab} for name, shape in SHAPES.items()
        },
        "drafting": {name: verifier.DRAFTING for name, verifier in verifiers.items()},
        "rows": rows,
    }


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(number, DIGITS) for name, number in numbers.items()}


def written(content: dict[str, Any]) -> str:
    """The content as JSON, a row a line."""
    head = {key: value for key, value in content.items() if key != "rows"}
    rows = ",\n  ".join(map(json.dumps, content["rows"]))
    return json.dumps({**head, "rows": []}, indent=1).replace("[]", f"[\n  {rows}\n ]") + "\n"


def main(arguments: list[str]) -> None:
    """Write the optima to the file that is named, or to the screen."""
    text = written(optima(partial(print, file=sys.stderr, flush=True)))
    write_or_show(text, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
