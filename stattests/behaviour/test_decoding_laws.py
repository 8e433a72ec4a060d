"""The laws handed to `verify` are those of plain forwards over each node's path, cycle after cycle.

A wrong mask, position, cache slot, filter or temperature shows here as a difference of laws, before
any statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from stattests.behaviour.tiny_models import LAW_TOLERANCE, plain_logits, tiny_llama
from stattests.crosscheck.both import fitting
from univer import PAPER, VERIFIERS, Filters, Topology, verify
from univer.decoding import Cycle, Decoder, decode
from univer.drafters.layer_skip import layer_skip

RAGGED = [[0], [1], [2], [0, 0], [1, 0], [1, 1], [1, 1, 0]]  # leaves at depths 1, 2 and 3
TOPOLOGIES: dict[str, Any] = {
    "2x2": "2x2",
    "chain:3": "chain:3",
    "ragged": RAGGED,
    "10x1": "10x1",
    "none": "none",
}
FILTERS = [
    Filters(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (1.0, 0.5, 0.0)
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.8, 0.0), (5, 0.9, 0.1))
]
PROMPT = [1, 5, 2, 2, 7]
BUDGET = 7
ENDS = (0, 2)  # EOS ids, one of them in the prompt, too: there it ends nothing
EXACT = LAW_TOLERANCE[torch.float64]


def drafter_of(kind: str, target: object, dtype: torch.dtype) -> object:
    if kind == "layer-skip":
        return layer_skip(target, 1)
    return target if kind == "itself" else tiny_llama(7, layers=1, dtype=dtype)


class PlainRows:
    """The logits after a prefix, by a plain forward over all of it, made once."""

    def __init__(self, model: object) -> None:
        self._model = model
        self._rows: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, prefix: Sequence[int]) -> Tensor:
        """The row [V] after this prefix."""
        key = tuple(prefix)
        if key not in self._rows:
            for end, row in enumerate(plain_logits(self._model, key), start=1):
                self._rows.setdefault(key[:end], row)
        return self._rows[key]


@cache
def models(kind: str, dtype: torch.dtype) -> tuple[Any, Any, PlainRows, PlainRows]:
    """The target, a drafter and the plain rows of both; decoding changes neither."""
    target = tiny_llama(3, layers=4, dtype=dtype)
    drafter = drafter_of(kind, target, dtype)
    return target, drafter, PlainRows(target), PlainRows(drafter)


def assert_laws_are_plain(
    cycle: Cycle,
    text: list[int],
    target: PlainRows,
    drafter: PlainRows,
    filters: Filters,
    atol: float,
) -> None:
    topology, tokens = cycle.drawn.tree.topology, cycle.drawn.tree.tokens[0].tolist()
    for node in reversed(range(topology.num_nodes)):  # the longest prefixes first
        path = [tokens[v] for v in topology.path(node)]
        if -1 in path:
            continue
        expected = filters(target([*text, *path]))
        torch.testing.assert_close(
            cycle.drawn.target_probs[0, node], expected, atol=atol, rtol=0, msg=f"target, {node}"
        )
        if node in topology.internal:
            expected = filters(drafter([*text, *path]))
            drawn = cycle.drawn.draft_probs[0, topology.internal.index(node)]
            if filters.greedy:  # one-hot laws do not rank the tokens after the first: logits do
                children = [tokens[v] for v in topology.children(node)]
                best = drafter([*text, *path]).argsort(descending=True, stable=True).tolist()
                best += [-1] * len(children)
                if children[1:] == children[:-1]:  # drawn with replacement, all from one token
                    best = best[:1] * len(children)
                assert children == best[: len(children)]
            torch.testing.assert_close(drawn, expected, atol=atol, rtol=0, msg=f"draft, {node}")


def decoded_text(
    target: Any, drafter: Any, plain: PlainRows, plain_draft: PlainRows, atol: float, **options: Any
) -> list[int]:
    """The text of a decoding, prompt excluded, every cycle's laws checked on the way."""
    text = list(PROMPT)
    for cycle in decode(target, drafter, PROMPT, max_new_tokens=BUDGET, **options):
        assert cycle.drawn.target_probs.dtype == target.dtype
        assert_laws_are_plain(cycle, text, plain, plain_draft, options["filters"], atol)
        text += cycle.record.tokens
    return text[len(PROMPT) :]


