"""The decoding loop behind a drafter that stops early: laws, decisions and caches are the oracle's.

Our own drafters fill their trees; here the loop's drafting is cut at random places. Each decision
is compared with the reference's, on rows looked up by prefix and with the same uniforms.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import reference
from reference.decision import Tree
from stattests.behaviour.test_decoding_lossless import PROMPT, TABLE_DEPTH, tables
from stattests.early_stops import cut_trees
from stattests.streams import torch_generator
from univer import VERIFIERS, DraftTree, Filters, Topology, decoder
from univer.decoder import Decoder, Drawn
from univer.drafting import draft_tree

TEXTS = 40
DEPTH = 2


@pytest.fixture(autouse=True)
def _drafting_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other node keeps fewer children than the law draws."""
    stops = torch_generator("stops")

    def cut(drafting: str, *arguments: Any, **named: Any) -> Any:
        tree, laws = draft_tree(drafting, *arguments, **named)
        tokens = cut_trees(tree.topology, tree.tokens, drafting, 0.5, stops)
        return DraftTree(tree.topology, tokens), laws

    monkeypatch.setattr(decoder, "draft_tree", cut)


def oracle(name: str, drawn: Drawn, text: list[int], uniforms: torch.Tensor) -> Any:
    """The reference's decision on the tree, its rows looked up by path."""
    target, drafter = tables()
    topology, tokens = drawn.tree.topology, drawn.tree.tokens[0].tolist()
    paths = [[tokens[v] for v in topology.path(node)] for node in range(topology.num_nodes)]

    def law(table: Any, path: list[int]) -> Any:
        # Rows of absent nodes mean nothing: any law.
        return Filters()(table.rows[(*text, *(path if -1 not in path else ()))]).numpy()

    return reference.VERIFIERS[name].verify(
        Tree(topology, tuple(tokens)),
        [law(target, path) for path in paths],
        [law(drafter, paths[node]) for node in topology.internal],
        uniforms=uniforms[0].numpy(),
    )


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_decisions_of_the_loop_are_the_references(name: str) -> None:
    most = VERIFIERS[name].max_arity or 3
    topology = Topology.parse(f"{min(most, 3)}x{DEPTH}")
    generator, empty, cycles = torch_generator(f"loop/{name}"), 0, 0
    for _ in range(TEXTS):
        loop = Decoder(*tables(), PROMPT, filters=Filters(), max_new_tokens=TABLE_DEPTH)
        while len(loop.text) + DEPTH <= len(PROMPT) + TABLE_DEPTH:
            drawn = loop.draw(VERIFIERS[name].drafting, topology, generator=generator)
            again = torch.Generator()
            again.set_state(generator.get_state())
            shape = (1, topology.num_nodes + 1)
            uniforms = torch.rand(shape, dtype=torch.float64, generator=again)
            output = loop.decide(name, drawn, generator=generator)
            expected = oracle(name, drawn, loop.text, uniforms)
            assert output.tokens[0].tolist() == expected.tokens.tolist()
            empty += bool((drawn.tree.tokens < 0).any())
            cycles += 1
            loop.advance(output)
    assert empty > cycles / 3


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_greedy_text_is_the_targets_own(name: str) -> None:
    target, _ = tables()
    topology = Topology.parse(f"{min(VERIFIERS[name].max_arity or 3, 3)}x{DEPTH}")
    own = list(PROMPT)
    while len(own) < len(PROMPT) + TABLE_DEPTH:
        own.append(int(target.rows[tuple(own)].argmax()))
    for seed in range(8):
        loop = Decoder(*tables(), PROMPT, filters=Filters(0.0), max_new_tokens=TABLE_DEPTH)
        generator = torch_generator(f"greedy/{name}", batch=seed)
        while len(loop.text) + DEPTH <= len(own):
            drawn = loop.draw(VERIFIERS[name].drafting, topology, generator=generator)
            loop.advance(loop.decide(name, drawn, generator=generator))
            assert loop.text[: len(own)] == own[: len(loop.text)]
