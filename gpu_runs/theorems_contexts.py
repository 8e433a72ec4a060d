"""Real contexts for the theorems: UniVer writes on from every prompt, a drawn tree a cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpu_runs.paired import TOKENS_A_VISIT, positions_needed, visits
from gpu_runs.prompts import Prompt
from gpu_runs.theorems_layers import Node
from univer import Filters, Topology, verify
from univer.decoding import Decoder, Drawn, until_end
from univer.rows import normalise

WRITER, DRAFTING = "univer", "top_residual"  # the draft law that all of these theorems are about


@dataclass(frozen=True)
class Context:
    """A place in a text, with a tree of each topology drawn there."""

    prompt_id: str
    drawn: dict[str, Drawn]


def contexts(
    target: Any,
    drafter: Any,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    topologies: Mapping[str, Topology],
    *,
    filters: Filters,
    ends: frozenset[int],
    generator: torch.Generator,
) -> Iterator[Context]:
    """Contexts without end: the prompts in turn, TOKENS_A_VISIT tokens or up to EOS a visit.

    Args:
        target: a causal LM.
        drafter: another one, or a Drafter.
        prompts: each with its token ids.
        topologies: of the trees; the last one's carries the text on.
        filters: for draft and target alike.
        ends: token ids that end a visit.
        generator: where the random numbers come from.
    """
    ids = {prompt.prompt_id: tokens for prompt, tokens in prompts}
    deepest = max(topologies.values(), key=lambda shape: shape.depth)
    for prompt, _ in visits([prompt for prompt, _ in prompts], (WRITER,)):
        start = ids[prompt.prompt_id]
        budget = positions_needed(len(start), deepest) - len(start)
        decoder = Decoder(target, drafter, start, filters=filters, max_new_tokens=budget)
        left = TOKENS_A_VISIT
        while left > 0:
            drawn = {
                name: decoder.draw(DRAFTING, shape, generator=generator)
                for name, shape in topologies.items()
            }
            yield Context(prompt.prompt_id, drawn)
            last = list(drawn.values())[-1]
            laws = (last.target_probs, last.draft_probs)
            output = verify(WRITER, last.tree, *laws, generator=generator)
            decoder.advance(output)
            emitted = [token for token in output.tokens[0].tolist() if token >= 0]
            tokens = until_end(emitted[:left], ends)
            left = 0 if tokens[-1] in ends else left - len(tokens)


def nodes_of(drawn: Drawn, most: int, generator: torch.Generator) -> list[Node]:
    """At most so many internal nodes that are in the tree, chosen at random; float64 on the CPU."""
    topology, tokens = drawn.tree.topology, drawn.tree.tokens[0].cpu()
    there = [(row, v) for row, v in enumerate(topology.internal) if v == 0 or tokens[v] >= 0]
    chosen = torch.randperm(len(there), generator=generator)[:most].tolist()
    nodes = []
    for row, v in (there[i] for i in chosen):
        laws = (drawn.target_probs[0, v], drawn.draft_probs[0, row])
        target, draft = (normalise(law.cpu().double()[None])[0] for law in laws)
        nodes.append(Node(target, draft, tokens[list(topology.children(v))]))
    return nodes
