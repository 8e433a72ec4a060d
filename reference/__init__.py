"""The oracle: each verifier as its own paper states it, in NumPy, one tree at a time.

Everything runs on float64 arrays and, unchanged, on object arrays of `fractions.Fraction`. This
package imports neither torch nor univer: it is an independent witness, written to be read beside
the papers and slow on purpose.
"""

from reference import (
    block_verification,
    drafting,
    dynamic_tree,
    enumeration,
    greedy,
    k_seq,
    optimal,
    rrs,
    rrsw,
    spechub,
    target_only,
    token_verification,
    traversal,
    univer,
)
from reference.composed import Composed
from reference.decision import StopLaw, Topology, Tree, Verifier, VerifyOutput

# Rules that are published for one layer, in both compositions.
LAYERS = {"rrs": rrs, "k_seq": k_seq, "spechub": spechub, "target_only": target_only}
VERIFIERS: dict[str, Verifier] = {
    "rrsw": rrsw,
    "traversal": traversal,
    "greedy": greedy,
    "univer": univer,
    "token_verification": token_verification,
    "block_verification": block_verification,
    **{name: Composed(rule.DRAFTING, rule.layer, False) for name, rule in LAYERS.items()},
    **{
        f"{name}_conditional": Composed(rule.DRAFTING, rule.layer, True)
        for name, rule in LAYERS.items()
    },
}

__all__ = [
    "LAYERS",
    "VERIFIERS",
    "StopLaw",
    "Topology",
    "Tree",
    "VerifyOutput",
    "block_verification",
    "drafting",
    "dynamic_tree",
    "enumeration",
    "greedy",
    "k_seq",
    "optimal",
    "rrs",
    "rrsw",
    "spechub",
    "target_only",
    "token_verification",
    "traversal",
    "univer",
]
