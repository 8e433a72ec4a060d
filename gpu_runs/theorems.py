"""`python -m gpu_runs.theorems`: the paper's theorems on a real model's trees and text.

    python -m gpu_runs.theorems --json theorems.json --runs runs/decoding
    python -m gpu_runs.theorems --drafter skip:12 --parts layers,lengths

| part | what is checked |
|---|---|
| layers | Theorems 3 and 5 at single nodes over the whole vocabulary; Lemma 1 on one layer |
| lengths | Theorem 6 and Lemma 1 on whole trees, exact given the tree, paired |
| text | Theorem 4 on all tokens of run folders: PIT e-test, surprisal; Theorem 6 on their trees |
| direct | Theorem 4 for the first two tokens after a few prompts, against the exact law |
| faults | planted faults of TV >= .1 go the same way and must be caught |

Exit code 0: everything holds. 1: something does not. 2: bad input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from gpu_runs.command import check_threads, one_sentence, use_threads
from gpu_runs.demo import encoded_prompts
from gpu_runs.models import EMBEDDED, LoadedModel, usable_device
from gpu_runs.named_drafters import DRAFTER_HELP, SHIPPED, load_pair
from gpu_runs.progress import Ticker
from gpu_runs.prompts import Prompt
from gpu_runs.results import check_writable, write_json
from gpu_runs.theorems_contexts import contexts, nodes_of
from gpu_runs.theorems_direct import (
    BATCH,
    PILOT,
    PLANTED,
    direct_findings,
    fault_findings,
)
from gpu_runs.theorems_findings import Finding, findings_table, wide_console
from gpu_runs.theorems_layers import LayerReport, random_scales
from gpu_runs.theorems_lengths import LengthReport, length_findings
from gpu_runs.theorems_memo import PrefixMemo
from gpu_runs.theorems_plan import PARTS, Plan, as_json, planned
from gpu_runs.theorems_text import read_texts, run_length_findings, text_findings
from univer import PAPER, InputError
from univer.decoding import eos_ids, seeded

SCALES_A_NODE = 2  # random ones, beside 1
OTHERS_A_NODE = 2  # sampled children at which the closed form is compared with the rule


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--target", default=EMBEDDED, help="smollm2 (embedded), a folder or hub id.")
@click.option(
    "--drafter",
    default=SHIPPED,
    help=DRAFTER_HELP,
)
@click.option("--parts", default=",".join(PARTS), help="Which checks, with commas between them.")
@click.option("--topology", "topologies", multiple=True, default=("2x5", "3x3"), help="Of trees.")
@click.option("--temperature", default=1.0, help="For draft and target alike.")
@click.option("--top-k", default=0, help="Keep the k most probable tokens; 0 keeps all.")
@click.option("--top-p", default=1.0, help="Keep the most probable tokens of this mass.")
@click.option("--nodes", default=2400, help="Nodes of the part layers.")
@click.option("--trees", default=960, help="Contexts of layers and lengths, a tree a topology.")
@click.option("--prompts", default=3, help="Prompts of the part direct, of different categories.")
@click.option("--cycles", default=20_000, help="Of the part direct, a verifier, over all prompts.")
@click.option("--direct-topology", default="2x2", help="Of the trees in direct and faults.")
@click.option("--runs", multiple=True, type=click.Path(path_type=Path), help="Run folders: text.")
@click.option("--seed", default=0, help="Of all random numbers.")
@click.option("--threads", default=0, help="CPU threads; 0 leaves torch's choice.")
@click.option("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results here.")
def main(**options: Any) -> None:
    """Check Theorems 3 to 6 and Lemma 1 on a real model's trees and text."""
    with one_sentence("interrupted; nothing was written."):
        held = run(**options)
    sys.exit(0 if held else 1)


