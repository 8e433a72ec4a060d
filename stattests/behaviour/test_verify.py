"""What users of `verify` and `stop_law` may rely on, whatever their tensors look like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stattests.crosscheck.both import FLOAT64_TOLERANCE, LARGEST, drawn_batch, fitting
from stattests.early_stops import keeps_all_or_none
from stattests.strategies import Toy, for_toys
from stattests.streams import torch_generator
from univer import (
    DRAFTING,
    PAPER,
    VERIFIERS,
    DraftTree,
    Filters,
    Topology,
    draft_children,
    draft_tree,
    stop_law,
    verify,
    verify_logits,
)

NAMES = sorted(VERIFIERS)
SPECS = ["2x2", "eagle", "chain:3", "none", "[[0],[1],[2],[1,0],[1,1],[1,0,0]]"]


def problem(
    name: str, spec: str, batch: int = 6, vocab: int = 12, temperature: float = 1.0
) -> tuple[DraftTree, Tensor, Tensor, Tensor]:
    """Random logits that depend on the node, and a tree drawn from them: tree, target, draft, eta.

    Laws are returned as logits. The tree is as wide as the verifier takes.
    """
    topology, generator = fitting(name, spec), torch_generator(f"{name}/{spec}/{vocab}")

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5

    target = rand(batch, topology.num_nodes, vocab)
    draft = target[:, list(topology.internal)] + rand(batch, len(topology.internal), vocab)
    filters = Filters(temperature)

    def next_law(_: DraftTree, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        rows = draft[:, [topology.internal.index(v) for v in nodes]]
        return filters(rows), rows if filters.greedy else None

    root = torch.zeros(batch, dtype=torch.int64)
    tree, _ = draft_tree(VERIFIERS[name].drafting, topology, root, next_law, generator=generator)
    uniforms = torch.rand(batch, topology.num_nodes + 1, dtype=torch.float64, generator=generator)
    return tree, target, draft, uniforms


def outputs(name: str, *problem: Any) -> Any:
    tree, target, draft, uniforms = problem
    return verify(name, tree, target.softmax(-1), draft.softmax(-1), uniforms=uniforms)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", NAMES)
def test_output_describes_one_path_of_the_tree(name: str, spec: str, device: torch.device) -> None:
    tree, *rest = problem(name, spec)
    tree = DraftTree(tree.topology, tree.tokens.to(device))
    out = outputs(name, tree, *(part.to(device) for part in rest))
    topology = tree.topology
    assert out.accepted_nodes.shape == (6, topology.depth)
    assert out.tokens.shape == (6, topology.depth + 1)
    for b in range(6):
        length = int(out.num_accepted[b])
        nodes = out.accepted_nodes[b].tolist()
        assert nodes == [*topology.path(nodes[length - 1] if length else 0)] + [-1] * (
            topology.depth - length
        )
        drafted = tree.tokens[b, nodes[:length]].tolist()
        emitted = [*drafted, int(out.next_token[b])]
        assert out.tokens[b].tolist() == emitted + [-1] * (topology.depth - length)
        assert 0 <= out.next_token[b] < 12


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", NAMES)
def test_stop_law_is_a_law_with_the_right_mean(name: str, spec: str) -> None:
    tree, target, draft, _ = problem(name, spec)
    law = stop_law(name, tree, target.softmax(-1), draft.softmax(-1))
    rows = law.next_token_probs()
    depths = torch.tensor(tree.topology.depths, dtype=torch.float64)
    assert law.stop_probs.dtype == rows.dtype == torch.float64
    torch.testing.assert_close(law.stop_probs.sum(-1), torch.ones(6).double())
    torch.testing.assert_close(law.expected_accepted, law.stop_probs @ depths)
    torch.testing.assert_close(rows.sum(-1), (law.stop_probs > 0).double())


def test_empty_tree_draws_from_the_target() -> None:
    tree = DraftTree(Topology.parse("none"), torch.ones(2, 1, dtype=torch.int64))
    target = torch.tensor([[[0.25, 0.75]]] * 2)
    uniforms = torch.tensor([[0.0, 0.2], [0.0, 0.3]], dtype=torch.float64)
    for draft in (torch.zeros(2, 0, 2), torch.zeros(2, 0, 0), None):
        out = verify("univer", tree, target, draft, uniforms=uniforms)  # type: ignore[arg-type]
        assert out.tokens.tolist() == [[0], [1]]
        assert out.num_accepted.tolist() == [0, 0]
        assert out.accepted_nodes.shape == (2, 0)
    logits = target.log()
    out = verify_logits("rrsw", tree, logits, torch.zeros(2, 0, 2), uniforms=uniforms)
    assert out.tokens.tolist() == [[0], [1]]


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch_gives_empty_answers(name: str) -> None:
    tree, target, draft, uniforms = problem(name, "2x2")
    none = DraftTree(tree.topology, tree.tokens[:0])
    assert outputs(name, none, target[:0], draft[:0], uniforms[:0]).tokens.shape == (0, 3)
    law = stop_law(name, none, target[:0].softmax(-1), draft[:0].softmax(-1))
    assert law.next_token_probs().shape == (0, *target.shape[1:])


@pytest.mark.parametrize("name", NAMES)
def test_inputs_stay_and_calls_repeat(name: str) -> None:
    """Nothing is modified, nothing is remembered; read-only and strided views are fine."""
    tree, target, draft, uniforms = problem(name, "eagle")
    target, draft = target.softmax(-1), draft.softmax(-1)
    kept = [part.clone() for part in (tree.tokens, target, draft, uniforms)]
    first = verify(name, tree, target, draft, uniforms=uniforms)
    stop_law(name, tree, target, draft).next_token_probs()
    for part, copy in zip((tree.tokens, target, draft, uniforms), kept, strict=True):
        assert torch.equal(part, copy)
    strided = [part.transpose(0, 2).contiguous().transpose(0, 2) for part in (target, draft)]
    assert not strided[0].is_contiguous()
    again = verify(name, tree, *strided, uniforms=uniforms)
    assert torch.equal(again.tokens, first.tokens)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -1.0, 0.0])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_absent_nodes_are_not_read(name: str, junk: float) -> None:
    tree, target, draft, uniforms = problem(name, "[[0],[1],[0,0],[0,1],[1,0],[1,1],[1,1,0]]")
    topology, tokens = tree.topology, tree.tokens.clone()
    last = list(topology.children(0)[1:] or topology.leaves)  # or the end of a chain
    if keeps_all_or_none(VERIFIERS[name].drafting):
        last = list(topology.children(1))
    tokens[:3, [v for v in range(1, topology.num_nodes) if {*topology.path(v)} & {*last}]] = -1
    tokens[3:, 1:] = -1
    tree = DraftTree(tree.topology, tokens)
    target, draft = target.softmax(-1), draft.softmax(-1)
    expected = verify(name, tree, target, draft, uniforms=uniforms)
    law = stop_law(name, tree, target, draft)
    target, draft = target.clone(), draft.clone()
    target[tokens < 0] = junk
    draft[tokens[:, list(topology.internal)] < 0] = junk
    out = verify(name, tree, target, draft, uniforms=uniforms)
    assert torch.equal(out.tokens, expected.tokens)
    junk_law = stop_law(name, tree, target, draft)
    assert torch.equal(junk_law.stop_probs, law.stop_probs)
    assert torch.equal(junk_law.next_token_probs(), law.next_token_probs())


@pytest.mark.parametrize("name", NAMES)
def test_absent_children_get_nothing(name: str) -> None:
    """Nor does what a node without children does depend on how many slots it has."""
    _, target, draft, _ = problem(name, "3x1")
    target, draft = target.softmax(-1), draft.softmax(-1)
    topology = fitting(name, "3x1")
    slots = topology.num_nodes - 1
    for present in (0,) if keeps_all_or_none(VERIFIERS[name].drafting) else range(slots):
        tokens = [0, *(4, 7, 2)[:present], *[-1] * (slots - present)]
        law = stop_law(name, DraftTree(topology, torch.tensor([tokens] * 6)), target, draft)
        assert (law.stop_probs[:, 1 + present :] == 0).all()
        if not present:
            torch.testing.assert_close(law.next_token_probs()[:, 0], target[:, 0])
            assert (law.expected_accepted == 0).all()


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not keeps_all_or_none(VERIFIERS[name].drafting)]
)
def test_a_drafter_may_stop_early_among_siblings(name: str) -> None:
    """The last slot is left empty whatever was drawn: the first token is still the target's."""
    shape, row = fitting(name, "3x1"), VERIFIERS[name]
    _, target, draft, _ = problem(name, "3x1", batch=1, vocab=5)
    target, draft = target.softmax(-1), draft.softmax(-1)
    outcomes = DRAFTING[row.drafting].outcomes(draft[0, 0].numpy(), shape.num_nodes - 1)
    tree = DraftTree(shape, torch.tensor([[0, *drawn[:-1], -1] for drawn, _ in outcomes]))
    n = len(outcomes)
    law = stop_law(name, tree, target.expand(n, -1, -1), draft.expand(n, -1, -1))
    emitted = law.stop_probs[:, :1] * law.next_token_probs()[:, 0]
    emitted.scatter_add_(1, tree.tokens[:, 1:].clamp(min=0), law.stop_probs[:, 1:])
    chances = torch.tensor([chance for _, chance in outcomes], dtype=torch.float64)
    torch.testing.assert_close(chances @ emitted, target[0, 0])


