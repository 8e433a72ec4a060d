"""`python -m gpu_runs.speedup`: where a draft tree pays, modelled and measured side by side.

For each drafter: costs and exact acceptance lengths by topology from a start-up on every prompt
(`univer.decoding.choose`), the speed-up over plain decoding that they promise, and the one that
texts written afterwards had. Then what the same lengths would bring elsewhere: a grid over the two
ratios that a machine decides, a draft step and a 63-token forward over a one-token forward.

A drafter that is a causal LM drafts for Hugging Face's assisted generation as well, as a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from gpu_runs.command import check_threads, one_sentence, use_threads
from gpu_runs.folder import device_name
from gpu_runs.models import EMBEDDED, load_model, usable_device
from gpu_runs.named_drafters import DRAFTER_HELP, REDUCED, SHIPPED, check_drafter, load_drafter
from gpu_runs.progress import Ticker
from gpu_runs.prompts import read_prompts
from gpu_runs.results import check_writable, write_json
from gpu_runs.speedup_measured import Measured, hugging_face, ours
from gpu_runs.speedup_tables import HF_PLAIN, as_json, elsewhere_table, pooled, side_by_side
from gpu_runs.theorems_findings import wide_console
from univer import VERIFIERS, Filters, InputError, Topology
from univer.auto_topology import CANDIDATES
from univer.cost_model import PLAIN, Choice
from univer.decoding import Auto, choose, seeded
from univer.drafters.eagle import EagleHead

LEAST_TOKENS, MOST_TOKENS = 8, 128  # a text
OVERHEAD = 1.3  # a text's time over that of its cycles after the first: it reads the prompt


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--minutes", default=4.5, help="Time for all drafters together, about.")
@click.option("--model", default=EMBEDDED, help="Target: smollm2 (embedded), a folder or hub id.")
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    default=(SHIPPED, REDUCED, "skip:12"),
    help=f"Again for more: {DRAFTER_HELP}",
)
@click.option("--topology", "topologies", multiple=True, default=CANDIDATES, help="Again for more.")
@click.option("--verifier", default="univer", help=f"One of {', '.join(VERIFIERS)}.")
@click.option("--temperature", default=1.0, help="For draft and target alike; 0 is greedy.")
@click.option("--prompts", "count", default=3, help="How many of our own, categories in turn.")
@click.option("--rounds", default=4, help="Start-up cycles on each topology and prompt.")
@click.option("--seed", default=0, help="Of all random numbers.")
@click.option("--threads", default=0, help="CPU threads; 0 leaves torch's choice.")
@click.option("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
@click.option("--dtype", default="auto", help="auto (float32 on the CPU), float32, bfloat16, ...")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results here.")
def main(**options: Any) -> None:
    """Show modelled and measured speed-up of draft trees, in minutes."""
    with one_sentence("interrupted; what was done is in the file of --json, if there is one."):
        run(**options)


def run(
    *,
    minutes: float,
    model: str,
    drafters: Sequence[str],
    topologies: Sequence[str],
    verifier: str,
    temperature: float,
    count: int,
    rounds: int,
    seed: int,
    threads: int,
    device: str,
    dtype: str,
    output: Path | None,
) -> None:
    """Measure every drafter, print its tables, and write all results so far.

    Raises:
        InputError: an option that does not fit, or a model that cannot be loaded.
    """
    for name, value in (("minutes", minutes), ("prompts", count)):
        if not (value > 0 and isfinite(value)):
            raise InputError(f"{name}: expected a finite number > 0, got {value:g}.")
    if verifier not in VERIFIERS:
        raise InputError(
            f"verifier: {verifier!r} is unknown; choose one of {', '.join(VERIFIERS)}."
        )
    if output is not None:
        check_writable(output)
    for drafter in drafters:
        check_drafter(drafter)
    check_threads(threads)
    generator, filters, auto = seeded(seed), Filters(temperature), Auto(topologies, rounds)
    place, console = usable_device(device), wide_console()
    use_threads(threads)

    def report(line: str) -> None:
        console.print(f"{line} ...", highlight=False, soft_wrap=True)

    target = load_model(model, device=place, dtype=dtype, report=report)
    prompts = [prompt.token_ids(target.tokenizer) for prompt in read_prompts()[:count]]
    results: dict[str, Any] = {
        "target": target.name,
        "device": device_name(place),
        "dtype": str(target.model.dtype),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "verifier": verifier,
        "filters": asdict(filters),
        "seed": seed,
        "prompts": len(prompts),
        "drafters": {},
    }
    for name in drafters:
        source = load_drafter(name, target, report)
        results["drafters"][name] = _drafter(
            console,
            name,
            target.model,
            source,
            prompts,
            auto=auto,
            seconds=60 * minutes / len(drafters),
            laws={"verifier": verifier, "filters": filters},
            generator=generator,
            seed=seed,
        )
        if output is not None:
            write_json(output, results)


def _drafter(
    console: Console,
    name: str,
    target: Any,
    source: Any,
    prompts: Sequence[Sequence[int]],
    *,
    auto: Auto,
    seconds: float,
    laws: dict[str, Any],
    generator: torch.Generator,
    seed: int,
) -> dict[str, Any]:
    """Measure one drafter in about this time and print its tables; the numbers."""
    choices: list[Choice] = []
    with Ticker(console, f"{name}: start-up", "prompts", len(prompts)) as ticker:
        for ids in prompts:
            choices.append(choose(target, source, ids, auto=auto, generator=generator, **laws))
            ticker.tick(len(choices), len(choices), choices[-1].reason())
        seconds -= ticker.elapsed
    choice, assisted = pooled(choices), not isinstance(source, EagleHead)
    tokens = tokens_a_text(choice, seconds, len(prompts), assisted)
    measured = _texts(console, name, target, source, prompts, choice, tokens, laws, generator, seed)
    lines = [choice.reason()]
    if not assisted:
        lines.append(
            "Hugging Face's assistant must be a causal LM that reads token ids: an EAGLE head,"
            " which reads the target's features, cannot draft there."
        )
    ascii_only = not console.is_terminal
    console.print(side_by_side(name, choice, measured, ascii_only=ascii_only))
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(elsewhere_table(name, choice, ascii_only=ascii_only))
    return {**as_json(choice, measured), "tokens_a_text": tokens}


def tokens_a_text(choice: Choice, seconds: float, prompts: int, assisted: bool) -> int:
    """How many tokens a text fit into this time if every way writes one for each prompt."""
    a_token = sum(1 / row.tokens_per_second for row in choice.rows)
    # Hugging Face's ways: plain, and assisted at about the speed of the same chains here.
    a_token += choice.rows[0].plain.total_ms / 1e3
    if assisted:
        speeds = {row.topology: row.tokens_per_second for row in choice.rows}
        a_token += sum(1 / speeds[chain] for chain in chains(choice))
    return max(LEAST_TOKENS, min(MOST_TOKENS, int(seconds / (prompts * OVERHEAD * a_token))))


def chains(choice: Choice) -> list[Topology]:
    """The deepest chain among the candidates, which Hugging Face's assistant can draft, too."""
    found = [row.topology for row in choice.rows]
    these = [t for t in found if t != PLAIN and t.num_nodes == t.depth + 1]
    return sorted(these, key=lambda chain: chain.depth)[-1:]


