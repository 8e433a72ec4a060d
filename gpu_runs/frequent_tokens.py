"""`python -m gpu_runs.frequent_tokens <texts.npz> <ids.json>`: a draft vocabulary for a head.

The most frequent tokens of the training texts, prompts not counted, the most frequent first: what
`vocabulary` in a run's [drafter] table, and `--vocabulary` of other commands, take.
"""

from __future__ import annotations

from pathlib import Path

import click

from gpu_runs.command import one_sentence
from gpu_runs.eagle_texts import SPLITS, read_chats
from gpu_runs.results import check_writable, write_whole
from univer.drafters.draft_vocabulary import most_frequent


def coverage(texts: Path, ids: Path, size: int) -> tuple[int, float]:
    """Write the ids; how many they are, and their share of the held-out tokens.

    Raises:
        InputError: texts that cannot be read (as `read_chats` has them), or no place for the ids.
    """
    check_writable(ids)
    train, heldout = (
        [chat.tokens[chat.prompt_length :] for chat in read_chats(texts, split)] for split in SPLITS
    )
    kept = most_frequent(train, size)
    write_whole(ids, f"[{', '.join(map(str, kept))}]\n".encode())
    known, seen = set(kept), [token for text in heldout for token in text]
    return len(kept), sum(token in known for token in seen) / len(seen)


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.argument("texts", type=click.Path(path_type=Path))
@click.argument("ids", type=click.Path(path_type=Path))
@click.option("--size", default=8192, help="How many token ids at the most.")
def main(texts: Path, ids: Path, size: int) -> None:
    """Write the most frequent token ids of TEXTS (an .npz file for training a head) to IDS."""
    with one_sentence("interrupted; nothing was written."):
        count, share = coverage(texts, ids, size)
    click.echo(f"{count} token ids in {ids}: {share:.1%} of the held-out tokens are among them")


if __name__ == "__main__":
    main()