# What the papers claim of these rules; a rule may be lossless and accept less.
TAKE_THE_TARGETS_OWN = ("ot", "rrsw", "rrs", "k_seq", "spechub", "single_draft")


@pytest.mark.parametrize("name", NAMES)
def test_equal_laws_accept_the_sampled_paths(name: str) -> None:
    """Where draft and target are equal, a single-child node is never left (no 0/0 either)."""

    def compare(toy: Toy) -> None:
        same = Toy(toy.vocab, toy.parents, tuple((p, p) for p, _ in toy.pool))
        batch = drawn_batch(same, VERIFIERS[name].drafting, size=4)
        law = stop_law(name, batch.draft_tree, *batch.rows())
        assert law.stop_probs.isfinite().all()
        if VERIFIERS[name].allocation not in TAKE_THE_TARGETS_OWN:
            return
        for node in same.topology.internal:
            children = same.topology.children(node)
            if len(children) == 1:
                present = batch.draft_tree.tokens[:, children[0]] >= 0
                assert (law.stop_probs[present, node].abs() <= FLOAT64_TOLERANCE).all()

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_disjoint_supports_accept_nothing_that_was_sampled(name: str) -> None:
    shape = fitting(name, "2x1")
    target = torch.tensor([[[0.5, 0.5, 0.0, 0.0]] * shape.num_nodes], dtype=torch.float64)
    draft = torch.tensor([[[0.0, 0.0, 0.5, 0.5]]], dtype=torch.float64)
    tree = DraftTree(shape, torch.tensor([[0, 2, 3][: shape.num_nodes]]))
    law = stop_law(name, tree, target, draft)
    assert law.stop_probs.tolist() == [[1.0, 0.0, 0.0][: shape.num_nodes]]
    assert law.next_token_probs()[0, 0].tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_renaming_the_tokens_renames_the_answer(name: str) -> None:
    """Permuted ids permute the stop law: no id is special, no row is taken by its position."""
    tree, target, draft, _ = problem(name, "2x2")
    target, draft = target.softmax(-1), draft.softmax(-1)
    order = torch.randperm(12, generator=torch_generator("renaming"))
    inverse = order.argsort()
    renamed = DraftTree(tree.topology, inverse[tree.tokens])
    law = stop_law(name, tree, target, draft)
    again = stop_law(name, renamed, target[..., order], draft[..., order])
    torch.testing.assert_close(again.stop_probs, law.stop_probs)
    torch.testing.assert_close(again.next_token_probs(), law.next_token_probs()[..., order])


