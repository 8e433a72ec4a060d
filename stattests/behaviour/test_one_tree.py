"""`verify_logits` tree by tree, in float32: the answers of the float64 levels, fewer rows read.

What is compared is what uniforms are compared with (acceptance of every node) and the law of the
next token, in float64 by `univer.composition`, in float32 by `univer.one_tree`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stattests.behaviour.test_verify import NAMES, problem
from stattests.streams import torch_generator
from stattests.theorems.planted import Fault, plant
from univer import (
    VERIFIERS,
    DraftTree,
    Filters,
    InputError,
    draft_tree,
    one_tree,
    stop_law,
    verify_logits,
)
from univer.composition import COMPOSITION
from univer.from_logits import by_level, by_tree
from univer.sampling import LARGEST
from univer.verifiers import Laws, decide_by_level, resolve

# A mass is a sum of float32 products over the vocabulary; a threshold is a ratio of masses.
FLOAT32_TOLERANCE = 2e-6
SPECS = ["2x2", "eagle", "chain:3", "none", "[[0],[1],[2],[1,0],[1,1],[1,0,0]]"]

Logits = tuple[DraftTree, Tensor, Tensor, Tensor]


def logits(name: str, spec: str, kind: str, vocab: int = 300, batch: int = 4) -> Logits:
    """A problem of one kind, in numbers that float32 holds exactly; trees are drawn from it."""
    tree, target, draft, uniforms = problem(name, spec, batch=batch, vocab=vocab)
    topology, inner = tree.topology, list(tree.topology.internal)
    if kind == "equal":
        target[:, inner] = draft
    elif kind == "peaked":  # all but e^-110 on one token: no float32 law
        draft[..., 0] += 110
    elif kind == "disjoint":
        target[..., ::2] = -math.inf
        draft[..., 1::2] = -math.inf
    elif kind == "cold":
        target, draft = 20 * target, 20 * draft
    target, draft = target.float(), draft.float()
    law = draft.double().softmax(-1)
    tree, _ = draft_tree(
        VERIFIERS[name].drafting,
        topology,
        tree.tokens[:, 0],
        lambda _, nodes: (law[:, [topology.draft_rows[v] for v in nodes]], None),
        generator=torch_generator(f"{name}/{spec}/{kind}"),
    )
    return tree, target, draft, uniforms


KINDS = ("plain", "equal", "peaked", "disjoint", "cold")


def stop_probs(name: str, part: Logits, module: Any = one_tree) -> Tensor:
    """The law of the stop node, [B, N], from all thresholds that one_tree finds."""
    tree, target, draft, _ = part
    verifier = VERIFIERS[name]
    conditional = COMPOSITION[verifier.composition].conditional
    found = torch.zeros(tree.tokens.shape, dtype=torch.float64)
    found[:, 0] = 1
    for b, tokens in enumerate(tree.tokens.tolist()):
        rows = module.Laws(target[b], draft[b] if draft.numel() else target[b], Filters(), b)
        walk = module._Walk(module.RULES[verifier.allocation], tree.topology, tokens, rows)
        scale = {0: 1.0}
        for node in tree.topology.internal:
            if tokens[node] < 0 and node > 0:
                continue
            opened = walk.open(node, scale[node] if conditional else 1.0)
            children = tree.topology.children(node)
            for child, acceptance in zip(children, opened.acceptance, strict=True):
                found[b, child] = scale[child] = acceptance
            if conditional:
                found[b, node] = opened.fallback
        found[b, 0] = 1
    return COMPOSITION[verifier.composition].stop_probs(tree.topology, found)


def exact(name: str, part: Logits) -> Tensor:
    """The same law in float64."""
    tree, target, draft, _ = part
    laws = target.double().softmax(-1), draft.double().softmax(-1)
    return stop_law(name, tree, *laws).stop_probs


def check_laws(name: str, part: Logits, module: Any = one_tree) -> None:
    """The stop law is that of float64 within float32's rounding."""
    assert (stop_probs(name, part, module) - exact(name, part)).abs().max() <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", NAMES)
def test_stop_law_is_that_of_float64(name: str, spec: str, kind: str) -> None:
    check_laws(name, logits(name, spec, kind))


