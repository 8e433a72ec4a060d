"""A run's folder: begun once, gone on with by `--resume`, never mixed with another run.

run.json says what the rows come from: configuration, seeds, git revision, versions, device, number
of ranks, and a fingerprint of each model and prompt. `--resume` goes on if all of that which rows
depend on is as it was; there may be more seeds, settings and prompts.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from filelock import FileLock, Timeout

from gpu_runs.configuration import Config, Setting, config_of
from gpu_runs.parts import done_units, parts, remove_unfinished
from gpu_runs.results import write_json
from univer import InputError

RUN, LOCK = "run.json", ".lock"
STARTS = ("seeds", "git_revision", "versions", "device", "ranks")  # of every start, in "earlier"
GROWS = ("seeds", "settings")
# No row depends on these keys: what the questions are is compared by their tokens.
FREE = ("folder", "write_seconds", "questions", *GROWS)


def claim(folder: Path, *, resume: bool) -> FileLock:
    """Make the folder and lock it for this run.

    Raises:
        InputError: it cannot be written, another process is at it, or it holds something and
            `resume` is not set.
    """
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        held = [path.name for path in folder.iterdir() if path.name != LOCK]
    except Timeout as error:
        raise InputError(f"folder: another process is writing to {folder}; wait for it.") from error
    except OSError as error:
        raise InputError(f"folder: cannot write {folder}: {error.strerror or error}.") from error
    if held and not resume:
        lock.release()
        raise InputError(
            f"folder: {folder} is not empty ({min(held)}, ...); pass --resume to go on with the run"
            " in it, or name another folder."
        )
    return lock


def begin(
    folder: Path, config: Config, facts: Mapping[str, Any], prompts: Mapping[str, Sequence[int]]
) -> tuple[set[str], str]:
    """Write run.json, once it is sure that this run goes on with the folder's, if there is one.

    Args:
        folder: claimed.
        config: the run.
        facts: device, ranks and the models' fingerprints.
        prompts: prompt id -> token ids.

    Returns:
        The units that are done, and a note on what is new ("" for nothing).

    Raises:
        InputError: another run's folder, rows without run.json, or a part that cannot be read.
    """
    marks = {name: crc32(repr(tuple(ids)).encode()) for name, ids in prompts.items()}
    old, note = _read(folder), ""
    before: list[Any] = []
    if old is not None:
        note = check_grown(config_of(old["config"]), config)
        check_same(old, facts["fingerprints"], marks)
        start = {key: old[key] for key in STARTS if key in old}
        before = [*old["earlier"], start]
        marks = old["prompts"] | marks
    remove_unfinished(folder)
    done = done_units(folder)
    record = {
        "config": asdict(config),
        "seeds": list(config.seeds),
        "git_revision": git_revision(),
        "versions": versions(),
        **facts,
        "prompts": marks,
        "earlier": before,
    }
    write_json(folder / RUN, record)
    return done, note


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / RUN
    if not path.exists():
        if parts(folder):
            raise InputError(f"folder: {folder} has rows but no {RUN}; name another folder.")
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for key in ("config", "prompts", "fingerprints", "earlier"):
            record[key]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"folder: {path} is no run's record: {error}.") from error
    return record


def check_grown(old: Config, new: Config) -> str:
    """A note on what a run has more of than before; "" for nothing.

    Raises:
        InputError: something is other or less.
    """
    for name in (f.name for f in fields(Config) if f.name not in FREE):
        if (was := getattr(old, name)) != (now := getattr(new, name)):
            raise InputError(
                f"config: {name} was {_shown(was)} when the run in the folder began and is"
                f" {_shown(now)} now; only more {', '.join(GROWS)} and prompts can be added."
            )
    if lost := sorted(set(old.seeds) - set(new.seeds)):
        raise InputError(f"config: seeds: {lost[0]} is in the folder's run; it cannot be left out.")
    now_settings = {setting.name: setting for setting in new.settings}
    for setting in old.settings:
        now = now_settings.get(setting.name)
        if now is None or now.prompts < setting.prompts:
            raise InputError(
                f"config: settings: the folder's run has {setting.name} with {setting.prompts}"
                " prompts a category; that cannot be less now."
            )
    return ", ".join(_added(old, new, now_settings))


def _added(old: Config, new: Config, now_settings: Mapping[str, Setting]) -> list[str]:
    before = {setting.name: setting for setting in old.settings}
    return [
        *(f"seed {seed}" for seed in new.seeds if seed not in old.seeds),
        *(name for name in now_settings if name not in before),
        *(
            f"{name}: {now_settings[name].prompts} prompts a category, not {setting.prompts}"
            for name, setting in before.items()
            if now_settings[name].prompts > setting.prompts
        ),
    ]


def check_same(
    old: Mapping[str, Any], fingerprints: Mapping[str, int], marks: Mapping[str, int]
) -> None:
    """Refuse other weights or prompts behind the same names.

    Raises:
        InputError: names the model or the prompt.
    """
    for name, mark in fingerprints.items():
        if old["fingerprints"].get(name) != mark:
            raise InputError(
                f"{name}: its weights are not those that the rows in the folder come from; name"
                " another folder."
            )
    for name, mark in marks.items():
        if old["prompts"].get(name, mark) != mark:
            raise InputError(
                f"questions: the prompt {name} is not the one that the rows in the folder come"
                " from; name another folder."
            )


def git_revision() -> str | None:
    """The commit of this code, "-dirty" with changes behind it; None where git cannot say."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Of Python and the packages whose numbers could matter."""
    names = ("torch", "transformers", "numpy", "polars")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def device_name(device: torch.device) -> str:
    """The device and what it is, such as "cuda:0 (NVIDIA H200)"."""
    if device.type != "cuda":
        return f"{device} ({platform.processor() or platform.machine()})"
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _shown(value: Any) -> str:
    return repr(asdict(value)) if hasattr(value, "__dataclass_fields__") else repr(value)
