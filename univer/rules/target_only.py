"""The target-only walk (SGLang, TensorRT-LLM): a token of the target's own, and is it a child?

A child has the mass that the target gives it; how it was drafted plays no part, so that the rule
is lossless for every draft law, and the best for children that are fixed (SPEC 4, no sampled
child). Of twins, the first has the mass. It is linear in the scale: local and conditional
composition give the same law.
"""

from __future__ import annotations

import torch
from torch import Tensor

from univer.rows import at, without
from univer.rules import Allocated


def target_only(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """Any children."""
    del draft
    left, accepted = scale[:, None] * target, []
    for x in children.T[..., None]:
        accepted.append(at(left, x))
        left = without(left, x)
    return Allocated(torch.cat(accepted, 1), left, 1 - scale)
