"""`python -m gpu_runs.train_eagle <config.toml>`: an EAGLE-1 head for a target model.

Three parts, each of which goes on where it stopped: the target's answers to the texts (kept in the
run's folder), the training (checkpoint and held-out curve there, too), the head itself
(`<folder>/head`: config.json, model.safetensors in float16, README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isnan
from pathlib import Path

import click
import torch
from rich.console import Console

from gpu_runs.command import one_sentence
from gpu_runs.eagle_texts import (
    SPLITS,
    TOP,
    Chat,
    read_chats,
    read_lessons,
    sample_chats,
    write_chats,
    write_lessons,
)
from gpu_runs.eagle_training import Point, Recipe, train
from gpu_runs.models import EMBEDDED, LoadedModel, load_model
from gpu_runs.progress import Ticker
from gpu_runs.prompts import read_prompts
from gpu_runs.toml_tables import filled, read_toml
from univer import InputError
from univer.drafters.eagle import EagleHead

AT_LEAST_ONE = {"steps", "batch", "top", "measure_every", "measured", "copies", "new_tokens"}
HELD_OUT = 7  # every seventh prompt: seven and the six categories have no common factor


@dataclass(frozen=True)
class Text:
    """Where texts come from.

    file: an .npz of token ids, see `read_chats`; empty: the target samples on our own prompts.
    copies, new_tokens: texts a prompt and tokens a text, when the target samples; every seventh
        prompt is held out.
    """

    file: str = ""
    copies: int = 32
    new_tokens: int = 120


@dataclass(frozen=True)
class Config:
    """A training run: the target, the run's folder, CPU threads (0: torch's choice), the rest."""

    target: str = EMBEDDED
    folder: str = "runs/eagle"
    threads: int = 1
    text: Text = field(default_factory=Text)
    training: Recipe = field(default_factory=Recipe)


def read_config(path: Path) -> Config:
    """The configuration in a TOML file.

    Raises:
        InputError: no such file, not TOML, an unknown key, or a value of another type.
    """
    table = read_toml(path)
    parts = {
        name: filled(kind, table.pop(name, {}), f"{name}.")
        for name, kind in (("text", Text), ("training", Recipe))
    }
    config: Config = filled(Config, table, **parts)
    _check_numbers(config)
    return config


def _check_numbers(config: Config) -> None:
    values = {**asdict(config.training), **asdict(config.text), "threads": config.threads}
    for name, value in values.items():
        least = 1 if name in AT_LEAST_ONE else 0
        if not isinstance(value, str | bool) and not least <= value < inf:
            raise InputError(f"config: {name} must be at least {least}, got {value}.")
    if config.training.top > TOP:
        raise InputError(
            f"config: training.top must be at most {TOP}, the tokens a place that are kept; got"
            f" {config.training.top}."
        )


def chats_of(config: Config, target: LoadedModel) -> dict[str, list[Chat]]:
    """The texts of both splits; what the target samples is kept in the run's folder."""
    text = config.text
    path = Path(text.file or Path(config.folder) / "texts.npz").expanduser()
    if not text.file and not path.is_file():
        prompts = [prompt.token_ids(target.tokenizer) for prompt in read_prompts()]
        copies = {"train": text.copies, "heldout": max(text.copies // 4, 1)}
        shares = {
            "train": [ids for number, ids in enumerate(prompts) if number % HELD_OUT],
            "heldout": prompts[::HELD_OUT],
        }
        sampled = {
            split: sample_chats(
                target.model,
                shares[split],
                copies=copies[split],
                new_tokens=text.new_tokens,
                seed=2 * config.training.seed + number,
            )
            for number, split in enumerate(SPLITS)
        }
        write_chats(path, sampled)
    return {split: read_chats(path, split) for split in SPLITS}


def run(config: Config, *, resume: bool, console: Console) -> EagleHead:
    """Do what the configuration says; the head, which lies in `<folder>/head` as well."""
    if config.threads:
        torch.set_num_threads(config.threads)
    folder = Path(config.folder).expanduser()
    target = load_model(config.target, argument="target", report=console.print)
    chats = chats_of(config, target)
    lessons = {}
    for split in reversed(SPLITS):
        total = sum(len(chat.tokens) for chat in chats[split])
        with Ticker(console, f"target on {split} texts", "tokens", total) as ticker:
            write_lessons(
                target.model,
                chats[split],
                folder / "lessons" / split,
                told=lambda done, _, at=ticker: at.tick(done, done, "in all"),  # type: ignore[misc]
            )
        lessons[split] = read_lessons(folder / "lessons" / split, chats[split])
    recipe = config.training
    seen: list[float] = []
    with Ticker(console, "training", "steps", recipe.steps) as ticker:

        def told(step: int, loss: float, curve: Sequence[Point]) -> None:
            if not isnan(loss):  # before the first step there is none
                seen.append(loss)
                recent = seen[-20:]
                note = f"loss {sum(recent) / len(recent):.3f}, held-out acceptance"
                ticker.tick(step, len(seen), f"{note} {curve[-1].acceptance:.3f}")

        network, curve = train(
            target.model,
            lessons["train"],
            lessons["heldout"],
            recipe,
            folder,
            resume=resume,
            told=told,
        )
    head = EagleHead(network)
    head.save_pretrained(folder / "head")
    text = card(config, chats, curve)
    (folder / "head" / "README.md").write_text(text, encoding="utf-8")
    console.print(f"head in {folder / 'head'}: held-out acceptance {curve[-1].acceptance:.3f}")
    return head


def card(config: Config, chats: dict[str, list[Chat]], curve: Sequence[Point]) -> str:
    """The head's README: what it is for, how it was trained, how good it is."""
    recipe, last = config.training, curve[-1]
    counts = {
        split: (len(of), sum(len(chat.tokens) - chat.prompt_length for chat in of))
        for split, of in chats.items()
    }
    source = "sampled on this project's prompts"
    if config.text.file:
        source = "token ids of an .npz file"
    norm = " -> RMSNorm" if recipe.final_norm else ""
    rows = "\n".join(
        f"| {p.step} | {p.seconds / 60:.1f} | {p.loss:.3f} | {p.acceptance:.4f} |" for p in curve
    )
    settings = "\n".join(f"- {key}: {value}" for key, value in asdict(recipe).items())
    measured = min(recipe.measured, counts["heldout"][0])
    return f"""# EAGLE-1 head for {config.target}

A draft head: the target's token embedding and previous feature -> linear -> one Llama layer
without input norm{norm} -> the target's LM head. Weights in float16. Read it with
`univer.drafters.eagle.EagleHead.from_pretrained(folder, target)`.

Trained with `python -m gpu_runs.train_eagle` on {counts["train"][0]} texts
({counts["train"][1]} tokens after the prompts; {source}) in {last.seconds / 60:.0f} minutes of
{config.threads or "several"} CPU thread(s), the target's answers to the texts not counted.

Held-out acceptance, the mean of the sum of min(p, q) at temperature 1 with true features:
**{last.acceptance:.3f}** on {counts["heldout"][0]} texts ({counts["heldout"][1]} tokens).

| step | minutes | loss | acceptance |
|---|---|---|---|
{rows}

All points but the last are measured on the first {measured} held-out texts.

Settings:

{settings}
"""


@click.command(context_settings={"max_content_width": 100})
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="Go on with the run in the configuration's folder.")
def main(config: Path, resume: bool) -> None:
    """Train an EAGLE-1 draft head as a TOML file says."""
    with one_sentence("interrupted; go on with --resume."):
        run(read_config(config), resume=resume, console=Console())


if __name__ == "__main__":
    main()
