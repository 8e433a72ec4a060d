"""`python -m gpu_runs.demo`: all four verifiers on a real model's trees, a table and a verdict.

First the paired comparison, as many contexts as fit into the time given; then a short separate
decoding per verifier, for tokens per second and the check that the text is the target's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import click
import torch
from rich.console import Console

from gpu_runs.models import EMBEDDED, LoadedModel, check_same_tokenizer, load_model
from gpu_runs.paired import Context, paired_contexts
from gpu_runs.progress import Ticker
from gpu_runs.prompts import read_prompts
from gpu_runs.separate import Decoded, decode_in_turn
from gpu_runs.tables import lengths_table, losslessness, paired_lines
from univer import VERIFIERS, Filters, InputError, Topology
from univer.decoding import eos_ids
from univer.drafters.layer_skip import layer_skip

SEPARATE_SHARE = 0.6  # time for the separate decoding, in units of the paired part's
SEPARATE_PROMPTS = 12  # two a category
LEAST_TOKENS, MOST_TOKENS = 4, 128  # a prompt, in the separate decoding


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--minutes", default=4.0, help="Time for the paired part; all takes about twice it.")
@click.option("--model", default=EMBEDDED, help="Target: smollm2 (embedded), a folder or hub id.")
@click.option(
    "--drafter",
    default="skip:12",
    help="skip:K (the target's first and last K layers), or a model like --model.",
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
    """Compare the four verifiers on a real language model, in minutes, on a CPU."""
    try:
        passed = run(**options)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
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
    if not minutes > 0:
        raise InputError(f"minutes: expected a number > 0, got {minutes:g}.")
    if drives != "all" and drives not in VERIFIERS:
        raise InputError(
            f"drives: verifier {drives!r} is unknown; choose all or one of {', '.join(VERIFIERS)}."
        )
    if output is not None and not output.absolute().parent.is_dir():
        raise InputError(f"output: there is no folder {output.absolute().parent}.")
    if threads > 0:
        torch.set_num_threads(threads)
    console = Console()
    shape, filters = Topology.parse(topology), Filters(temperature, top_k, top_p)
    target, source = load_pair(model, drafter, _device(device), console)
    console.print(
        f"target {target.name}, drafter {drafter}, topology {shape} ({shape.num_nodes} nodes),"
        f" temperature {temperature:g}, seed {seed}, {torch.get_num_threads()} threads",
        highlight=False,
    )
    laws: dict[str, Any] = {"topology": shape, "filters": filters}
    contexts = _paired_part(console, target, source, minutes, drives, seed, laws)
    decoded, planned = _separate_part(console, target, source, minutes, contexts, seed, laws)
    console.print(lengths_table(contexts, decoded, ascii_only=not console.is_terminal))
    passed, verdict = losslessness(decoded, planned)
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
            "planned_tokens": planned,
            "contexts": [asdict(context) for context in contexts],
            "decoded": {name: asdict(row) for name, row in decoded.items()},
        }
        output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return passed


def load_pair(
    model: str, drafter: str, device: torch.device, console: Console
) -> tuple[LoadedModel, Any]:
    """The target, and the causal LM that drafts for it."""

    def report(line: str) -> None:
        console.print(f"{line} ...", highlight=False, soft_wrap=True)

    keep = drafter.removeprefix("skip:")
    if keep != drafter and not keep.isdigit():
        raise InputError(f"drafter: {drafter!r} is unknown; expected skip:K or a model.")
    target = load_model(model, device=device, report=report)
    if keep != drafter:
        return target, layer_skip(target.model, int(keep))
    draft = load_model(drafter, argument="drafter", device=device, report=report)
    check_same_tokenizer(target, draft)
    return target, draft.model


def _paired_part(
    console: Console,
    target: LoadedModel,
    source: Any,
    minutes: float,
    drives: str,
    seed: int,
    laws: dict[str, Any],
) -> list[Context]:
    contexts: list[Context] = []
    judged = paired_contexts(
        target.model,
        source,
        target.tokenizer,
        read_prompts(),
        drives=tuple(VERIFIERS) if drives == "all" else (drives,),
        ends=eos_ids(None, target.model),
        generator=torch.Generator().manual_seed(seed),
        **laws,
    )
    seconds = 60 * minutes
    with Ticker(console, "paired comparison", "contexts", seconds) as ticker:
        for context in judged:
            contexts.append(context)
            ticker.tick(ticker.elapsed, len(contexts), _running(contexts))
            if ticker.elapsed >= seconds:
                break
    return contexts


def _separate_part(
    console: Console,
    target: LoadedModel,
    source: Any,
    minutes: float,
    contexts: Sequence[Context],
    seed: int,
    laws: dict[str, Any],
) -> tuple[dict[str, Decoded], int]:
    prompts = [p.token_ids(target.tokenizer) for p in read_prompts()[:SEPARATE_PROMPTS]]
    tokens = tokens_a_prompt(contexts, SEPARATE_SHARE * 60 * minutes, len(prompts))
    total = len(prompts) * (len(VERIFIERS) + 1)
    decoded: dict[str, Decoded] = {}
    with Ticker(console, "separate decoding", "texts", total) as ticker:
        for state in decode_in_turn(
            target.model, source, prompts, tokens_a_prompt=tokens, seed=seed + 1, **laws
        ):
            decoded = state
            ticker.tick(ticker.done + 1, int(ticker.done) + 1, f"{tokens} tokens each")
    return decoded, tokens * len(prompts)


def tokens_a_prompt(contexts: Sequence[Context], seconds: float, prompts: int) -> int:
    """How many tokens a prompt fit into this time, from the paired part's pace: 4 to 128.

    It is fixed before the first of these tokens is drawn, as the PIT check asks.
    """
    cycle = median(context.draft_ms + context.target_ms for context in contexts) / 1e3
    a_token = sum(cycle / mean(context.lengths[name] for context in contexts) for name in VERIFIERS)
    return max(LEAST_TOKENS, min(MOST_TOKENS, int(seconds / (prompts * 1.25 * a_token))))


def _running(contexts: Sequence[Context]) -> str:
    """Acceptance lengths so far."""
    return " ".join(
        f"{name} {mean(context.lengths[name] for context in contexts):.2f}" for name in VERIFIERS
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device: {name!r} is unknown; expected cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: {name!r} was asked for, but torch sees no CUDA device.")
    return device


if __name__ == "__main__":
    main()
