"""A run's models and prompts, as its configuration names them, checked to fit one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from huggingface_hub import snapshot_download
from torch import nn

from gpu_runs.configuration import OWN, Config
from gpu_runs.models import LoadedModel, Report, check_same_tokenizer, load_model
from gpu_runs.prompts import Prompt, read_prompts
from gpu_runs.spec_bench import read_spec_bench
from univer import InputError, Topology
from univer.cached_model import CachedModel
from univer.drafters.draft_vocabulary import read_token_ids
from univer.drafters.eagle import EagleHead
from univer.drafters.layer_skip import layer_skip

SAMPLED = 64  # numbers of each weight that a fingerprint reads


@dataclass(frozen=True)
class Pair:
    """The target and what drafts for it: an EagleHead or a causal LM."""

    target: LoadedModel
    drafter: Any

    def fingerprints(self) -> dict[str, int]:
        """A number for each model, which other weights would change."""
        prints = {"target": fingerprint(self.target.model)}
        if not isinstance(self.drafter, EagleHead):
            return prints | {"drafter": fingerprint(self.drafter)}
        drafter, ids = fingerprint(self.drafter.network), self.drafter.draft_vocabulary
        return prints | {"drafter": drafter if ids is None else crc32(repr(ids).encode(), drafter)}


def load_pair(config: Config, device: torch.device, report: Report) -> Pair:
    """The models of a run, on a device.

    Raises:
        InputError: one cannot be loaded, or they do not fit each other.
    """
    where: dict[str, Any] = {"device": device, "dtype": config.dtype, "report": report}
    target = load_model(config.target, argument="target", **where)
    if config.chat_template:
        target.tokenizer.chat_template = config.chat_template
    drafter = config.drafter
    if drafter.kind == "eagle":
        report(f"loading {drafter.model}")
        folder = head_folder(drafter.model)
        return Pair(target, load_head(folder, target.model, drafter.vocabulary))
    if drafter.kind == "layer_skip":
        return Pair(target, layer_skip(target.model, drafter.layers))
    draft = load_model(drafter.model, argument="drafter", **where)
    check_same_tokenizer(target, draft)
    return Pair(target, draft.model)


def load_head(folder: Path, target: Any, vocabulary: str) -> EagleHead:
    """The EAGLE head in a folder, with the draft vocabulary of a file; "": as the folder has it.

    Raises:
        InputError: one of the two cannot be read, or does not fit the target.
    """
    ids = read_token_ids(Path(vocabulary).expanduser()) if vocabulary else None
    return EagleHead.from_pretrained(folder, target, draft_vocabulary=ids)


def head_folder(name: str) -> Path:
    """The folder of an EAGLE head: itself, or a hub id's, downloaded if it is not there yet.

    Raises:
        InputError: no such folder, and the hub has no such id or cannot be reached.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise InputError(f"drafter: there is no folder {name} with an EAGLE head.")
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.bin"]))
    except Exception as error:  # the hub's client raises anything
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"drafter: there is no folder {name} with an EAGLE head, and no such hub id could be"
            f" fetched: {why}."
        ) from error


def load_prompts(questions: str) -> tuple[Prompt, ...]:
    """This project's prompts for "own", else those of a Spec-Bench file.

    Raises:
        InputError: no such file, or none of Spec-Bench's.
    """
    return read_prompts() if questions == OWN else read_spec_bench(Path(questions).expanduser())


def encoded(
    prompts: Sequence[Prompt], target: LoadedModel, max_tokens: int
) -> dict[str, tuple[int, ...]]:
    """Prompt id -> token ids, of long prompts the last ones.

    Raises:
        InputError: the tokenizer fails on a prompt.
    """
    found = {}
    for prompt in prompts:
        try:
            found[prompt.prompt_id] = tuple(prompt.token_ids(target.tokenizer)[-max_tokens:])
        except Exception as error:  # chat templates are programs and may raise anything
            raise InputError(
                f"target: the tokenizer of {target.name!r} cannot encode the prompt"
                f" {prompt.prompt_id}: {error!r}."
            ) from error
    return found


def check_room(config: Config, pair: Pair, prompts: Mapping[str, Sequence[int]]) -> None:
    """Refuse models whose positions are too few for a prompt, its text and a tree behind it.

    Raises:
        InputError: names the model and the numbers.
    """
    deepest = max(Topology.parse(setting.topology).depth for setting in config.settings)
    longest = max(len(ids) for ids in prompts.values())
    needed = longest + config.tokens + deepest
    models = {"target": pair.target.model}
    if not isinstance(pair.drafter, EagleHead):
        models["drafter"] = pair.drafter
    for argument, model in models.items():
        limit = CachedModel(model, argument).max_positions
        if limit is not None and limit < needed:
            raise InputError(
                f"{argument}: it has {limit} positions, but a prompt of {longest} tokens,"
                f" {config.tokens} new ones and a tree of depth {deepest} need {needed}; lower"
                " max_prompt_tokens or tokens, or choose a model for longer texts."
            )


def fingerprint(model: nn.Module) -> int:
    """A number from names, shapes and a sample of all weights.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = fingerprint(layer)
        >>> _ = nn.init.zeros_(layer.weight)
        >>> fingerprint(layer) == before
        False
    """
    total = 0
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        sample = flat[:: max(len(flat) // SAMPLED, 1)].double().cpu().numpy()
        total = crc32(f"{name} {tuple(weight.shape)}".encode() + sample.tobytes(), total)
    return total
