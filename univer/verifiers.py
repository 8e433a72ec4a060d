"""The grid of verifiers: draft law x allocation x composition, and what one does with a tree.

|  | local | conditional |
|---|---|---|
| `rrsw` rule, `without_replacement` | `rrsw` (EAGLE) | `traversal` (Weng et al. 2025) |
| `ot` rule, `top_residual` | `greedy` (Hu et al. 2025) | `univer` |
| `rrs` rule, `with_replacement` | `rrs` (SpecInfer) | `rrs_conditional` |
| `k_seq` rule, `with_replacement` | `k_seq` (SpecTr) | `k_seq_conditional` |
| `spechub` rule, `spechub_pairs` | `spechub` | `spechub_conditional` |
| `single_draft` rule, chains | `token_verification` (Leviathan et al.) | `block_verification` |
| `target_only` rule, `top` | `target_only` (EAGLE-2's trees) | the same law |

A verifier takes a drafted tree, the target's law after every node and the draft law at every
internal node, and says how far the tree is kept and which token follows. Averaged over trees drawn
with its draft law, the text follows the target's law exactly (Theorem 4).

Letters: B trees, N nodes, I internal nodes, V vocabulary, D depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from univer.allocation import ALLOCATION
from univer.composition import (
    COMPOSITION,
    Judged,
    allocate_layer,
    drafted_nodes,
    judge,
    next_token_weights,
    present_nodes,
)
from univer.draft_laws import DRAFTING
from univer.drafting import DraftTree
from univer.errors import InputError, check_choice, check_prob_rows, node_in_tree
from univer.indices import columns, indices
from univer.rows import total
from univer.rules import Rule
from univer.sampling import inverse_cdf, take_uniforms
from univer.topology import Topology
from univer.tree_rows import Laws, check_shapes, check_whole, renormalise


@dataclass(frozen=True)
class Verifier:
    """One cell of the grid, by the names of its three parts.

    Args:
        drafting: a name in DRAFTING, the law that the tree was drawn with.
        allocation: a name in ALLOCATION; it must be lossless for that draft law.
        composition: a name in COMPOSITION.

    Raises:
        InputError: an unknown name, or an allocation that is lossy for this draft law.

    Example:
        >>> Verifier("top_residual", "ot", "conditional") == VERIFIERS["univer"]
        True
    """

    drafting: str
    allocation: str
    composition: str

    def __post_init__(self) -> None:
        check_choice("drafting", self.drafting, DRAFTING)
        check_choice("allocation", self.allocation, ALLOCATION)
        check_choice("composition", self.composition, COMPOSITION)
        allowed = ALLOCATION[self.allocation].drafting
        if self.drafting not in allowed:
            raise InputError(
                f"allocation: {self.allocation!r} is not lossless for trees drafted by"
                f" {self.drafting!r}; it is for {', '.join(allowed)}."
            )

    @property
    def allocate(self) -> Rule:
        """The rule of one layer."""
        row = ALLOCATION[self.allocation]
        if row.by_outcomes:
            return partial(row.allocate, outcomes=DRAFTING[self.drafting].outcomes)
        return row.allocate

    @property
    def max_arity(self) -> int | None:
        """Most children of a node that it takes; None for any number."""
        limits = (DRAFTING[self.drafting].max_arity, ALLOCATION[self.allocation].max_arity)
        return min((most for most in limits if most is not None), default=None)


VERIFIERS = {
    "rrsw": Verifier("without_replacement", "rrsw", "local"),
    "traversal": Verifier("without_replacement", "rrsw", "conditional"),
    "greedy": Verifier("top_residual", "ot", "local"),
    "univer": Verifier("top_residual", "ot", "conditional"),
    "rrs": Verifier("with_replacement", "rrs", "local"),
    "rrs_conditional": Verifier("with_replacement", "rrs", "conditional"),
    "k_seq": Verifier("with_replacement", "k_seq", "local"),
    "k_seq_conditional": Verifier("with_replacement", "k_seq", "conditional"),
    "spechub": Verifier("spechub_pairs", "spechub", "local"),
    "spechub_conditional": Verifier("spechub_pairs", "spechub", "conditional"),
    "token_verification": Verifier("without_replacement", "single_draft", "local"),
    "block_verification": Verifier("without_replacement", "single_draft", "conditional"),
    "target_only": Verifier("top", "target_only", "local"),
}

PAPER = ("rrsw", "traversal", "greedy", "univer")  # what runs and tables compare if not told


@dataclass(frozen=True, eq=False)
class VerifyOutput:
    """The decision for each tree.

    accepted_nodes: int64 [B, D], node ids from the root's child down, -1 padded.
    num_accepted: int64 [B]; the acceptance length of the cycle is num_accepted + 1.
    next_token: int64 [B], the bonus token after a leaf, else the recovered token.
    tokens: int64 [B, D + 1], the emitted tokens: accepted ones, then the next token, -1 padded.
    """

    accepted_nodes: Tensor
    num_accepted: Tensor
    next_token: Tensor
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class StopLaw:
    """The exact law of the decision given each tree: nothing needs to be sampled.

    stop_probs: float64 [B, N], the probability that the cycle stops at each node.
    next_token_probs(): float64 [B, N, V], the next token's law given that it stops there; a zero
        row where it cannot. It reads the target's rows when it is called, not before.
    expected_accepted: float64 [B], expected number of accepted draft tokens.
    """

    stop_probs: Tensor
    next_token_probs: Callable[[], Tensor]
    expected_accepted: Tensor


def resolve(verifier: str | Verifier) -> Verifier:
    """The Verifier of this name, or the Verifier itself."""
    if isinstance(verifier, Verifier):
        return verifier
    check_choice("verifier", verifier, VERIFIERS)
    return VERIFIERS[verifier]


def _check_probs(
    verifier: str | Verifier, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor
) -> tuple[Verifier, Laws, Laws]:
    """Check the input of `verify` and `stop_law`; return the rule and its laws."""
    verifier = resolve(verifier)
    check_shapes(verifier, tree, target_probs, draft_probs, "probs")
    topology, tokens = tree.topology, tree.tokens
    everywhere = node_in_tree(range(topology.num_nodes))
    check_prob_rows("target_probs", target_probs, present_nodes(tokens), everywhere)
    # The draft's rows are not renormalised: the rules do so with what is left of them.
    draft = Laws(draft_probs, lambda rows: rows.double().contiguous())
    if topology.internal:
        drafted = drafted_nodes(topology, tokens)
        check_prob_rows("draft_probs", draft_probs, drafted, node_in_tree(topology.internal))
        check_whole(verifier, tree, draft)
    return verifier, Laws(target_probs, renormalise), draft


def _judge(
    verifier: Verifier, topology: Topology, tokens: Tensor, target: Laws, draft: Laws
) -> Judged:
    return judge(
        topology,
        tokens,
        verifier.allocate,
        COMPOSITION[verifier.composition].conditional,
        target,
        draft,
        max(1, _rows_together(target.rows) // max(1, len(tokens))),
    )


def _rows_together(rows: Tensor) -> int:
    """How many rows of a vocabulary are worked on at once, in float64: 1 MB on a CPU."""
    return max(1, (2**17 if rows.device.type == "cpu" else 2**24) // rows.shape[-1])


def decide_by_level(
    verifier: Verifier, tree: DraftTree, target: Laws, draft: Laws, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Where each cycle stops and the token that follows, int64 [B] both: level by level."""
    topology, decisions = tree.topology, []
    draft = draft if topology.internal else target  # never read: without drafts it may be anything
    widest = max((len(layer.nodes) for layer in topology.layers), default=1)
    step = max(1, _rows_together(target.rows) // widest)
    for start in range(0, len(tree.tokens), step):
        trees = slice(start, start + step)
        tokens, eta, p, q = tree.tokens[trees], uniforms[trees], target[trees], draft[trees]
        judged = _judge(verifier, topology, tokens, p, q)
        decide = COMPOSITION[verifier.composition].stop_node
        stop = decide(topology, judged.acceptance, eta[:, :-1])
        weights = next_token_weights(
            topology,
            tokens,
            verifier.allocate,
            judged.scale,
            stop,
            p.at(stop),
            q.at,
        )
        token = inverse_cdf(weights, eta[:, -1])
        decisions.append((stop, token))
    if not decisions:
        return uniforms.new_zeros(0, dtype=torch.int64), uniforms.new_zeros(0, dtype=torch.int64)
    return torch.cat([stop for stop, _ in decisions]), torch.cat([x for _, x in decisions])


def emit(tree: DraftTree, stop: Tensor, next_token: Tensor) -> VerifyOutput:
    """The output of cycles that stop at these nodes [B] and go on with these tokens [B]."""
    table = indices(tree.topology, stop.device)
    accepted_nodes, num_accepted = (
        part.index_select(0, stop) for part in (table.paths, table.depths)
    )
    drafted = tree.tokens.gather(1, accepted_nodes.clamp(min=0))
    tokens = torch.where(accepted_nodes >= 0, drafted, -1)
    tokens = torch.cat([tokens, tokens.new_full((len(tokens), 1), -1)], 1)
    tokens = tokens.scatter(1, num_accepted[:, None], next_token[:, None])
    return VerifyOutput(accepted_nodes, num_accepted, next_token, tokens)


@torch.no_grad()
def verify(
    verifier: str | Verifier,
    tree: DraftTree,
    target_probs: Tensor,
    draft_probs: Tensor,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> VerifyOutput:
    """Decide which drafted tokens stay and draw the token that follows them.

    Args:
        verifier: a name in VERIFIERS or a Verifier.
        tree: B drafted trees of one topology, drawn with the verifier's draft law.
        target_probs: [B, N, V], row v the target's law after node v; any floating dtype (the
            numbers are read as they are and renormalised; sums may be off by 1e-4, in half
            precision by the rounding of its type). Rows of absent nodes are not read.
        draft_probs: [B, I, V], the law that each internal node's children were drawn from, in the
            order of topology.internal. Rows of nodes without a child are not read.
        uniforms: float64 in [0, 1), [B, N + 1]; slot v decides node v (entering it for a local
            verifier, accepting it for a conditional one), slot N draws the next token.
        generator: draws the uniforms instead; exactly one of the two is given.

    Returns:
        VerifyOutput: accepted nodes, their number, the next token, the emitted tokens.

    Raises:
        InputError: names the argument and the row that is not as expected (SPEC 10).

    Source: the UniVer paper, Theorem 4; `rrsw` Li et al. 2024, `traversal` Weng et al. 2025,
    `greedy` Hu et al. 2025.

    Example:
        >>> from univer import DraftTree, Topology
        >>> tree = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 1, 2]]))
        >>> target = torch.tensor([[[0.2, 0.5, 0.3]]]).repeat(1, 3, 1)
        >>> draft = torch.tensor([[[0.3, 0.6, 0.1]]])
        >>> uniforms = torch.tensor([[0.5, 0.9, 0.9, 0.1]], dtype=torch.float64)
        >>> verify("univer", tree, target, draft, uniforms=uniforms).tokens
        tensor([[2, 0]])
    """
    verifier, target, draft = _check_probs(verifier, tree, target_probs, draft_probs)
    batch, nodes = tree.tokens.shape
    uniforms = take_uniforms(uniforms, generator, (batch, nodes + 1), tree.tokens.device)
    return emit(tree, *decide_by_level(verifier, tree, target, draft, uniforms))


@torch.no_grad()
def stop_law(
    verifier: str | Verifier, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor
) -> StopLaw:
    """The exact law of (stop node, next token) given each tree, and its expected length.

    Args and errors as in `verify`, without randomness.

    Returns:
        StopLaw: stop_probs [B, N], next_token_probs() [B, N, V], expected_accepted [B].

    Example:
        >>> from univer import DraftTree, Topology
        >>> tree = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 1, 2]]))
        >>> target = torch.tensor([[[0.2, 0.5, 0.3]]], dtype=torch.float64).repeat(1, 3, 1)
        >>> draft = torch.tensor([[[0.3, 0.6, 0.1]]], dtype=torch.float64)
        >>> stop_law("univer", tree, target, draft).expected_accepted
        tensor([1.], dtype=torch.float64)
    """
    verifier, target, draft = _check_probs(verifier, tree, target_probs, draft_probs)
    topology, tokens = tree.topology, tree.tokens
    judged = _judge(verifier, topology, tokens, target, draft)
    stop_probs = COMPOSITION[verifier.composition].stop_probs(topology, judged.acceptance)
    table = indices(topology, stop_probs.device)

    @torch.no_grad()
    def next_token_probs() -> Tensor:
        laws = torch.zeros(*target_probs.shape, dtype=torch.float64, device=stop_probs.device)
        laws[:, table.leaves.ids] = target(table.leaves)
        for layer in table.layers:
            law = target(layer.nodes)
            masses = allocate_layer(layer, tokens, judged.scale, verifier.allocate, law, draft)
            residual = masses.residual.view_as(law)
            mass = total(residual)[..., None]
            drafted = (columns(tokens, layer.slots) >= 0).any(-1, keepdim=True)
            # Rounding may leave a node without residual: then its target law, as in `verify`.
            laws[:, layer.nodes.ids] = torch.where(drafted & (mass > 0), residual / mass, law)
        return torch.where((stop_probs > 0)[..., None], laws, 0.0)

    return StopLaw(stop_probs, next_token_probs, (stop_probs * table.depths).sum(-1))
