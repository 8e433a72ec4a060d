"""One drafted child (Leviathan et al. 2023; at scales below 1 Sun et al. 2025).

At scale 1 the child is kept with min(1, p / q). With the conditional composition the scale is the
acceptance of the block so far, and the rule is Block Verification's: S below is the sum in its h.
"""

from __future__ import annotations

from torch import Tensor

from univer.rows import at, normalise, ratio
from univer.rules import Allocated, share_out


def single_draft(scale: Tensor, target: Tensor, draft: Tensor, children: Tensor) -> Allocated:
    """The only child, drawn from q; where it is absent the target is left whole."""
    scaled, q = scale[:, None] * target, normalise(draft, where=children[:, 0] >= 0)
    accepted = ratio(at(scaled, children), at(q, children)).clamp(max=1)
    surplus = (scaled - q).clamp_(min=0)  # its sum is S
    return share_out(accepted, 1 - accepted[:, 0], surplus, scale)
