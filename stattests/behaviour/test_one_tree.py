"""`verify_logits` tree by tree, in float32: the answers of the float64 levels, fewer rows read.

What is compared is what uniforms are compared with (acceptance of every node) and the law of the
next token, in float64 by `univer.composition`, in float32 by `univer.one_tree`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stattests.behaviour.test_verify import problem
from stattests.cases import problem as gate_problem
from stattests.probing import probe
from stattests.streams import torch_generator
from stattests.subject import Subject
from stattests.theorems.planted import Fault, plant
from univer import (
    VERIFIERS,
    DraftTree,
    Filters,
    InputError,
    Topology,
    draft_tree,
    one_tree,
    stop_law,
    verify_logits,
)
from univer.composition import COMPOSITION
from univer.from_logits import by_level
from univer.one_tree import by_tree
from univer.sampling import LARGEST
from univer.tree_rows import Laws
from univer.verifiers import decide_by_level, emit, resolve

# A mass is a sum of float32 products over the vocabulary; a threshold is a ratio of masses.
FLOAT32_TOLERANCE = 2e-6
NAMES = sorted(VERIFIERS)
BY_HAND = [name for name in NAMES if VERIFIERS[name].allocation in one_tree.RULES]
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
    law = laws_of(draft)
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
        rows = module.Rows(target[b], draft[b] if draft.numel() else target[b], Filters(), b)
        visit = module._Visit(module.rule_of(verifier), tree.topology, tokens, rows)
        scale = {0: 1.0}
        for node in tree.topology.internal:
            if tokens[node] < 0 and node > 0:
                continue
            opened = visit.open(node, scale[node] if conditional else 1.0)
            children = tree.topology.children(node)
            for child, acceptance in zip(children, opened.acceptance, strict=True):
                found[b, child] = scale[child] = acceptance
            if conditional:
                found[b, node] = opened.fallback
        found[b, 0] = 1
    return COMPOSITION[verifier.composition].stop_probs(tree.topology, found)


def exact(name: str, part: Logits) -> Tensor:
    """The same law in float64, given the float32 laws that the tree was drawn from."""
    tree, target, draft, _ = part
    return stop_law(name, tree, Filters()(target), laws_of(draft)).stop_probs


def laws_of(draft: Tensor) -> Tensor:
    """The draft laws; an empty tree has none."""
    return Filters()(draft) if draft.numel() else draft


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BY_HAND)
def test_a_form_by_hand_decides_as_the_rule_of_levels_on_one_node(name: str, kind: str) -> None:
    tree, target, draft, uniforms = logits(name, "2x2", kind, batch=200)
    rows = (resolve(name), tree, target, draft, Filters(), uniforms)
    rule = one_tree.one_node(resolve(name).allocate)
    for found, expected in zip(by_tree(*rows), by_tree(*rows, rule), strict=True):
        assert torch.equal(found, expected)


def next_token_law(name: str, part: Logits, node: int, module: Any = one_tree) -> Tensor:
    """The law of the token after the first tree's stop node, from the weights that are drawn."""
    tree, target, draft, _ = part
    rows = module.Rows(target[0], draft[0], Filters(), 0)
    rule = module.rule_of(VERIFIERS[name])
    visit = module._Visit(rule, tree.topology, tree.tokens[0].tolist(), rows)
    visit.open(node, 1.0)
    visit.next_token(node, 0.5)
    law: Tensor = rows.p.double().clone()
    return law / law.sum()


@pytest.mark.parametrize("kind", ["plain", "peaked", "disjoint"])
@pytest.mark.parametrize("name", NAMES)
def test_next_token_follows_the_residual(name: str, kind: str) -> None:
    part = logits(name, "2x2", kind)
    tree, target, draft, _ = part
    laws = Filters()(target), laws_of(draft)
    expected = stop_law(name, tree, *laws).next_token_probs()[0, 0]
    if expected.sum() > 0:  # else the cycle cannot stop at the root
        assert (next_token_law(name, part, 0) - expected).abs().max() <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2**-24, LARGEST])
def test_token_is_the_first_whose_running_weight_exceeds(uniform: float) -> None:
    weights = torch.rand(5000, generator=torch.Generator().manual_seed(1)).log()
    weights[torch.arange(0, 5000, 3)] = -math.inf  # zero weights, the first and the last among them
    weights[-1] = -math.inf
    rows = one_tree.Rows(weights[None], weights[None], Filters(), 0)
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
    ("univer", "peaked", Fault("what-is-left-is-read-again", one_tree, "return self.take(without)",
                               "self._law(logits.index_fill(0, without, -40.0), self.q); "
                               "return self.take(without)")),
    ("greedy", "plain", Fault("top-not-removed", one_tree, "return self.take(without)",
                              "return self.q.sum().item()")),
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


