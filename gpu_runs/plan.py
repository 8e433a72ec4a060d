"""The list of a run's units of work, and each unit's own random stream.

A unit is one text: a prompt, a seed, a setting and the verifier that writes it. Its rows depend on
nothing else, so that ranks, their order and restarts do not matter. The list grows at its end with
more seeds and in the middle with more settings or prompts; the units that were there stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch

from gpu_runs.configuration import PAIRED, Config, Setting
from gpu_runs.prompts import Prompt
from gpu_runs.separate import NO_TREE, PLAIN
from univer import InputError
from univer.decoding import seeded


@dataclass(frozen=True)
class Unit:
    """One text to be written.

    name: unique in the run.
    prompt: where it starts.
    seed: the pass that it belongs to.
    topology, temperature: its trees and laws.
    writer: a verifier, or "plain".
    """

    name: str
    prompt: Prompt
    seed: int
    topology: str
    temperature: float
    writer: str

    def generator(self) -> torch.Generator:
        """A new generator at the start of the unit's stream."""
        key = (crc32(self.name.encode()),)
        words = np.random.SeedSequence(self.seed, spawn_key=key).generate_state(1, np.uint64)
        return seeded(int(words[0] >> 1))


def by_category(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """Category -> its prompts, both in their order of appearance."""
    grouped: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        grouped.setdefault(prompt.category, []).append(prompt)
    return grouped


def units(config: Config, prompts: Sequence[Prompt]) -> tuple[Unit, ...]:
    """All units: seed by seed, setting by setting, the categories in turn.

    In paired mode verifiers take turns in writing, from prompt to prompt, category to category and
    seed to seed. In decoding mode all write, one after another, so that a machine that slows down
    slows all of them. Categories and verifiers start one further every round, so that ranks, which
    take every so-manieth unit, get equal shares.

    Raises:
        InputError: a setting wants more prompts than a category has.
    """
    grouped = by_category(prompts)
    for setting in config.settings:
        for category, members in grouped.items():
            if setting.prompts > len(members):
                raise InputError(
                    f"config: {setting.name} asks for {setting.prompts} prompts a category, but"
                    f" {category} has {len(members)}."
                )
    found: dict[str, Unit] = {}
    for seed in config.seeds:
        for setting in config.settings:
            for at, prompt in enumerate(_prompts(grouped, setting.prompts)):
                for writer in _writers(config, grouped, prompt, seed, at):
                    unit = _unit(config, setting, prompt, seed, writer)
                    # Plain decoding knows no topology: once is enough for all of them.
                    found.setdefault(unit.name, unit)
    return tuple(found.values())


def _prompts(grouped: Mapping[str, Sequence[Prompt]], each: int) -> Iterator[Prompt]:
    categories = list(grouped)
    for number in range(each):
        for category in _turned(categories, number):
            yield grouped[category][number]


def _writers(
    config: Config, grouped: Mapping[str, Sequence[Prompt]], prompt: Prompt, seed: int, at: int
) -> list[str]:
    if config.mode == PAIRED:
        # By the prompt's place in its category, which stays when more prompts are asked for.
        place = grouped[prompt.category].index(prompt) + list(grouped).index(prompt.category)
        return [config.verifiers[(place + seed) % len(config.verifiers)]]
    return _turned([PLAIN, *config.verifiers], at)


def _unit(config: Config, setting: Setting, prompt: Prompt, seed: int, writer: str) -> Unit:
    topology = str(NO_TREE) if writer == PLAIN else setting.topology
    parts = [topology, f"T{setting.temperature:g}", prompt.prompt_id, f"seed{seed}"]
    if config.mode != PAIRED:
        parts.append(writer)
    return Unit("/".join(parts), prompt, seed, topology, setting.temperature, writer)


def _turned(entries: Sequence[str], by: int) -> list[str]:
    by %= len(entries)
    return [*entries[by:], *entries[:by]]
