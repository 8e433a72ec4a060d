"""`python -m gpu_runs.device_check`: verifiers and decoding on a device, against the CPU.

| check | what must agree |
|---|---|
| verify | decisions of the same trees, laws and uniforms, float32 and float64 laws |
| stop_law | expected lengths and stop probabilities, to rounding |
| laws | a random Llama's laws on a drawn tree, float32 |
| text | texts of a random Llama with an EAGLE head, float64, greedy and sampled |
| kernels | decisions of the Triton kernels and the plain path, with their times (`kernel_times`) |

The head has the shapes of the shipped one (width 576, 49,152 tokens), the Llama its width and a few
layers; both are random, so that nothing has to be downloaded. Run it by `gpu_runs/device_check.sh`.

Letters: B trees, N nodes, V vocabulary.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_runs import kernel_times
from gpu_runs.models import usable_device
from gpu_runs.results import check_writable, write_json
from gpu_runs.theorems_findings import Finding, at_most, findings_table, wide_console
from univer import (
    PAPER,
    VERIFIERS,
    DraftTree,
    Filters,
    InputError,
    Topology,
    draft_tree,
    stop_law,
    verify,
)
from univer.decoding import Decoder, generate, seeded
from univer.drafters.eagle import EagleHead
from univer.drafters.eagle_network import EagleNetwork

VOCABULARY, WIDTH, MLP, HEADS, KEY_VALUE_HEADS = 49_152, 576, 1536, 9, 3  # of the shipped head
LAYERS = 4  # of the random target
TREES = 8
SHAPES = ("2x5", "eagle", "chain:5")
TOKENS = 48
PROMPT = tuple(range(100, 140))
# The decision is float64 whatever the laws; sums of 49,152 terms in another order differ by less.
STOP_LIMIT = 1e-11
LAW_LIMIT = 1e-4  # float32 laws of a small model, sums in another order: some 1e-6


@click.command(context_settings={"show_default": True})
@click.option("--device", default="cuda", help="cuda, cuda:1, ...; cpu compares the CPU to itself.")
@click.option("--vocabulary", default=VOCABULARY, help="Smaller for a quick look.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results here.")
def main(device: str, vocabulary: int, output: Path | None) -> None:
    """Compare a device with the CPU; exit code 1 if they differ."""
    try:
        if output is not None:
            check_writable(output)
        passed = run(usable_device(device), vocabulary, output)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    sys.exit(0 if passed else 1)


def run(device: torch.device, vocabulary: int, output: Path | None) -> bool:
    """All checks; whether they passed."""
    console, started = wide_console(), time.perf_counter()
    rows: list[Finding] = []
    checks = (
        decisions(device, vocabulary),
        models(device, vocabulary),
        kernel_times.findings(device),
    )
    for found in chain.from_iterable(checks):
        console.print(f"{found.claim}: {found.found}", highlight=False, soft_wrap=True)
        rows.append(found)
    title = f"{device_name(device)} against the CPU, torch {torch.__version__}"
    console.print(findings_table(rows, title=title, ascii_only=not console.is_terminal))
    passed = all(row.holds for row in rows)
    if output is not None:
        write_json(
            output,
            {
                "device": device_name(device),
                "torch": torch.__version__,
                "seconds": round(time.perf_counter() - started),
                "passed": passed,
                "findings": [asdict(row) for row in rows],
            },
        )
    return passed


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def random_laws(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Peaked laws over the last axis, on the CPU."""
    return (3 * torch.randn(*shape, generator=seeded(seed), dtype=dtype)).softmax(-1)


