"""`verify_logits`: verification from logits, and the choice of how.

| path | where | what it reads |
|---|---|---|
| `univer.fused` | a GPU with Triton, rule `ot` | the rows of all inner nodes, in a few kernels |
| `univer.one_tree` | a CPU, large rows | a node's rows when needed |
| `by_level` | anything else | the rows of all inner nodes, in float64 like `verify` |

Letters: B trees, N nodes, I internal nodes, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer import fused, one_tree
from univer.drafting import DraftTree
from univer.filters import Filters
from univer.sampling import take_uniforms
from univer.tree_rows import (
    Laws,
    check_inner_logits,
    check_shapes,
    check_stop_logits,
    check_whole,
    renormalise,
)
from univer.verifiers import Verifier, VerifyOutput, decide_by_level, emit, resolve

LARGE = 4096  # tokens of a vocabulary whose rows are worth being read one by one


def _one_by_one(target_logits: Tensor, draft_logits: Tensor) -> bool:
    """Whether `verify_logits` goes tree by tree or level by level; never by the batch's size.

    A core saves most by reading few rows; small ones are better read together. float64 stays
    float64, which is what levels are worked on in.
    """
    return (
        target_logits.device.type == "cpu"
        and target_logits.shape[-1] >= LARGE
        and torch.float64 not in (target_logits.dtype, getattr(draft_logits, "dtype", None))
    )


def _laws(logits: Tensor, filters: Filters) -> Laws:
    """In the dtype that children are drawn in; float32 sums are off and are taken once more."""

    def law(rows: Tensor) -> Tensor:
        probs = filters(rows)
        return probs if probs.dtype == torch.float64 else renormalise(probs)

    return Laws(logits, law)


def by_level(
    verifier: Verifier,
    tree: DraftTree,
    target_logits: Tensor,
    draft_logits: Tensor,
    filters: Filters,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Where each cycle stops and the token that follows, int64 [B] both: level after level."""
    check_inner_logits(tree, target_logits, draft_logits)
    target, draft = (_laws(logits, filters) for logits in (target_logits, draft_logits))
    stop, next_token = decide_by_level(verifier, tree, target, draft, uniforms)
    check_stop_logits(target_logits, stop)
    return stop, next_token


@torch.no_grad()
def verify_logits(
    verifier: str | Verifier,
    tree: DraftTree,
    target_logits: Tensor,
    draft_logits: Tensor,
    *,
    temperature: float = 1.0,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> VerifyOutput:
    """`verify` of the laws `Filters(temperature)(logits)`, without one for a leaf not stopped at.

    Its thresholds are those of `verify` within float32's rounding; for float64 logits and small
    vocabularies, to that of float64. Draw the children from those very laws (`draft_children`).

    Args:
        verifier: a name in VERIFIERS or a Verifier.
        tree: as in `verify`.
        target_logits: [B, N, V], float16 to float64; -inf for tokens that cannot come.
        draft_logits: [B, I, V].
        temperature: shapes both laws; at 0 both are one-hot on their largest logit.
        uniforms: as in `verify`.
        generator: as in `verify`.

    Returns:
        VerifyOutput, as `verify` with the laws softmax(logits / temperature).

    Raises:
        InputError: as in `verify`; of the logits, only rows that are read are looked at.

    Example:
        >>> from univer import DraftTree, Topology
        >>> tree = DraftTree(Topology.parse("chain:1"), torch.tensor([[0, 1]]))
        >>> logits = torch.tensor([[[0.0, 2.0, 0.0], [3.0, 0.0, 0.0]]])
        >>> uniforms = torch.full((1, 3), 0.5, dtype=torch.float64)
        >>> verify_logits("univer", tree, logits, logits[:, :1], uniforms=uniforms).tokens
        tensor([[1, 0]])
    """
    filters = Filters(temperature)
    verifier = resolve(verifier)
    if fused.applies(verifier, tree, target_logits, draft_logits, temperature):
        output = fused.verify_logits_fused(
            verifier,
            tree,
            target_logits,
            draft_logits,
            temperature=temperature,
            uniforms=uniforms,
            generator=generator,
        )
        if output is not None:
            return output
    check_shapes(verifier, tree, target_logits, draft_logits, "logits")
    if tree.topology.internal:
        check_whole(verifier, tree, _laws(draft_logits, filters))
    batch, nodes = tree.tokens.shape
    uniforms = take_uniforms(uniforms, generator, (batch, nodes + 1), tree.tokens.device)
    large = not filters.greedy and _one_by_one(target_logits, draft_logits)
    decide = one_tree.by_tree if large else by_level
    return emit(tree, *decide(verifier, tree, target_logits, draft_logits, filters, uniforms))