@pytest.mark.parametrize("name", NAMES)
def test_stop_law_is_that_of_float64_on_a_large_vocabulary(name: str) -> None:
    check_laws(name, logits(name, "2x2", "plain", vocab=128_256, batch=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", ["2x2", "eagle"])
@pytest.mark.parametrize("name", NAMES)
def test_decisions_are_those_of_levels(name: str, spec: str, kind: str) -> None:
    """For all uniforms but those within float32's rounding of a threshold: none of these is."""
    tree, target, draft, uniforms = logits(name, spec, kind, batch=200)
    rows = (resolve(name), tree, target, draft, Filters(), uniforms)
    for found, expected in zip(by_tree(*rows), by_level(*rows), strict=True):
        assert torch.equal(found, expected)


def next_token_law(name: str, part: Logits, node: int, module: Any = one_tree) -> Tensor:
    """The law of the token after the first tree's stop node, from the weights that are drawn."""
    tree, target, draft, _ = part
    rows = module.Laws(target[0], draft[0], Filters(), 0)
    rule = module.RULES[VERIFIERS[name].allocation]
    walk = module._Walk(rule, tree.topology, tree.tokens[0].tolist(), rows)
    walk.open(node, 1.0)
    walk.next_token(node, 0.5)
    law: Tensor = rows.p.double().clone()
    return law / law.sum()


@pytest.mark.parametrize("kind", ["plain", "peaked", "disjoint"])
@pytest.mark.parametrize("name", NAMES)
def test_next_token_follows_the_residual(name: str, kind: str) -> None:
    part = logits(name, "2x2", kind)
    tree, target, draft, _ = part
    laws = target.double().softmax(-1), draft.double().softmax(-1)
    expected = stop_law(name, tree, *laws).next_token_probs()[0, 0]
    if expected.sum() > 0:  # else the cycle cannot stop at the root
        assert (next_token_law(name, part, 0) - expected).abs().max() <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2**-24, LARGEST])
def test_token_is_the_first_whose_running_weight_exceeds(uniform: float) -> None:
    weights = torch.rand(5000, generator=torch.Generator().manual_seed(1)).log()
    weights[torch.arange(0, 5000, 3)] = -math.inf  # zero weights, the first and the last among them
    weights[-1] = -math.inf
    rows = one_tree.Laws(weights[None], weights[None], Filters(), 0)
    mass = rows.target(0)
    cumulative = rows.p.double().cumsum(0) / mass
    token = rows.draw(mass, uniform)
    assert weights[token] > -math.inf
    assert cumulative[token] >= uniform - FLOAT32_TOLERANCE
    assert token == 0 or cumulative[token - 1] <= uniform + FLOAT32_TOLERANCE


@pytest.mark.parametrize("uniform", [0.0, LARGEST])
@pytest.mark.parametrize("name", NAMES)
def test_zero_probability_token_is_never_emitted(name: str, uniform: float) -> None:
    tree, target, draft, uniforms = logits(name, "2x2", "plain", vocab=4099, batch=8)
    target[..., ::3] = target[..., -1] = -math.inf
    out = verify_logits(name, tree, target, draft, uniforms=torch.full_like(uniforms, uniform))
    emitted = out.tokens[out.tokens >= 0]
    assert (emitted % 3 > 0).all()
    assert (emitted < 4098).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gives_the_float32_answer_of_the_same_logits(
    name: str, dtype: torch.dtype
) -> None:
    tree, target, draft, uniforms = logits(name, "eagle", "plain", vocab=5000, batch=8)
    half = target.to(dtype), draft.to(dtype)
    for temperature in (1.0, 0.6):
        found, expected = (
            verify_logits(name, tree, *rows, temperature=temperature, uniforms=uniforms)
            for rows in (half, [row.float() for row in half])
        )
        assert torch.equal(found.tokens, expected.tokens)


@pytest.mark.parametrize("name", NAMES)
def test_answer_is_the_same_in_any_batch_and_with_strides(name: str) -> None:
    tree, target, draft, uniforms = logits(name, "eagle", "plain", vocab=5000)
    together = verify_logits(name, tree, target, draft, uniforms=uniforms).tokens
    strided = [part.transpose(0, 2).contiguous().transpose(0, 2) for part in (target, draft)]
    assert torch.equal(verify_logits(name, tree, *strided, uniforms=uniforms).tokens, together)
    for b in range(4):
        one = slice(b, b + 1)
        alone = DraftTree(tree.topology, tree.tokens[one])
        out = verify_logits(name, alone, target[one], draft[one], uniforms=uniforms[one])
        assert torch.equal(out.tokens, together[one])


