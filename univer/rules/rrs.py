"""Recursive rejection of independent drafts (SpecInfer, Miao et al. 2024).

As `univer.rules.rrsw`, but every child is compared with the whole draft law q: children are drawn
with replacement, so that a rejected token may come again (and has no mass left then).
"""

from __future__ import annotations

from functools import partial

from univer.rules.rrsw import recursive_rejection

independent_rejection = partial(recursive_rejection, replacement=True)