def run(
    *,
    target: str,
    drafter: str,
    seed: int,
    threads: int,
    device: str,
    output: Path | None,
    **options: Any,
) -> bool:
    """Run the checks; whether everything held.

    Raises:
        InputError: an option that does not fit, or a model or run that cannot be read.
    """
    plan = planned(**options)
    if output is not None:
        check_writable(output)
    check_threads(threads)
    seeded(seed)
    use_threads(threads)
    console = wide_console()
    texts = read_texts(plan.runs) if plan.runs and "text" in plan.parts else {}
    started = time.perf_counter()
    findings: list[Finding] = []
    if set(plan.parts) - {"text"}:
        place = usable_device(device)
        loaded, source = load_pair(target, drafter, place, console)
        prompts = encoded_prompts(loaded)
        for names, check in CHECKS.items():
            if names & set(plan.parts):
                findings += shown(console, check(console, loaded, source, prompts, plan, seed))
    if texts:
        findings += shown(console, text_findings(texts) + run_length_findings(plan.runs))
    elif "text" in plan.parts:
        console.print("text: skipped, as no --runs were given.", highlight=False)
    if not findings:
        raise InputError("parts: nothing is left to check; give --runs for the part text.")
    title = "Theorems on real nodes and real text"
    console.print(findings_table(findings, title=title, ascii_only=not console.is_terminal))
    held = all(row.holds for row in findings)
    undecided = [row.claim for row in findings if row.undecided and not row.holds]
    if undecided:
        console.print(f"open, more --trees would tell: {len(undecided)}", highlight=False)
    console.print("everything holds" if held else "something does NOT hold", highlight=False)
    if output is not None:
        results = {
            "target": target,
            "drafter": Path(drafter).name,
            "seed": seed,
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - started),
            "plan": as_json(plan),
            "held": held,
            "findings": [asdict(row) for row in findings],
        }
        write_json(output, results)
    return held


def shown(console: Console, findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings, a line each: a long report is read while the rest is on its way."""
    for row in findings:
        console.print(f"{row.verdict}: {row.claim}: {row.found}", highlight=False, markup=False)
    return findings


def tree_findings(
    console: Console,
    target: LoadedModel,
    drafter: Any,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    plan: Plan,
    seed: int,
) -> list[Finding]:
    """The parts layers and lengths, on the same trees."""
    layers = LayerReport()
    lengths = {name: LengthReport(name) for name in plan.topologies}
    each = ceil(plan.nodes / plan.trees)
    # A stream of its own, so that parts that are left out change nothing in the others.
    chooses = seeded(seed)
    found = contexts(
        target.model,
        drafter,
        prompts,
        plan.topologies,
        filters=plan.filters,
        ends=eos_ids(None, target.model),
        generator=seeded(seed),
    )
    with Ticker(console, "trees", "contexts", plan.trees) as ticker:
        for number in range(1, plan.trees + 1):
            context = next(found)
            if "layers" in plan.parts:
                drawn = next(iter(context.drawn.values()))
                for node in nodes_of(drawn, each, chooses):
                    others = torch.multinomial(node.draft, OTHERS_A_NODE, True, generator=chooses)
                    fixed = set(node.children[:-1].tolist())
                    compared = [u for u in [*others.tolist(), int(node.children[-1])]
                                if u >= 0 and u not in fixed]  # fmt: skip
                    layers.add(node, random_scales(SCALES_A_NODE, chooses), compared)
            if "lengths" in plan.parts:
                for name, drawn in context.drawn.items():
                    lengths[name].add(context.prompt_id, drawn)
            ticker.tick(number, number, f"{layers.nodes} nodes")
    rows = layers.findings() if "layers" in plan.parts else []
    return rows + (length_findings(lengths) if "lengths" in plan.parts else [])


def sampled_findings(
    console: Console,
    target: LoadedModel,
    drafter: Any,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    plan: Plan,
    seed: int,
) -> list[Finding]:
    """The parts direct and faults."""
    generator = seeded(seed)
    memos = [
        PrefixMemo(target.model, drafter, ids, plan.filters) for _, ids in prompts[: plan.prompts]
    ]
    rows: list[Finding] = []
    jobs: Mapping[str, Any] = {
        "direct": lambda tick: direct_findings(
            memos, plan.direct_topology, plan.cycles, generator, tick
        ),
        "faults": lambda tick: fault_findings(memos[0], plan.direct_topology, generator, tick),
    }
    totals = {"direct": len(PAPER) * plan.cycles, "faults": len(PLANTED) * (PILOT + BATCH)}
    for part in (name for name in jobs if name in plan.parts):
        with Ticker(console, part, "cycles", totals[part]) as ticker:

            def tick(cycles: int, ticker: Ticker = ticker) -> None:
                done = ticker.done + cycles
                ticker.tick(done, int(done), f"{sum(memo.known for memo in memos)} rows known")

            rows += jobs[part](tick)
    return rows


CHECKS: dict[frozenset[str], Any] = {
    frozenset({"layers", "lengths"}): tree_findings,
    frozenset({"direct", "faults"}): sampled_findings,
}


if __name__ == "__main__":
    main()
