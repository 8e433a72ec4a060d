"""`python -m gpu_runs.demo`: the paper's four verifiers on a real model's trees, with a verdict.

First the paired comparison, as many contexts as fit into the time given; then a short separate
decoding per verifier, for tokens per second and the check that the text is the target's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from statistics import mean, median
from typing import Any

import click
import torch
from rich.console import Console

from gpu_runs.command import check_threads, one_sentence, use_threads
from gpu_runs.models import EMBEDDED, LoadedModel, usable_device
from gpu_runs.named_drafters import DRAFTER_HELP, SHIPPED, load_pair
from gpu_runs.paired import Context, paired_contexts, positions_needed
from gpu_runs.progress import Ticker
from gpu_runs.prompts import Prompt, read_prompts
from gpu_runs.results import check_writable, write_json
from gpu_runs.separate import Decoded, decode_in_turn
from gpu_runs.tables import lengths_table, losslessness, paired_lines, pooled_values
from univer import PAPER, Filters, InputError, Topology
from univer.cached_model import CachedModel
from univer.decoding import eos_ids, seeded
from univer.drafters.eagle import EagleHead

SEPARATE_SHARE = 0.6  # time planned for the separate decoding, in units of the paired part's
SEPARATE_PROMPTS = 6  # one a category: each costs two prefills for every way of decoding
LEAST_TOKENS, MOST_TOKENS = 4, 128  # a prompt, in the separate decoding
SEPARATE_OVERHEAD = 1.25  # its time over that of the verifiers' cycles: prefill, plain decoding


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option(
    "--minutes",
    default=4.0,
    help=f"Time for the paired part; {SEPARATE_SHARE:g} of it more is planned for the rest.",
)
@click.option("--model", default=EMBEDDED, help="Target: smollm2 (embedded), a folder or hub id.")
@click.option(
    "--drafter",
    default=SHIPPED,
    help=DRAFTER_HELP,
)
@click.option("--topology", default="2x5", help="2x5 (branching x depth), chain:5, eagle, ...")
@click.option("--temperature", default=1.0, help="For draft and target alike; 0 is greedy.")
@click.option("--top-k", default=0, help="Keep the k most probable tokens; 0 keeps all.")
@click.option("--top-p", default=1.0, help="Keep the most probable tokens of this mass.")
@click.option(
    "--drives",
    default="all",
    help="The verifier that continues the text in the paired part; all: they take turns.",
)
@click.option("--seed", default=0, help="Of all random numbers.")
@click.option("--threads", default=0, help="CPU threads; 0 leaves torch's choice.")
@click.option("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
@click.option("--output", type=click.Path(path_type=Path), help="Write the results here, as JSON.")
def main(**options: Any) -> None:
    """Compare the paper's four verifiers on a real language model, in minutes, on a CPU."""
    with one_sentence("interrupted; nothing was written."):
        passed = run(**options)
    sys.exit(0 if passed else 1)


def run(
    *,
    minutes: float,
    model: str,
    drafter: str,
    topology: str,
    temperature: float,
    top_k: int,
    top_p: float,
    drives: str,
    seed: int,
    threads: int,
    device: str,
    output: Path | None,
) -> bool:
    """Run the demonstration; whether every verifier's text passed.

    Raises:
        InputError: an option that does not fit, or a model that cannot be loaded.
    """
    if not (minutes > 0 and isfinite(minutes)):
        raise InputError(f"minutes: expected a finite number > 0, got {minutes:g}.")
    if drives != "all" and drives not in PAPER:
        raise InputError(
            f"drives: verifier {drives!r} is unknown; choose all or one of {', '.join(PAPER)}."
        )
    if output is not None:
        check_writable(output)
    check_threads(threads)
    generator = seeded(seed)
    shape, filters = Topology.parse(topology), Filters(temperature, top_k, top_p)
    place = usable_device(device)
    use_threads(threads)
    console = Console()
    target, source = load_pair(model, drafter, place, console)
    prompts = encoded_prompts(target)
    room = check_room(target.model, source, prompts, shape)
    console.print(
        f"target {target.name}, drafter {drafter}, topology {shape} ({shape.num_nodes} nodes),"
        f" temperature {temperature:g}, seed {seed}, {torch.get_num_threads()} threads",
        highlight=False,
    )
    laws: dict[str, Any] = {"topology": shape, "filters": filters}
    names = PAPER if drives == "all" else (drives,)
    contexts = _paired_part(
        console, target.model, source, prompts, minutes, drives=names, generator=generator, **laws
    )
    tokens = tokens_a_prompt(contexts, SEPARATE_SHARE * 60 * minutes, SEPARATE_PROMPTS, room)
    decoded = _separate_part(
        console, target.model, source, prompts, tokens, generator=generator, **laws
    )
    console.print(lengths_table(contexts, decoded, ascii_only=not console.is_terminal))
    passed, verdict = losslessness(pooled_values(contexts, decoded))
    for line in (*paired_lines(contexts), *verdict):
        console.print(line, highlight=False, soft_wrap=True)
    if output is not None:
        results = {
            "target": target.name,
            "drafter": drafter,
            "topology": str(shape),
            "filters": asdict(filters),
            "seed": seed,
            "torch": torch.__version__,
            "passed": passed,
            "separate_tokens_a_prompt": tokens,
            "contexts": [asdict(context) for context in contexts],
            "decoded": {name: asdict(row) for name, row in decoded.items()},
        }
        write_json(output, results)
    return passed


