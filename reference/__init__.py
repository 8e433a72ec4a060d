"""The oracle: each verifier as its own paper states it, in NumPy, one tree at a time.

Everything runs on float64 arrays and, unchanged, on object arrays of `fractions.Fraction`. This
package imports neither torch nor univer: it is an independent witness, written to be read beside
the papers and slow on purpose.
"""

from reference import drafting, enumeration, greedy, rrsw, traversal, univer
from reference.decision import StopLaw, Topology, Tree, VerifyOutput

VERIFIERS = {"rrsw": rrsw, "traversal": traversal, "greedy": greedy, "univer": univer}

__all__ = [
    "VERIFIERS",
    "StopLaw",
    "Topology",
    "Tree",
    "VerifyOutput",
    "drafting",
    "enumeration",
    "greedy",
    "rrsw",
    "traversal",
    "univer",
]
