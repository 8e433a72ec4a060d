"""What the best lossless verifier could reach, as linear programmes (scipy's HiGHS).

- `layer_optimum`: Theorem 5. Among all locally lossless allocations of one layer, for one draft
  law and scale, the largest accepted mass; Eq. 10 is its closed form for `top_residual`.
- `tree_optimum`: over whole trees, the largest expected number of accepted draft tokens of any
  lossless verifier for one draft law. UniVer reaches it on chains, not on every tree (SPEC 7).

Both work in floating point: HiGHS is exact to about 1e-9.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog
from scipy.sparse import coo_array

from reference.decision import TopologyLike
from reference.drafting import children_law
from reference.enumeration import NextLaw, Prefix, drafted_trees, node_path

# Feasibility tolerances of HiGHS; its default, 1e-7, is as coarse as what is compared with it.
OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


class _Programme:
    """Maximise a linear form over x >= 0 under equations, built entry by entry."""

    def __init__(self) -> None:
        self.gains: list[float] = []
        self.rows: dict[object, int] = {}
        self.entries: list[tuple[int, int, float]] = []
        self.bounds: list[float] = []

    def variable(self, gain: float, terms: Iterable[tuple[object, float]]) -> None:
        """Add one variable with its gain and its coefficients in named equations."""
        column = len(self.gains)
        self.gains.append(gain)
        self.entries += [(self.row(name), column, factor) for name, factor in terms]

    def row(self, name: object, value: float = 0.0) -> int:
        """The equation of this name, with its right-hand side when it is first named."""
        if name not in self.rows:
            self.rows[name] = len(self.bounds)
            self.bounds.append(value)
        return self.rows[name]

    def maximum(self) -> float:
        row, column, factor = zip(*self.entries, strict=True)
        matrix = coo_array((factor, (row, column)), shape=(len(self.bounds), len(self.gains)))
        gains = -np.array(self.gains)
        result = linprog(gains, A_eq=matrix, b_eq=self.bounds, method="highs", options=OPTIONS)
        if result.status != 0:
            raise ArithmeticError(f"the linear programme was not solved: {result.message}")
        return -float(result.fun)


def layer_optimum(
    drafting: str, scale: float, target: ArrayLike, draft: ArrayLike, arity: int
) -> float:
    """Largest expected accepted mass of a locally lossless layer, over all rules (Theorem 5)."""
    p = np.asarray(target, dtype=np.float64)
    programme = _Programme()
    for token, prob in enumerate(p):
        programme.row(("lossless", token), float(scale) * prob)
    # A variable is a mass times its outcome's probability: HiGHS drops coefficients below 1e-9.
    for outcome, (children, chance) in enumerate(children_law(drafting, draft, arity)):
        programme.row(("whole", outcome), float(chance))
        programme.variable(0.0, [(("whole", outcome), 1.0)])  # rejection mass
        for token in range(len(p)):
            # the token's mass: accepted if it is a child, residual otherwise
            gain = float(token in children)
            programme.variable(gain, [(("whole", outcome), 1.0), (("lossless", token), 1.0)])
    return programme.maximum()


def tree_optimum(drafting: str, topology: TopologyLike, target: NextLaw, draft: NextLaw) -> float:
    """Largest expected number of accepted draft tokens of any lossless verifier (SPEC 6).

    Variables: the mass stopping at each prefix of each tree; at each prefix, the mass emitting each
    next token there. Equations: a tree's mass is its probability; what stops at a prefix emits one
    token; what passes a prefix and goes beyond it follows the target's law.
    """
    programme = _Programme()
    # Trees with the same prefixes offer the same choices: they count as one.
    chances: dict[frozenset[Prefix], float] = defaultdict(float)
    for tree, chance in drafted_trees(drafting, topology, draft):
        nodes = (v for v in range(topology.num_nodes) if tree.tokens[v] >= 0)
        chances[frozenset(node_path(tree, v) for v in nodes)] += float(chance)
    stopping: dict[Prefix, list[tuple[int, float]]] = defaultdict(list)
    for number, (prefixes, chance) in enumerate(chances.items()):
        programme.row(("tree", number), chance)
        for prefix in sorted(prefixes):
            stopping[prefix].append((number, float(len(prefix))))
    laws = {prefix: np.asarray(target(prefix), dtype=np.float64) for prefix in stopping}

    def passing(tokens: tuple[int, ...]) -> Iterable[tuple[object, float]]:
        """Coefficients of a unit of output `tokens` in the lossless equations of its prefixes.

        Equation (s, t): mass beginning with (s, t) - M_b(t given s) x mass going beyond s = 0. The
        one of the most probable t follows from the others; without it, dropping a coefficient
        below 1e-9 cannot make the equations contradict each other.
        """
        for length in range(len(tokens)):
            prefix, following = tokens[:length], tokens[length]
            for token, prob in enumerate(laws[prefix]):
                if token != laws[prefix].argmax():
                    yield ("lossless", prefix, token), float(token == following) - prob

    for prefix, stops in stopping.items():
        for number, gain in stops:
            programme.variable(gain, [(("tree", number), 1.0), (("stop", prefix), 1.0)])
        for token in range(len(laws[prefix])):
            terms = [(("stop", prefix), -1.0), *passing((*prefix, token))]
            programme.variable(0.0, terms)
    return programme.maximum()
