"""The demonstration's prompts (prompts.toml): six categories, eight prompts each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """User turns, and the model's answers to all of them but the last."""

    prompt_id: str
    category: str
    turns: tuple[str, ...]
    answers: tuple[str, ...] = ()

    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, as chat templates take it."""
        users = [{"role": "user", "content": turn} for turn in self.turns]
        models = [{"role": "assistant", "content": answer} for answer in self.answers]
        woven = chain.from_iterable(zip(users, models, strict=False))
        return [*woven, *users[len(models) :]]

    def token_ids(self, tokenizer: Any) -> list[int]:
        """The prompt's token ids: in the model's chat format if it has one, else the plain text."""
        if getattr(tokenizer, "chat_template", None):
            encoded = tokenizer.apply_chat_template(self.messages(), add_generation_prompt=True)
            return [int(token) for token in encoded["input_ids"]]
        text = "\n".join(message["content"] for message in self.messages())
        return [int(token) for token in tokenizer(text + "\n")["input_ids"]]


def read_prompts() -> tuple[Prompt, ...]:
    """All prompts, the categories in turn, so that any first few cover as many as possible."""
    table = tomllib.loads((files("gpu_runs") / "prompts.toml").read_text(encoding="utf-8"))

    def category(name: str) -> Iterator[Prompt]:
        for number, entry in enumerate(table[name]):
            answers = tuple(entry.get("answers", ()))
            yield Prompt(f"{name}-{number}", name, tuple(entry["turns"]), answers)

    rounds = zip(*(category(name) for name in table), strict=True)
    return tuple(chain.from_iterable(rounds))
