"""What a run is, out of a TOML file: models, texts, settings; every value checked at once.

The keys are the fields of Config, of Drafter (the table `drafter`) and of Setting (the list of
tables `settings`); a key left out has the default seen here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from gpu_runs.models import DTYPES, EMBEDDED
from gpu_runs.toml_tables import filled, read_toml
from univer import PAPER, VERIFIERS, Filters, InputError, Topology
from univer.drafting import check_arity

PAIRED, DECODING = "paired", "decoding"
MODES = (PAIRED, DECODING)
OWN = "own"  # the prompts in prompts.toml
KINDS = {"eagle": "model", "model": "model", "layer_skip": "layers"}  # drafter -> the key it needs
LEAST = {"tokens": 1, "max_prompt_tokens": 1, "write_seconds": 0, "threads": 0}


@dataclass(frozen=True)
class Drafter:
    """What drafts.

    kind: "eagle" (an EAGLE-1 head), "model" (another causal LM) or "layer_skip".
    model: of the first two, a folder or hub id.
    layers: of layer_skip, how many of the target's layers are kept at each end.
    vocabulary: of eagle, a file (.json or .pt) with the only token ids that are drafted; "": as the
        head's folder has it.
    """

    kind: str = "eagle"
    model: str = ""
    layers: int = 0
    vocabulary: str = ""


@dataclass(frozen=True)
class Setting:
    """A topology at a temperature, and on how many prompts of each category."""

    topology: str = "2x5"
    temperature: float = 1.0
    prompts: int = 8

    @property
    def name(self) -> str:
        """Short and unique in a run, such as 2x5/T1."""
        return f"{self.topology}/T{self.temperature:g}"


@dataclass(frozen=True)
class Config:
    """A run.

    folder: where its rows go.
    mode: "paired" (all verifiers judged in the same contexts) or "decoding" (each writes its own
        text, and plain decoding one more, for tokens a second).
    target: "smollm2" (embedded), a folder or a hub id.
    questions: "own" (this project's prompts) or the path of Spec-Bench's question.jsonl.
    verifiers: names; in paired mode they take turns in writing the text.
    seeds: each is another pass over all prompts and settings.
    tokens: new tokens a text (less if EOS comes); never a number of cycles, which would depend on
        the tokens and spoil their PIT values.
    chat_template: a Jinja template, for a chat model whose tokenizer brings none; "": as it comes.
    max_prompt_tokens: of a longer prompt the last ones stay.
    device: "auto" (CUDA if there), "cpu", "cuda:1", ...; under torchrun each rank takes its own.
    dtype: of the models: "auto" (float32 on the CPU, else the file's), "bfloat16", ... Laws are
        taken in float32 at least.
    threads: CPU threads of each rank; 0 is torch's choice. Other numbers round differently.
    write_seconds: about how often rows are written, so how much a kill can lose.
    """

    folder: str = ""
    mode: str = PAIRED
    target: str = EMBEDDED
    questions: str = OWN
    chat_template: str = ""
    verifiers: tuple[str, ...] = PAPER
    seeds: tuple[int, ...] = (0,)
    tokens: int = 24
    max_prompt_tokens: int = 512
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    write_seconds: float = 30.0
    drafter: Drafter = field(default_factory=Drafter)
    settings: tuple[Setting, ...] = (Setting(),)


def read_config(path: Path, *, output: str | None = None, questions: str | None = None) -> Config:
    """The configuration in a TOML file; a folder or questions given here take precedence.

    Raises:
        InputError: no such file, not TOML, an unknown key, a value of another type or out of range.
    """
    config = config_of(read_toml(path))
    if questions is not None:
        config = replace(config, questions=questions)
    if output is not None:
        config = replace(config, folder=output)
    if not config.folder:
        raise InputError("config: folder is missing; name the folder that the rows go to.")
    return config


def config_of(table: dict[str, Any]) -> Config:
    """The configuration in a table, as TOML or as JSON (run.json) gives it; its folder may lack.

    Raises:
        InputError: as in `read_config`.
    """
    table = dict(table)
    parts: dict[str, Any] = {"drafter": filled(Drafter, table.pop("drafter", {}), "drafter.")}
    settings = table.pop("settings", None)
    if not isinstance(settings, list) or not settings:
        raise InputError("config: settings must be one table [[settings]] or more.")
    parts["settings"] = tuple(
        filled(Setting, given, f"settings {number}.")
        for number, given in enumerate(settings, start=1)
    )
    config: Config = filled(Config, table, **parts)
    _check(config)
    return config


def _check(config: Config) -> None:
    _check_choices("mode", [config.mode], MODES)
    _check_choices("dtype", [config.dtype], DTYPES)
    _check_choices("verifiers", config.verifiers, VERIFIERS)
    _check_unique("seeds", config.seeds)
    if not all(0 <= seed < 2**63 for seed in config.seeds):
        raise InputError(f"config: seeds must be from 0 to 2**63 - 1, got {list(config.seeds)}.")
    for key, least in LEAST.items():
        if not least <= (value := getattr(config, key)) < inf:
            raise InputError(f"config: {key} must be at least {least}, got {value}.")
    if config.threads > (cores := os.cpu_count() or 1):
        raise InputError(
            f"config: threads must be at most {cores} (the cores here), got {config.threads}."
        )
    _check_drafter(config.drafter)
    _check_unique("settings", [setting.name for setting in config.settings])
    for number, setting in enumerate(config.settings, start=1):
        try:
            shape = Topology.parse(setting.topology)
            Filters(setting.temperature)
            for name in config.verifiers:
                check_arity(shape, VERIFIERS[name].max_arity, f"the verifier {name!r}")
        except InputError as error:
            raise InputError(f"config: settings {number}: {error}") from error
        if setting.prompts < 1:
            raise InputError(
                f"config: settings {number}.prompts must be at least 1 (a category), got"
                f" {setting.prompts}."
            )


def _check_choices(key: str, given: Sequence[str], known: Any) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"config: {key}: {name!r} is unknown; expected one of {', '.join(known)}."
            )
    _check_unique(key, given)


def _check_unique(key: str, given: Sequence[object]) -> None:
    if not given:
        raise InputError(f"config: {key} is empty; give one or more.")
    if len(set(given)) < len(given):
        twin = next(entry for entry in given if given.count(entry) > 1)
        raise InputError(f"config: {key}: {twin!r} is given twice.")


def _check_drafter(drafter: Drafter) -> None:
    _check_choices("drafter.kind", [drafter.kind], KINDS)
    needed = KINDS[drafter.kind]
    given = {"model": bool(drafter.model), "layers": drafter.layers != 0}
    if not given[needed]:
        raise InputError(f"config: drafter.{needed} is missing; kind {drafter.kind!r} needs it.")
    for key, there in given.items():
        if there and key != needed:
            raise InputError(f"config: drafter.{key} is not for kind {drafter.kind!r}.")
    if drafter.vocabulary and drafter.kind != "eagle":
        raise InputError(f"config: drafter.vocabulary is not for kind {drafter.kind!r}.")