def encoded_prompts(target: LoadedModel) -> tuple[tuple[Prompt, list[int]], ...]:
    """All prompts with their token ids.

    Raises:
        InputError: the tokenizer fails on one.
    """
    try:
        return tuple((prompt, prompt.token_ids(target.tokenizer)) for prompt in read_prompts())
    except Exception as error:  # chat templates are programs and may raise anything
        raise InputError(
            f"model: the tokenizer of {target.name!r} cannot encode the demo's prompts: {error!r}."
        ) from error


def check_room(
    target: Any, drafter: Any, prompts: Sequence[tuple[Prompt, Sequence[int]]], topology: Topology
) -> int:
    """How many tokens both models can add to the longest prompt; 128 or more are 128.

    Raises:
        InputError: too few for the paired part.
    """
    longest = max(len(ids) for _, ids in prompts)
    needed = positions_needed(longest, topology)
    room = MOST_TOKENS
    models = {"model": target}
    if not isinstance(drafter, EagleHead):
        models["drafter"] = drafter
    for argument, model in models.items():
        limit = CachedModel(model, argument).max_positions
        if limit is None:
            continue
        if limit < needed:
            raise InputError(
                f"{argument}: it has {limit} positions, but the longest of the demo's prompts"
                f" ({longest} tokens) and a visit on {topology} need {needed}; choose a model for"
                " longer texts."
            )
        room = min(room, limit - longest)
    return room


def _paired_part(
    console: Console,
    target: Any,
    drafter: Any,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    minutes: float,
    **options: Any,
) -> list[Context]:
    contexts: list[Context] = []
    seconds = 60 * minutes
    with Ticker(console, "paired comparison", "contexts", seconds) as ticker:
        for context in paired_contexts(
            target,
            drafter,
            prompts,
            ends=eos_ids(None, target),
            more=lambda: ticker.elapsed < seconds,
            **options,
        ):
            contexts.append(context)
            ticker.tick(min(ticker.elapsed, seconds), len(contexts), _running(contexts))
    return contexts


def _separate_part(
    console: Console,
    target: Any,
    drafter: Any,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    tokens: int,
    **options: Any,
) -> dict[str, Decoded]:
    chosen = [ids for _, ids in prompts[:SEPARATE_PROMPTS]]
    total = len(chosen) * (len(PAPER) + 1)
    decoded: dict[str, Decoded] = {}
    with Ticker(console, "separate decoding", "texts", total) as ticker:
        for state in decode_in_turn(target, drafter, chosen, tokens_a_prompt=tokens, **options):
            decoded = state
            ticker.tick(ticker.done + 1, int(ticker.done) + 1, f"{tokens} tokens each")
    return decoded


def tokens_a_prompt(contexts: Sequence[Context], seconds: float, prompts: int, room: int) -> int:
    """How many tokens a prompt fit into this time, from the paired part's pace: 4 to `room`.

    It is fixed before the first of these tokens is drawn, as the PIT check asks.
    """
    cycle = median(context.draft_ms + context.target_ms for context in contexts) / 1e3
    a_token = sum(cycle / mean(context.lengths[name] for context in contexts) for name in PAPER)
    fit = int(seconds / (prompts * SEPARATE_OVERHEAD * a_token))
    return max(LEAST_TOKENS, min(room, fit))


def _running(contexts: Sequence[Context]) -> str:
    """Acceptance lengths so far."""
    return " ".join(
        f"{name} {mean(context.lengths[name] for context in contexts):.2f}" for name in PAPER
    )


if __name__ == "__main__":
    main()
