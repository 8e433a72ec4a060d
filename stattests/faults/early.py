"""Faults that only drafts which stop early show."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from stattests.adapters.flat_batch import FlatBatch
from stattests.faults.specimen import Fault
from stattests.faults.strangers import Around
from stattests.planting import Patch
from univer import DraftTree, VerifyOutput, verify
from univer.sampling import inverse_cdf

_join = partial(Patch, "univer.composition")

SHORT_CHAIN, SHORT_TREE = ("sharp", "chain:2/early", 4), ("sharp", "2x1/early", 4)
STILL_ASKED = "residual_mass = torch.where(drafted, residual_mass, whole)"
STILL_DRAWN = "torch.where((children >= 0).any(-1, keepdim=True), recovered, weights)"
# Rules are asked, and drawn from, where nothing was drafted, as if all children had failed.
JUDGED = (
    _join(STILL_ASKED, "residual_mass = residual_mass * 1"),
    _join(STILL_DRAWN, "torch.where((arities == arity)[:, None], recovered, weights)"),
)


def equal_lengths(
    draft_tokens: Tensor, num_drafts: Tensor, draft_probs: Tensor, target_probs: Tensor
) -> Tensor:
    """Leviathan et al. on flat arrays whose rows are found as if all drafts had one length."""
    longest, emitted = int(num_drafts.max()), []
    for request, drafts in enumerate(draft_tokens.split(num_drafts.tolist())):
        text = list[int]()
        for i in range(len(drafts) + 1):
            weights = target_probs[(request * (longest + 1) + i) % len(target_probs)]
            if i < len(drafts):
                q = draft_probs[(request * longest + i) % len(draft_probs)]
                if torch.rand((), dtype=torch.float64) * q[drafts[i]] < weights[drafts[i]]:
                    text.append(int(drafts[i]))
                    continue
                left = (weights - q).clamp(min=0)
                weights = left if left.sum() > 0 else weights
            text.append(int(torch.multinomial(weights, 1)[0]))
            break
        emitted.append(text + [-1] * (longest + 1 - len(text)))
    return torch.tensor(emitted)


class Full(Around):
    """Takes every slot for filled."""

    chains_only = True

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> Any:
        """The base's answer.

        Raises:
            IndexError: a slot is empty.
        """
        if (tree.tokens < 0).any():
            raise IndexError("a draft is shorter than the others")
        return super().verify(tree, target_probs, draft_probs, uniforms=uniforms)


class LoneDraft(Around):
    """Takes the token after a lone rejected draft from the target."""

    chains_only = True

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Any
    ) -> VerifyOutput:
        """The base's answer but there, on chains that could have been longer."""
        out = verify(self.base, tree, target_probs, draft_probs, uniforms=uniforms)
        alone = (tree.tokens[:, 1:] >= 0).sum(1) == 1
        wrong = alone & (out.num_accepted == 0) & (tree.topology.depth > 1)
        other = inverse_cdf(target_probs[:, 0].contiguous(), uniforms[:, -1])
        token = torch.where(wrong, other, out.next_token)
        tokens = out.tokens.scatter(1, out.num_accepted[:, None], token[:, None])
        return VerifyOutput(out.accepted_nodes, out.num_accepted, token, tokens)


EARLY_FAULTS = (
    Fault("short-chain-rejected", "J1 H4", "Where a chain ends early a rejection is assumed.",
          "token_verification", JUDGED, shows_on=SHORT_CHAIN),
    Fault("short-block-rejected", "J1 H4", "The same, with the acceptance of the block.",
          "block_verification", JUDGED, shows_on=SHORT_CHAIN),
    Fault("no-pair-rejected", "J1 H4", "Where no pair was drawn one is taken for rejected.",
          "spechub", JUDGED, shows_on=SHORT_TREE),
    Fault("no-pair-rejected-below", "J1 H4", "The same, with the acceptance of the prefix.",
          "spechub_conditional", JUDGED, shows_on=SHORT_TREE),
    Fault("counts-slots", "J1 H4", "k-SEQ's divisor is that of all slots, drawn or not.", "k_seq",
          (Patch("univer.rules.k_seq", "drawn.sum(1)", "torch.full_like(scale, children.shape[1])"
                 ".long()"),), shows_on=SHORT_TREE),
    Fault("offsets-of-equal-lengths", "C9 J3", "Flat arrays are read as if drafts had one length.",
          "token_verification", make=partial(FlatBatch, equal_lengths), shows_on=SHORT_CHAIN),
    Fault("asserts-full-chains", "J6", "It raises where a draft is shorter than the others.",
          "token_verification", make=partial(Full, "token_verification"), kind="contract",
          shows_on=SHORT_CHAIN),
    Fault("lone-draft-recovers-from-target", "M28 C2",
          "The token after a lone rejected draft is drawn from the target.", "token_verification",
          make=partial(LoneDraft, "token_verification"), shows_on=SHORT_CHAIN),
)  # fmt: skip
