"""Drafters by the names that commands take: the shipped head, another one, layer skip, a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gpu_runs.loading import head_folder, load_head
from gpu_runs.models import EMBEDDED, LoadedModel, Report, check_same_tokenizer, load_model
from univer import InputError
from univer.drafters.layer_skip import layer_skip

SHIPPED, REDUCED = "shipped", "reduced"
HEAD = Path(__file__).parent / "heads" / "smollm2"
FREQUENT = HEAD / "frequent_8192.json"
DRAFTER_HELP = (
    "shipped (the EAGLE head for smollm2), reduced (the same over its 8,192 most frequent tokens),"
    " eagle:FOLDER, skip:K (the target's first and last K layers), or a model like the target."
)


def load_pair(
    model: str, drafter: str, device: torch.device, console: Console
) -> tuple[LoadedModel, Any]:
    """The target, and what drafts for it: an EagleHead or a causal LM."""

    def report(line: str) -> None:
        console.print(f"{line} ...", highlight=False, soft_wrap=True)

    check_drafter(drafter)
    target = load_model(model, device=device, report=report)
    return target, load_drafter(drafter, target, report)


def check_drafter(drafter: str) -> None:
    """Refuse a drafter that cannot be, before anything is loaded.

    Raises:
        InputError: skip:K without a number.
    """
    keep = drafter.removeprefix("skip:")
    if keep != drafter and not keep.isdecimal():
        raise InputError(f"drafter: {drafter!r} is unknown; expected skip:K.")


def load_drafter(drafter: str, target: LoadedModel, report: Report) -> Any:
    """What drafts for this target: an EagleHead or a causal LM.

    Raises:
        InputError: a shipped head for another target, or what cannot be loaded or does not fit.
    """
    if drafter in (SHIPPED, REDUCED) and target.name != EMBEDDED:
        raise InputError(
            f"drafter: the shipped head is for {EMBEDDED}, not for {target.name!r}; give skip:K,"
            " eagle:FOLDER or a model."
        )
    keep, head = drafter.removeprefix("skip:"), drafter.removeprefix("eagle:")
    if drafter in (SHIPPED, REDUCED) or head != drafter:
        folder = head_folder(head) if head != drafter else HEAD
        return load_head(folder, target.model, str(FREQUENT) if drafter == REDUCED else "")
    if keep != drafter:
        return layer_skip(target.model, int(keep))
    device = target.model.device
    draft = load_model(drafter, argument="drafter", device=device, report=report)
    check_same_tokenizer(target, draft)
    return draft.model
