"""What an EAGLE head is trained on: texts, and the target's features and laws on them.

Texts are token ids out of an .npz file, or what the target itself samples on this project's
prompts. One teacher-forced pass of the target gives the features of all tokens and, after the
last prompt token and every generated one, its most probable next tokens; that is kept on disk in
parts, each whole or absent, so that the pass can be interrupted and is made once.

Letters: C chats, T tokens of a chat, G judged places of a chat, K top tokens, d width.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpu_runs.results import write_json
from univer import InputError
from univer.decoding import eos_ids, until_end

TOP = 64
PART = 64  # chats a file
SPLITS = ("train", "heldout")

Told = Callable[[int, int], None]  # (tokens done, tokens in all)


@dataclass(frozen=True)
class Chat:
    """A text: a prompt and what followed.

    tokens: the ids.
    prompt_length: how many of them, from the start, are the prompt; >= 1.
    """

    tokens: tuple[int, ...]
    prompt_length: int


@dataclass(frozen=True)
class Lesson:
    """A chat with the target's answers to it.

    tokens: int64 [T].
    features: float16 [T, d].
    first: the first judged place, the last token of the prompt; G = T - first.
    top_tokens: int64 [G, K], the most probable next tokens at each judged place.
    top_probs: float32 [G, K], their probabilities at temperature 1.
    """

    tokens: Tensor
    features: Tensor
    first: int
    top_tokens: Tensor
    top_probs: Tensor


def read_chats(path: Path, split: str) -> list[Chat]:
    """The chats of one split of an .npz file.

    Its arrays, for train and heldout alike: `<split>_tokens`, all chats one after another;
    `<split>_offsets` [C + 1]; `<split>_prompt_lengths` [C].

    Raises:
        InputError: no such file, arrays missing, or lengths that do not fit.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tokens, offsets, lengths = (
                arrays[f"{split}_{name}"].astype(np.int64)
                for name in ("tokens", "offsets", "prompt_lengths")
            )
    except Exception as error:  # NumPy raises anything for a file that is none of its own
        raise InputError(f"text.file: cannot read the {split} texts of {path}: {error}.") from error
    spans = np.diff(offsets)
    if len(spans) != len(lengths) or not len(spans) or offsets[-1] > len(tokens):
        raise InputError(f"text.file: the {split} arrays of {path} do not fit one another.")
    if not ((lengths >= 1) & (lengths < spans)).all():
        raise InputError(
            f"text.file: a {split} chat of {path} has no prompt or nothing after its prompt."
        )
    return [
        Chat(tuple(tokens[start:end].tolist()), int(length))
        for start, end, length in zip(offsets, offsets[1:], lengths, strict=False)
    ]


def write_chats(path: Path, chats: Mapping[str, Sequence[Chat]]) -> None:
    """Write the chats of all splits as an .npz file for `read_chats`; whole or not at all."""
    arrays: dict[str, Any] = {}
    for split, of in chats.items():
        arrays[f"{split}_tokens"] = np.concatenate([np.array(c.tokens, np.int32) for c in of])
        arrays[f"{split}_offsets"] = np.cumsum([0, *(len(c.tokens) for c in of)])
        arrays[f"{split}_prompt_lengths"] = np.array([c.prompt_length for c in of], np.int32)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        np.savez(file, **arrays)
    os.replace(new, path)


@torch.no_grad()
def sample_chats(
    model: Any, prompts: Sequence[Sequence[int]], *, copies: int, new_tokens: int, seed: int
) -> list[Chat]:
    """Texts that the target samples at temperature 1, `copies` for each prompt."""
    ends, chats = eos_ids(None, model), []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for prompt in prompts:
            ids = torch.tensor([list(prompt)], device=model.device)
            sampled = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=new_tokens,
                num_return_sequences=copies,
                pad_token_id=min(ends, default=0),
            )
            for row in sampled[:, len(prompt) :].tolist():
                chats.append(Chat((*prompt, *until_end(row, ends)), len(prompt)))
    return chats


def write_lessons(
    model: Any, chats: Sequence[Chat], folder: Path, *, top: int = TOP, told: Told | None = None
) -> None:
    """Run the target over the chats and keep its answers in a folder, going on where it stopped.

    Raises:
        InputError: the folder belongs to other texts, or a token is none of the target's.
    """
    vocabulary = model.get_output_embeddings().weight.shape[0]
    if max(max(chat.tokens) for chat in chats) >= vocabulary:
        raise InputError(f"text: it has token ids beyond the target's vocabulary of {vocabulary}.")
    folder.mkdir(parents=True, exist_ok=True)
    mark = {"texts": _fingerprint(chats), "top": min(top, vocabulary), "vocabulary": vocabulary}
    marked = folder / "lessons.json"
    if marked.is_file() and json.loads(marked.read_text(encoding="utf-8")) != mark:
        raise InputError(
            f"folder: {folder} holds the target's answers to other texts; remove it or name another"
            " folder."
        )
    write_json(marked, mark)
    total, done = sum(len(chat.tokens) for chat in chats), 0
    for number in range(0, len(chats), PART):
        part = chats[number : number + PART]
        path = folder / f"part-{number // PART:05d}.safetensors"
        if not path.is_file():
            tensors: dict[str, Tensor] = {}
            for at, chat in enumerate(part):
                answers = _answers(model, chat, mark["top"])
                tensors |= {f"{at}.{name}": value for name, value in answers.items()}
            new = path.with_suffix(".new")
            save_file(tensors, new)
            os.replace(new, path)
        done += sum(len(chat.tokens) for chat in part)
        if told is not None:
            told(done, total)


def read_lessons(folder: Path, chats: Sequence[Chat]) -> list[Lesson]:
    """What `write_lessons` kept of these chats."""
    lessons: list[Lesson] = []
    for number in range(0, len(chats), PART):
        tensors = load_file(folder / f"part-{number // PART:05d}.safetensors")
        for at, chat in enumerate(chats[number : number + PART]):
            lessons.append(
                Lesson(
                    torch.tensor(chat.tokens),
                    tensors[f"{at}.features"],
                    chat.prompt_length - 1,
                    tensors[f"{at}.top_tokens"].long(),
                    tensors[f"{at}.top_probs"],
                )
            )
    return lessons


@torch.no_grad()
def _answers(model: Any, chat: Chat, top: int) -> dict[str, Tensor]:
    ids = torch.tensor([list(chat.tokens)], device=model.device)
    output = model(
        input_ids=ids,
        output_hidden_states=True,
        use_cache=False,
        logits_to_keep=len(chat.tokens) - chat.prompt_length + 1,
    )
    probs, tokens = output.logits[0].float().softmax(-1).topk(top)
    return {
        "features": output.hidden_states[-1][0].half().cpu().contiguous(),
        "top_tokens": tokens.int().cpu().contiguous(),
        "top_probs": probs.cpu().contiguous(),
    }


def _fingerprint(chats: Sequence[Chat]) -> str:
    digest = hashlib.sha256()
    for chat in chats:
        digest.update(np.array([chat.prompt_length, *chat.tokens, -1], dtype=np.int64).tobytes())
    return digest.hexdigest()