@pytest.mark.parametrize("name", NAMES)
def test_generator_repeats_with_its_seed_and_rows_do_not_share_draws(name: str) -> None:
    tree, target, draft, _ = problem(name, "2x2", batch=1)
    tree = DraftTree(tree.topology, tree.tokens.expand(200, -1))
    rows = [part.softmax(-1).expand(200, -1, -1) for part in (target, draft)]
    runs = [
        verify(name, tree, *rows, generator=torch.Generator().manual_seed(seed)).tokens
        for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert len(runs[0].unique(dim=0)) > 3


@pytest.mark.parametrize("spec", ["2x3", "eagle", "chain:4"])
@pytest.mark.parametrize("name", NAMES)
def test_at_temperature_0_the_text_is_the_greedy_one(name: str, spec: str) -> None:
    """Any uniforms, any verifier: how much of it a cycle emits is the rule's own affair."""
    tree, target, draft, uniforms = problem(name, spec, temperature=0.0)
    for edge in (uniforms, uniforms * 0, uniforms * 0 + LARGEST):
        out = verify_logits(name, tree, target, draft, temperature=0, uniforms=edge)
        for b, nodes in enumerate(out.accepted_nodes.tolist()):
            path = [0, *(node for node in nodes if node >= 0)]
            emitted = out.tokens[b, : len(path)].tolist()
            assert emitted == target[b, path].argmax(-1).tolist()


@pytest.mark.parametrize("drafting", ["top_residual", "without_replacement"])
def test_both_draft_laws_draw_the_top_logits_at_temperature_0(drafting: str) -> None:
    tree, _, draft, _ = problem("rrsw", "3x1", temperature=0.0)
    top = draft[:, 0].topk(3).indices
    assert torch.equal(tree.tokens[:, 1:], top)
    law = Filters(0)(draft[:, 0])
    uniforms = torch.full((6, 3), 0.9, dtype=torch.float64)
    assert torch.equal(draft_children(drafting, law, 3, uniforms, scores=draft[:, 0]), top)


@pytest.mark.parametrize("name", PAPER)
def test_a_draft_that_is_all_but_a_billionth_on_one_token(name: str) -> None:
    """The residual draft law is summed directly: 1 - top mass would lose it."""
    tiny = 1e-12
    draft = torch.tensor([[[1 - tiny, 0.75 * tiny, 0.25 * tiny, 0.0]]], dtype=torch.float64)
    target = torch.tensor([[[0.1, 0.2, 0.3, 0.4]] * 3], dtype=torch.float64)
    tree = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 0, 1]]))
    law = stop_law(name, tree, target, draft)
    if VERIFIERS[name].allocation == "ot":
        accepted = 0.2 / 0.75
        surplus = [0.1, 0.05, 0.4]  # tokens 0, 2, 3 above the residual draft (0, .75, .25, 0)
        fixed = (1 - accepted) * surplus[0] / sum(surplus)
        expected = [1 - accepted - fixed, fixed, accepted]
    else:
        first = 0.1 / (1 - tiny)
        second = min(1.0, 0.2 / 0.9 / 0.75)
        expected = [(1 - first) * (1 - second), first, (1 - first) * second]
    torch.testing.assert_close(
        law.stop_probs[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-11
    )