def test_the_path_is_chosen_by_vocabulary_and_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by the batch; float64 is `verify` to the last bit."""
    calls = []
    whole = one_tree.by_tree

    def watched(*arguments: Any) -> Any:
        calls.append("tree")
        return whole(*arguments)

    monkeypatch.setattr(one_tree, "by_tree", watched)
    for vocab, dtypes, expected in (
        (300, (torch.float32, torch.float32), 0),
        (5000, (torch.float32, torch.float32), 2),
        (5000, (torch.bfloat16, torch.float32), 2),
        (5000, (torch.float64, torch.float64), 0),
        (5000, (torch.float32, torch.float64), 0),
    ):
        calls.clear()
        tree, *rows, uniforms = problem("univer", "2x2", batch=3, vocab=vocab)
        target, draft = (part.to(dtype) for part, dtype in zip(rows, dtypes, strict=True))
        out = verify_logits("univer", tree, target, draft, uniforms=uniforms)
        one = DraftTree(tree.topology, tree.tokens[:1])
        alone = verify_logits("univer", one, target[:1], draft[:1], uniforms=uniforms[:1])
        assert torch.equal(alone.tokens, out.tokens[:1])
        assert len(calls) == expected
        if dtypes[0] == torch.float64:
            p, q = (Laws(part.softmax(-1), torch.Tensor.double) for part in rows)
            _, token = decide_by_level(resolve("univer"), tree, p, q, uniforms)
            assert torch.equal(out.next_token, token)


@pytest.mark.parametrize("vocab", [300, 5000])
@pytest.mark.parametrize("name", NAMES)
def test_empty_batch_gives_an_empty_answer(name: str, vocab: int) -> None:
    tree, target, draft, uniforms = logits(name, "2x2", "plain", vocab=vocab, batch=1)
    none = DraftTree(tree.topology, tree.tokens[:0])
    out = verify_logits(name, none, target[:0], draft[:0], uniforms=uniforms[:0])
    assert out.tokens.shape == (0, 3)


def test_a_bad_row_is_seen_when_all_its_tokens_are_children() -> None:
    topology = Topology.parse("3x1")
    tree = DraftTree(topology, torch.tensor([[0, 0, 1, -1]]))
    target, draft = torch.zeros(1, 4, 2), torch.full((1, 1, 2), math.nan)
    uniforms = torch.full((1, 5), 0.5, dtype=torch.float64)
    for name in NAMES:
        with pytest.raises(InputError, match="draft_logits: the row of node 0 in tree 0 holds NaN"):
            by_tree(resolve(name), tree, target, draft, Filters(), uniforms)


def peaked_draft(temperature: float, trees: int) -> tuple[DraftTree, Tensor, Tensor, Tensor]:
    """The best token 103 temperatures above what is left; the target wants what is left."""
    draft = torch.full((16,), -5.0)
    draft[:3] = torch.tensor([103.277 * temperature, 0.0, -0.75 * temperature])
    target = torch.full((16,), -100.0)
    target[1:3] = 0.0
    topology, generator = Topology.parse("2x1"), torch_generator("peaked draft")
    law = Filters(temperature)(draft)
    tree, _ = draft_tree(
        "top_residual",
        topology,
        torch.zeros(trees, dtype=torch.int64),
        lambda *_: (law.expand(trees, 1, 16), None),
        generator=generator,
    )
    uniforms = torch.rand(trees, 4, generator=generator, dtype=torch.float64)
    return tree, target.expand(trees, 3, 16), draft.expand(trees, 1, 16), uniforms


@pytest.mark.stat
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("path", [by_tree, by_level], ids=["tree", "level"])
@pytest.mark.parametrize("name", ["greedy", "univer"])
def test_what_is_left_of_a_peaked_draft_is_judged_by_the_law_it_was_drawn_from(
    name: str, path: Any, temperature: float
) -> None:
    """Half and half, as the target says; a mass taken from exact logits gave .74 and .26.

    4,000 trees: 8 standard errors are .064, a false alarm has probability 1e-15.
    """
    tree, target, draft, uniforms = peaked_draft(temperature, 4_000)
    filters = Filters(temperature)
    out = emit(tree, *path(resolve(name), tree, target, draft, filters, uniforms))
    share = (out.tokens[:, 0] == 1).double().mean()
    assert abs(share - 0.5) < 0.064


@pytest.mark.parametrize("toy", [("sharp", "2x1", 4), ("sharp", "chain:2", 4)], ids=str)
@pytest.mark.parametrize("name", BY_HAND)
def test_the_gate_finds_the_target_law_exactly(name: str, toy: tuple[str, str, int]) -> None:
    """Exact probing, as `univer certify` does it: float32's rounding and no more."""

    def single(tree: DraftTree, target: Any, draft: Any, *, uniforms: Any) -> Any:
        # Rows of absent nodes hold anything; a logarithm of that may be no logit.
        p, q = (part.log().float().nan_to_num(0.0, 0.0, -math.inf) for part in (target, draft))
        return emit(tree, *by_tree(resolve(name), tree, p, q, Filters(), uniforms))

    found = probe(Subject(name, VERIFIERS[name].drafting, single), gate_problem(*toy))
    assert found.law.joint_tv() <= FLOAT32_TOLERANCE
