"""Decoding on dynamic trees: whose trees and laws they are, cycle after cycle, and the gate.

The tree that a drafter's cache gave is compared with the oracle's tree of plain forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.dynamic_tree import dynamic_tree
from stattests.behaviour.test_decoding_edges import greedy_text
from stattests.behaviour.test_decoding_laws import (
    EXACT,
    FILTERS,
    PROMPT,
    PlainRows,
    assert_laws_are_plain,
)
from stattests.behaviour.test_eagle import models as eagle_models
from stattests.behaviour.test_eagle import plain_path
from stattests.behaviour.tiny_models import tiny_llama
from stattests.gate import certify
from stattests.subject import of_object
from stattests.verdict import Verdict
from univer import DraftTree, Filters, InputError, StopLaw, VerifyOutput, stop_law, verify
from univer.decoding import Auto, Decoder, Dynamic, decode, generate, seeded, speculative
from univer.drafters.layer_skip import layer_skip
from univer.dynamic_tree import prune

NAME = "target_only"
SHAPES = ("dynamic:3x3:7", "dynamic:2x4:20", "dynamic:10x2:9")  # the last is wider than V = 8
BUDGET = 12
Rows = Callable[[tuple[int, ...]], Tensor]  # path -> logits [V]


@cache
def models(kind: str) -> tuple[Any, Any]:
    """A target and a drafter."""
    if kind == "eagle":
        return eagle_models()
    target = tiny_llama(3, layers=4)
    return target, layer_skip(target, 1) if kind == "layer-skip" else tiny_llama(7, layers=1)


@cache
def plain(kind: str) -> tuple[PlainRows, Callable[[tuple[int, ...]], Rows]]:
    """By plain forwards: the target's logits after a text, the drafter's behind it after a path."""
    target, drafter = models(kind)
    if kind == "eagle":
        drafts = cache(lambda text: cache(partial(plain_path, target, drafter, text)))
        return PlainRows(target), drafts
    rows = PlainRows(drafter)
    return PlainRows(target), lambda text: lambda path: rows([*text, *path])


def behind(text: Sequence[int], rows: Rows) -> Any:
    """The rows of paths behind a text, by the whole prefix."""
    start = len(text)
    return lambda prefix: rows(tuple(prefix[start:]))


def check_cycles(kind: str, shape: Dynamic, filters: Filters) -> int:
    """Each cycle's tree is the oracle's, its laws are plain forwards'; returns how many accepted.

    At temperature 0, where laws are one-hot, the oracle ranks by softmax(logits).
    """
    (target, drafter), (targets, drafts) = models(kind), plain(kind)
    text, accepted = list(PROMPT), 0
    shaping = Filters() if filters.greedy else filters
    options: dict[str, Any] = {"max_new_tokens": BUDGET, "generator": seeded(1)}
    for cycle in decode(
        target, drafter, PROMPT, verifier=NAME, topology=shape, filters=filters, **options
    ):
        rows, drawn = drafts(tuple(text)), cycle.drawn
        laws = cache(lambda path, rows=rows: shaping(rows(path)).numpy())
        exact = dynamic_tree(laws, shape.width, shape.depth, shape.size)
        assert drawn.tree.topology.parents == exact.topology.parents
        assert drawn.tree.tokens[0, 1:].tolist() == list(exact.tokens[1:])
        assert torch.equal(filters(drawn.draft_logits), drawn.draft_probs)
        assert_laws_are_plain(cycle, text, targets, behind(text, rows), filters, EXACT)
        accepted += cycle.record.num_accepted
        text += cycle.record.tokens
    assert len(text) == len(PROMPT) + BUDGET
    return accepted


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["small-model", "layer-skip", "eagle"])
def test_trees_are_the_oracles_and_laws_are_plain(kind: str, shape: str) -> None:
    assert sum(check_cycles(kind, Dynamic.parse(shape), filters) for filters in FILTERS) > 0


def test_nodes_that_the_drafter_keeps_by_wrong_ids_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = Decoder.draw

    def renumbered(self: Decoder, *law: Any, **options: Any) -> Any:
        drawn = draw(self, *law, **options)
        self._drafters_ids = range(drawn.tree.topology.num_nodes)
        return drawn

    monkeypatch.setattr(Decoder, "draw", renumbered)
    with pytest.raises(AssertionError, match="draft"):
        test_trees_are_the_oracles_and_laws_are_plain("layer-skip", SHAPES[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["small-model", "layer-skip", "eagle"])
def test_temperature_0_gives_the_greedy_text(kind: str, shape: str) -> None:
    target, drafter = models(kind)
    text = greedy_text(target, 20)
    prompt = torch.tensor([[1, 5, 2]])
    options: dict[str, Any] = {"verifier": NAME, "topology": shape}
    done = generate(target, drafter, prompt, temperature=0.0, max_new_tokens=20, seed=1, **options)
    assert list(done.tokens) == text
    assert done.acceptance_length > 1
    loop = speculative(drafter, **options)
    ids = target.generate(prompt, custom_generate=loop, do_sample=False, max_new_tokens=20)
    assert ids[0, 3:].tolist() == text


def test_of_width_1_it_is_a_chain_and_no_token_is_fed_twice() -> None:
    fed: dict[str, list[int]] = {"target": [], "drafter": []}
    target, drafter = tiny_llama(3), tiny_llama(3)
    for name, model in (("target", target), ("drafter", drafter)):
        model.register_forward_pre_hook(
            lambda _, __, given, name=name: fed[name].append(given["input_ids"].shape[1]),
            with_kwargs=True,
        )
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 15, "seed": 1}
    generate(target, drafter, PROMPT, verifier=NAME, topology=Dynamic(1, 4, 4), **options)
    assert fed["target"] == [len(PROMPT) + 4, 5, 5]
    assert fed["drafter"] == [len(PROMPT), 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]


def test_the_text_may_fill_every_position_of_the_models() -> None:
    short, long = (tiny_llama(3, max_positions=positions) for positions in (16, 64))
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 13, "seed": 1}
    done = generate(short, short, [1, 5, 2], verifier=NAME, topology=SHAPES[1], **options)
    assert list(done.tokens) == greedy_text(long, 13)


def test_a_seed_fixes_the_text_however_the_tree_is_told() -> None:
    target, drafter = models("small-model")
    loop = speculative(drafter, verifier=NAME, topology="dynamic:3x3:7", generator=seeded(5))
    prompt = torch.tensor([PROMPT])
    ids = target.generate(prompt, custom_generate=loop, do_sample=True, max_new_tokens=BUDGET)
    for shape in (Dynamic(3, 3, 7), " Dynamic:3x3:7"):
        done = generate(
            target, drafter, prompt, verifier=NAME, topology=shape, max_new_tokens=BUDGET, seed=5
        )
        assert list(done.tokens) == ids[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"verifier": "univer", "topology": Dynamic(2, 2, 3)},
            r"^verifier: a dynamic tree .* 'top'\), .* drafted by 'top_residual'; choose .target_o",
        ),
        ({"verifier": "rrsw", "topology": "dynamic:2x2:3"}, "drafted by 'without_replacement'"),
        ({"verifier": NAME, "topology": "dynamic:2x2"}, "^topology: cannot read 'dynamic:2x2'; "),
        (
            {"verifier": NAME, "topology": "dynamic:0x2:3"},
            "^width: expected an integer >= 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], says: str) -> None:
    target, drafter = models("small-model")
    with pytest.raises(InputError, match=says):
        generate(target, drafter, PROMPT, max_new_tokens=4, seed=0, **options)
    with pytest.raises(InputError, match=says):
        speculative(drafter, **options)


def test_auto_takes_no_dynamic_tree() -> None:
    with pytest.raises(InputError, match=r"^topology: cannot read Dynamic"):
        Auto((Dynamic(2, 2, 3),))  # type: ignore[arg-type]


class Pruned:
    """The four best nodes of a fixed `top` tree."""

    drafting = "top"

    def verify(
        self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, *, uniforms: Tensor
    ) -> VerifyOutput:
        """What is decided on the tree that is left."""
        kept = prune(tree, draft_probs, 4)
        return verify(NAME, kept, target_probs, draft_probs, uniforms=uniforms)

    def stop_law(self, tree: DraftTree, target_probs: Tensor, draft_probs: Tensor) -> StopLaw:
        """Its exact law."""
        return stop_law(NAME, prune(tree, draft_probs, 4), target_probs, draft_probs)


@pytest.mark.stat
def test_pruned_trees_are_certified() -> None:
    report = certify(of_object("pruned", Pruned()), asked="smoke")
    assert report.verdict is Verdict.CERTIFIED, report.detail
    assert {"L0", "L1"} <= {result.layer for result in report.results}