def decisions(device: torch.device, vocabulary: int) -> Iterator[Finding]:
    """`verify` and `stop_law` on both devices, for every verifier, shape and dtype of the laws."""
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        differ, off, trees = 0, 0.0, 0
        for seed, shape in enumerate(SHAPES):
            topology = Topology.parse(shape)
            target = random_laws(TREES, topology.num_nodes, vocabulary, dtype=dtype, seed=2 * seed)
            draft = (target[:, list(topology.internal)] + random_laws(
                TREES, len(topology.internal), vocabulary, dtype=dtype, seed=2 * seed + 1
            )) / 2  # fmt: skip
            rows = {v: row for row, v in enumerate(topology.internal)}
            for verifier in PAPER:
                tree, _ = draft_tree(
                    VERIFIERS[verifier].drafting,
                    topology,
                    torch.zeros(TREES, dtype=torch.int64),
                    lambda _, nodes, draft=draft, rows=rows: (  # type: ignore[misc]
                        draft[:, [rows[v] for v in nodes]],
                        None,
                    ),
                    generator=seeded(seed),
                )
                uniforms = torch.rand(
                    TREES, topology.num_nodes + 1, generator=seeded(seed), dtype=torch.float64
                )
                here = verify(verifier, tree, target, draft, uniforms=uniforms)
                law = stop_law(verifier, tree, target, draft)
                moved = DraftTree(topology, tree.tokens.to(device))
                laws = (target.to(device), draft.to(device))
                there = verify(verifier, moved, *laws, uniforms=uniforms.to(device))
                other = stop_law(verifier, moved, *laws)
                differ += int((here.tokens != there.tokens.cpu()).any(1).sum())
                off = max(off, float((law.stop_probs - other.stop_probs.cpu()).abs().max()))
                trees += TREES
        yield at_most(f"verify, {name} laws", "decisions that differ", differ, 0, trees, "trees")
        yield at_most(
            f"stop_law, {name} laws", "largest difference", off, STOP_LIMIT, trees, "trees"
        )


def random_pair(vocabulary: int, dtype: torch.dtype) -> tuple[Any, EagleHead]:
    """A random Llama and a random head of the shipped shapes, on the CPU."""
    llama: Any = LlamaConfig
    config = llama(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
        network = EagleNetwork(config, final_norm=True)
    return model.to(dtype).eval(), EagleHead(network.to(dtype).eval())


def moved_pair(
    pair: tuple[Any, EagleHead], device: torch.device, dtype: torch.dtype
) -> tuple[Any, EagleHead]:
    """The same on a device."""
    return pair[0].to(device, dtype), EagleHead(pair[1].network.to(device, dtype))


def models(device: torch.device, vocabulary: int) -> Iterator[Finding]:
    """Laws in float32, texts in float64 and speed in bfloat16 of the random pair."""
    shape, filters = Topology.parse("2x5"), Filters()
    found = []
    for where in (torch.device("cpu"), device):
        model, head = moved_pair(random_pair(vocabulary, torch.float32), where, torch.float32)
        decoder = Decoder(model, head, PROMPT, filters=filters, max_new_tokens=TOKENS)
        drawn = decoder.draw("top_residual", shape, generator=seeded(0))
        found.append((drawn.tree.tokens.cpu(), drawn.target_probs.cpu()))
    (first, laws), (second, others) = found
    off = float((laws - others).abs().max()) if torch.equal(first, second) else float("inf")
    claim = "laws of a drawn tree, float32 model"
    yield at_most(claim, "largest difference", off, LAW_LIMIT, shape.num_nodes, "nodes")
    pairs = [
        moved_pair(random_pair(vocabulary, torch.float64), where, torch.float64)
        for where in (torch.device("cpu"), device)
    ]
    for verifier in PAPER:
        differ = 0
        for temperature in (0.0, 1.0):
            texts = [_text(*pair, verifier, temperature) for pair in pairs]
            differ += sum(one != two for one, two in zip(*texts, strict=True))
        claim = f"text of {verifier}, float64 models, temperatures 0 and 1"
        yield at_most(claim, "tokens that differ", differ, 0, 2 * TOKENS, "tokens")
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model, head = moved_pair(random_pair(vocabulary, torch.float32), device, dtype)
    _text(model, head, "univer", 1.0)  # the first text compiles and allocates
    start = time.perf_counter()
    tokens = _text(model, head, "univer", 1.0)
    rate = len(tokens) / (time.perf_counter() - start)
    name = str(dtype).removeprefix("torch.")
    yield Finding(
        f"a text in {name}", f"{rate:.1f} tokens a second", f"{TOKENS} tokens", rate,
        len(tokens), "tokens", len(tokens) == TOKENS,
    )  # fmt: skip


def _text(model: Any, head: EagleHead, verifier: str, temperature: float) -> tuple[int, ...]:
    return generate(
        model,
        head,
        PROMPT,
        verifier=verifier,
        temperature=temperature,
        max_new_tokens=TOKENS,
        eos_token_id=(),
        seed=0,
    ).tokens


if __name__ == "__main__":
    main()