# In float32 one of each draft law, rule and composition: what rounds does not ask which meet.
IN_FLOAT32, KINDS = ("rrsw", "univer"), ("small-model", "layer-skip")
# What drafts does not ask who decides: the other drafters meet one verifier of each draft law.
WAYS = [
    *((name, torch.float64, "small-model") for name in PAPER),
    *((name, torch.float64, kind) for name in IN_FLOAT32 for kind in ("layer-skip", "itself")),
    *((name, torch.float32, kind) for name, kind in zip(IN_FLOAT32, KINDS, strict=False)),
]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(
    ("verifier", "dtype", "kind"), WAYS, ids=lambda part: str(part).split(".")[-1]
)
def test_laws_equal_plain_forwards(
    verifier: str, dtype: torch.dtype, topology: str, kind: str
) -> None:
    target, drafter, plain, plain_draft = models(kind, dtype)
    lengths: dict[tuple[int, ...], list[int]] = {(): [], ENDS: []}
    for filters, ends in product(FILTERS, lengths):
        text = decoded_text(
            target,
            drafter,
            plain,
            plain_draft,
            LAW_TOLERANCE[dtype],
            verifier=verifier,
            topology=TOPOLOGIES[topology],
            filters=filters,
            eos_token_id=ends,
            # Other texts where EOS is reachable, not the beginnings of the same ones.
            generator=torch.Generator().manual_seed(11 + len(ends)),
        )
        lengths[ends].append(len(text))
        assert not set(ends) & set(text[:-1])
        assert len(text) == BUDGET or text[-1] in ends
    assert set(lengths[()]) == {BUDGET}
    assert min(lengths[ENDS]) < BUDGET


OTHERS = {
    row.drafting: name
    for name, row in VERIFIERS.items()
    if row.drafting not in {VERIFIERS[name].drafting for name in PAPER}
}


@pytest.mark.parametrize("verifier", OTHERS.values())
def test_laws_equal_plain_forwards_for_the_other_draft_laws(verifier: str) -> None:
    """Twins among siblings, pairs, and children that are all fixed."""
    models_and_rows = models("small-model", torch.float64)
    for filters in FILTERS:
        text = decoded_text(
            *models_and_rows,
            EXACT,
            verifier=verifier,
            topology=fitting(verifier, "2x3"),
            filters=filters,
            generator=torch.Generator().manual_seed(11),
        )
        assert len(text) == BUDGET


# Eager attention takes its softmax in float32 whatever the model's dtype: each weight is rounded by
# 6e-8 of itself, less than in a float32 model, and a hundredfold through the layers is allowed.
EAGER_TOLERANCE = 100 * 2.0**-24


@pytest.mark.parametrize(("attention", "atol"), [("sdpa", EXACT), ("eager", EAGER_TOLERANCE)])
def test_both_attentions_give_the_plain_laws(attention: str, atol: float) -> None:
    target = tiny_llama(3, attention=attention)
    plain, text = PlainRows(target), list(PROMPT)
    generator = torch.Generator().manual_seed(0)
    for cycle in decode(target, target, PROMPT, max_new_tokens=12, generator=generator):
        assert_laws_are_plain(cycle, text, plain, plain, Filters(), atol)
        text += cycle.record.tokens


def test_a_second_tree_in_the_same_context_sees_the_same_laws() -> None:
    target, drafter = tiny_llama(3), tiny_llama(7)
    decoder = Decoder(target, drafter, PROMPT, filters=Filters(), max_new_tokens=30)
    generator = torch.Generator().manual_seed(5)
    shape = Topology.parse("2x3")
    for _ in range(3):
        for drafting in ("without_replacement", "top_residual"):
            drawn = decoder.draw(drafting, shape, generator=generator)
            for node in range(shape.num_nodes):
                path = [int(drawn.tree.tokens[0, v]) for v in shape.path(node)]
                expected = Filters()(plain_logits(target, [*decoder.text, *path])[-1])
                torch.testing.assert_close(
                    drawn.target_probs[0, node], expected, atol=EXACT, rtol=0
                )
        decoder.advance(
            verify("univer", drawn.tree, drawn.target_probs, drawn.draft_probs, generator=generator)
        )


def test_layer_skip_is_the_model_of_the_chosen_layers() -> None:
    target = tiny_llama(3, layers=5)
    expected = tiny_llama(4, layers=4)  # other weights, replaced by the target's below
    weights = target.state_dict()
    for name in expected.state_dict():
        source = name
        if name.startswith("model.layers."):
            slot = int(name.split(".")[2])
            source = name.replace(f"layers.{slot}.", f"layers.{slot + (slot >= 2)}.", 1)
        expected.state_dict()[name].copy_(weights[source])
    skipped = layer_skip(target, 2)
    torch.testing.assert_close(
        plain_logits(skipped, PROMPT), plain_logits(expected, PROMPT), atol=EXACT, rtol=0
    )


def test_layer_skip_shares_weights_and_leaves_the_target_alone() -> None:
    target = tiny_llama(3, layers=4)
    before = plain_logits(target, PROMPT)
    skipped = layer_skip(target, 1)
    plain_logits(skipped, PROMPT)
    assert {p.data_ptr() for p in skipped.parameters()} < {
        p.data_ptr() for p in target.parameters()
    }
    assert [layer.self_attn.layer_idx for layer in skipped.model.layers] == [0, 1]
    assert [layer.self_attn.layer_idx for layer in target.model.layers] == [0, 1, 2, 3]
    assert target.config.num_hidden_layers == len(target.model.layers) == 4
    torch.testing.assert_close(plain_logits(target, PROMPT), before, atol=0, rtol=0)
