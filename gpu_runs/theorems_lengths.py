"""Theorem 6 and Lemma 1 on real trees: exact lengths given the tree, paired on the same tree.

Both statements are about averages over trees, so they are shown with a lower confidence bound of
the paired mean, errors clustered by prompt. On trees of one layer both verifiers are one rule, and
their lengths are compared tree by tree.

Letters: N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.stats import t as student

from gpu_runs.paired import clustered_mean
from gpu_runs.theorems_findings import Finding, at_most
from univer import DraftTree, Topology, stop_law
from univer.decoding import Drawn

CONFIDENCE = 0.999  # of each one-sided bound
# Gains are skewed, a few large ones and many small losses: fewer prompts have no usable mean.
FEWEST_PROMPTS = 20
SCALES = (0.2, 0.5, 0.8)  # of the root, in Lemma 1
ONE_LAYER_LIMIT = 1e-12  # rounding of a length, a sum of some numbers of at most 1


def scaled_length(drawn: Drawn, scale: float) -> float:
    """E[N_Mod] given the tree: UniVer that keeps the root with probability `scale`, else nothing.

    The tree is hung below a new root whose only child it is, with laws that make UniVer accept that
    child with just this probability: all draft mass on it, target mass `scale`.
    """
    topology, tokens = drawn.tree.topology, drawn.tree.tokens
    child = int(tokens[0, 0])
    other = 0 if child else 1
    hung = Topology.from_parents([-1, 0, *(parent + 1 for parent in topology.parents[1:])])
    target, draft = drawn.target_probs, drawn.draft_probs
    at_root = torch.zeros(2, target.shape[-1], dtype=target.dtype, device=target.device)
    at_root[0, [child, other]] = at_root.new_tensor([scale, 1 - scale])
    at_root[1, child] = 1
    law = stop_law(
        "univer",
        DraftTree(hung, torch.cat([tokens[:, :1], tokens], 1)),
        torch.cat([at_root[None, :1], target], 1),
        torch.cat([at_root[None, 1:], draft], 1),
    )
    kept = law.stop_probs[0, 1:]
    return float((kept * kept.new_tensor(topology.depths)).sum())


def first_layer(drawn: Drawn) -> Drawn:
    """The root and its children alone."""
    slots = drawn.tree.topology.children(0)
    rows = [0, *slots]
    shape = Topology.from_parents([-1] + [0] * len(slots))
    tree = DraftTree(shape, drawn.tree.tokens[:, rows])
    return replace(
        drawn,
        tree=tree,
        target_logits=drawn.target_logits[:, rows],
        draft_logits=drawn.draft_logits[:, :1],
        draft_probs=drawn.draft_probs[:, :1],
    )


def lower_bound(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float, float]:
    """Mean, its standard error clustered by prompt, and the lower bound of CONFIDENCE.

    The bound is Student's, with one degree of freedom less than there are prompts; -inf if these
    are fewer than FEWEST_PROMPTS.

    Example:
        >>> lower_bound([1.0, 1.0], ["a", "b"])
        (1.0, 0.0, -inf)
    """
    mean, error = clustered_mean(values, clusters)
    prompts = len(set(clusters))
    if prompts < FEWEST_PROMPTS:
        return mean, error, float("-inf")
    return mean, error, mean - float(student.ppf(CONFIDENCE, prompts - 1)) * error


@dataclass
class LengthReport:
    """Expected accepted tokens by tree, in the order of `prompts`; scaled by root scale."""

    topology: str
    prompts: list[str] = field(default_factory=list)
    univer: list[float] = field(default_factory=list)
    greedy: list[float] = field(default_factory=list)
    scaled: dict[float, list[float]] = field(default_factory=dict)
    one_layer: float = 0.0

    def add(self, prompt_id: str, drawn: Drawn) -> None:
        """Judge one `top_residual` tree."""

        def length(name: str, tree: Drawn) -> float:
            law = stop_law(name, tree.tree, tree.target_probs, tree.draft_probs)
            return law.expected_accepted.item()

        self.prompts.append(prompt_id)
        self.univer.append(length("univer", drawn))
        self.greedy.append(length("greedy", drawn))
        for scale in SCALES:
            self.scaled.setdefault(scale, []).append(scaled_length(drawn, scale))
        root = first_layer(drawn)
        off = abs(length("univer", root) - length("greedy", root))
        self.one_layer = max(self.one_layer, off)

    def findings(self) -> list[Finding]:
        """Theorem 6 and Lemma 1, for each root scale."""
        trees = len(self.prompts)
        rows = [
            at_most(
                f"Theorem 6, first layers of {self.topology}: UniVer = Greedy, tree by tree",
                "largest difference",
                self.one_layer,
                ONE_LAYER_LIMIT,
                trees,
                "trees",
            )
        ]
        claims = {"Theorem 6, {}: E[N_UniVer] >= E[N_Greedy]": (self.univer, 1.0)} | {
            f"Lemma 1, {{}}, s = {scale:g}: E[N_Mod] >= s E[N_Greedy]": (lengths, scale)
            for scale, lengths in self.scaled.items()
        }
        for claim, (ours, scale) in claims.items():
            theirs = [scale * length for length in self.greedy]
            rows.append(paired_finding(claim.format(self.topology), ours, theirs, self.prompts))
        return rows


def paired_finding(
    claim: str, ours: Sequence[float], theirs: Sequence[float], prompts: Sequence[str]
) -> Finding:
    """That `ours` are not shorter than `theirs` on average, tree by tree on the same trees."""
    gains = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    mean, error, lower = lower_bound(gains, prompts)
    return Finding(
        claim,
        f"{mean:+.4f} +- {error:.4f} tokens a cycle, bound {lower:+.4f}",
        f"lower {CONFIDENCE:.1%} bound >= 0",
        lower,
        len(gains),
        f"trees of {len(set(prompts))} prompts",
        lower >= -ONE_LAYER_LIMIT,
        undecided=2 * mean - lower >= 0,  # the upper bound; nan is not
    )


def length_findings(reports: Mapping[str, LengthReport]) -> list[Finding]:
    """Those of all topologies."""
    return [row for report in reports.values() for row in report.findings()]