def _texts(
    console: Console,
    name: str,
    target: Any,
    source: Any,
    prompts: Sequence[Sequence[int]],
    choice: Choice,
    tokens: int,
    laws: dict[str, Any],
    generator: torch.Generator,
    seed: int,
) -> dict[str, Measured]:
    """Way of decoding -> what its texts took; in turn, so that a slow spell slows all of them."""
    shapes = {str(row.topology): row.topology for row in choice.rows}
    helped = [] if isinstance(source, EagleHead) else chains(choice)
    found = {way: Measured() for way in (*shapes, HF_PLAIN, *map(assisted_name, helped))}
    usual: dict[str, Any] = {"filters": laws["filters"], "tokens": tokens}
    with Ticker(console, f"{name}: texts", "texts", len(found) * len(prompts)) as ticker:
        for number, ids in enumerate(prompts):
            there = {**usual, "seed": seed + number}
            for way, shape in shapes.items():
                found[way] += ours(target, source, ids, shape, generator=generator, **usual | laws)
                ticker.tick(ticker.done + 1, int(ticker.done) + 1, f"{tokens} tokens each")
            found[HF_PLAIN] += hugging_face(target, ids, **there)
            for shape in helped:
                found[assisted_name(shape)] += hugging_face(
                    target, ids, assistant=source, drafts=shape.depth, **there
                )
            ticker.tick((number + 1) * len(found), (number + 1) * len(found), "")
    return found


def assisted_name(chain: Topology) -> str:
    """How tables call Hugging Face's assisted generation with drafts of this depth."""
    return f"Hugging Face assisted, {chain.depth}"


if __name__ == "__main__":
    main()