def test_rows_after_the_decision_are_not_read() -> None:
    """A uniform of 0 stops the cycle at the first leaf; only the nodes above it were looked at."""
    tree, target, draft, uniforms = logits("univer", "2x3", "plain", vocab=5000, batch=1)
    read = [0, 1, 3, 7]  # down the first children; 7 is a leaf
    for v in read[:-1]:  # the sampled children are not certain, so that the first can be accepted
        target[0, v, tree.tokens[0, tree.topology.children(v)[1]]] = -20
    unread = [v for v in range(15) if v not in read]
    target[:, unread] = draft[:, [v for v in range(7) if v not in read]] = math.nan
    stop = verify_logits("univer", tree, target, draft, uniforms=torch.zeros_like(uniforms))
    assert stop.accepted_nodes.tolist() == [[1, 3, 7]]
    with pytest.raises(InputError, match="draft_logits: the row of node 4 in tree 0 holds NaN"):
        verify_logits("univer", tree, target.nan_to_num(), draft, uniforms=uniforms * 0 + LARGEST)


def test_below_a_child_that_cannot_be_accepted_nothing_is_read() -> None:
    tree, target, draft, uniforms = logits("univer", "2x2", "plain", vocab=5000, batch=1)
    target[0, 0, tree.tokens[0, 1]] = -math.inf
    target[:, 1] = math.nan
    verify_logits("univer", tree, target, draft, uniforms=uniforms)


FAULTS = [
    ("univer", "plain", Fault("z-without-scale", one_tree, "whole = (1 - scale) + sum",
                              "whole = sum")),
    ("greedy", "plain", Fault("residual-with-children", one_tree,
                              "/ q_mass\n    whole", "/ q_mass + sum(surplus)\n    whole")),
    ("univer", "peaked", Fault("little-is-not-read-again", one_tree,
                               "if mass < LITTLE:", "if mass < 0:")),
    ("greedy", "plain", Fault("top-not-removed", one_tree, "mass = self.take(without)",
                              "mass = self.q.sum().item()")),
    ("rrsw", "plain", Fault("draft-not-reduced", one_tree,
                            "q_mass = laws.take(present[slot - 1 : slot])", "pass")),
    ("traversal", "plain", Fault("scale-not-updated", one_tree,
                                 "c = _ratio(left, left + (1 - c)) if left > NOTHING else 0.0",
                                 "pass")),
    ("univer", "plain", Fault("not-conditioned", one_tree, "acceptance.append(_ratio(mass, left))",
                              "acceptance.append(mass)")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "fault"), FAULTS, ids=[str(f) for *_, f in FAULTS])
def test_planted_fault_is_caught(name: str, kind: str, fault: Fault) -> None:
    part = logits(name, "2x2", kind, batch=32)
    check_laws(name, part)
    with pytest.raises(AssertionError):
        check_laws(name, part, plant(fault))


def test_float64_and_small_rows_go_level_by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of a path is by shape and dtype; float64 is `verify` to the last bit."""
    calls = []
    monkeypatch.setattr(one_tree, "decide", lambda *_: calls.append("tree"))
    tree, target, draft, uniforms = problem("univer", "2x2", batch=2)
    out = verify_logits("univer", tree, target, draft, uniforms=uniforms)
    verify_logits("univer", tree, target.float(), draft.float(), uniforms=uniforms)
    filters = Filters()
    p, q = (Laws(filters(rows), torch.Tensor.double) for rows in (target, draft))
    _, expected = decide_by_level(resolve("univer"), tree, p, q, uniforms)
    assert torch.equal(out.next_token, expected)
    assert not calls
    with pytest.raises(TypeError):  # what the replaced path returns is no decision
        verify_logits(
            "univer",
            replace(tree, tokens=tree.tokens[:1]),
            target[:1].float(),
            draft[:1].float(),
            uniforms=uniforms[:1],
        )
    assert calls == ["tree"]
