"""What users of `verify` and `stop_law` may rely on, whatever their tensors look like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stattests.crosscheck.both import FLOAT64_TOLERANCE, LARGEST, drawn_batch
from stattests.strategies import Toy, for_toys
from stattests.streams import torch_generator
from univer import (
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

NAMES = sorted(name for name, row in VERIFIERS.items() if row.max_arity is None)
SPECS = ["2x2", "eagle", "chain:3", "none", "[[0],[1],[2],[1,0],[1,1],[1,0,0]]"]


def problem(
    name: str, spec: str, batch: int = 6, vocab: int = 12, temperature: float = 1.0
) -> tuple[DraftTree, Tensor, Tensor, Tensor]:
    """Random logits that depend on the node, and a tree drawn from them: tree, target, draft, eta.

    Laws are returned as logits.
    """
    topology, generator = Topology.parse(spec), torch_generator(f"{name}/{spec}/{vocab}")

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
    assert law.next_token_probs().shape == (0, 7, 12)


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
    tokens = tree.tokens.clone()
    tokens[:3, [2, 5, 6, 7]] = -1
    tokens[3:, [1, 3, 4, 2, 5, 6, 7]] = -1
    tree = DraftTree(tree.topology, tokens)
    target, draft = target.softmax(-1), draft.softmax(-1)
    expected = verify(name, tree, target, draft, uniforms=uniforms)
    law = stop_law(name, tree, target, draft)
    target, draft = target.clone(), draft.clone()
    target[tokens < 0] = junk
    draft[tokens[:, list(tree.topology.internal)] < 0] = junk
    out = verify(name, tree, target, draft, uniforms=uniforms)
    assert torch.equal(out.tokens, expected.tokens)
    junk_law = stop_law(name, tree, target, draft)
    assert torch.equal(junk_law.stop_probs, law.stop_probs)
    assert torch.equal(junk_law.next_token_probs(), law.next_token_probs())


@pytest.mark.parametrize("name", NAMES)
def test_absent_children_are_slots_that_do_not_exist(name: str) -> None:
    """A node whose last children were cut off decides as one that never had the slots.

    For `ot` the sampled slot is the one that goes, so the children that stay are all fixed.
    """
    _, target, draft, _ = problem(name, "3x1")
    target, draft = target.softmax(-1), draft.softmax(-1)
    wide = DraftTree(Topology.parse("3x1"), torch.tensor([[0, 4, 7, -1]] * 6))
    law = stop_law(name, wide, target, draft)
    if VERIFIERS[name].allocation in ("rrsw", "rrs", "k_seq"):
        narrow = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 4, 7]] * 6))
        expected = stop_law(name, narrow, target[:, :3], draft).stop_probs
        torch.testing.assert_close(law.stop_probs[:, :3], expected)
    else:
        torch.testing.assert_close(law.stop_probs[:, [1, 2]], target[:, 0, [4, 7]])
    assert (law.stop_probs[:, 3] == 0).all()
    nothing = DraftTree(Topology.parse("3x1"), torch.tensor([[0, -1, -1, -1]] * 6))
    law = stop_law(name, nothing, target, draft)
    torch.testing.assert_close(law.next_token_probs()[:, 0], target[:, 0])
    assert (law.expected_accepted == 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "target_only"])
def test_equal_laws_accept_the_sampled_paths(name: str) -> None:
    """Where draft and target are equal, a single-child node is never left (no 0/0 either)."""

    def compare(toy: Toy) -> None:
        same = Toy(toy.vocab, toy.parents, tuple((p, p) for p, _ in toy.pool))
        batch = drawn_batch(same, VERIFIERS[name].drafting, size=4)
        law = stop_law(name, batch.draft_tree, *batch.rows())
        assert law.stop_probs.isfinite().all()
        for node in same.topology.internal:
            children = same.topology.children(node)
            if len(children) == 1:
                present = batch.draft_tree.tokens[:, children[0]] >= 0
                assert (law.stop_probs[present, node].abs() <= FLOAT64_TOLERANCE).all()

    for_toys(name, compare)


@pytest.mark.parametrize("name", NAMES)
def test_disjoint_supports_accept_nothing_that_was_sampled(name: str) -> None:
    target = torch.tensor([[[0.5, 0.5, 0.0, 0.0]] * 3], dtype=torch.float64)
    draft = torch.tensor([[[0.0, 0.0, 0.5, 0.5]]], dtype=torch.float64)
    tree = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 2, 3]]))
    law = stop_law(name, tree, target, draft)
    assert law.stop_probs.tolist() == [[1.0, 0.0, 0.0]]
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
def test_at_temperature_0_all_verifiers_coincide(spec: str) -> None:
    """Any uniforms, any verifier: the target's own greedy path through the tree."""
    texts = []
    for name in NAMES:
        tree, target, draft, uniforms = problem("rrsw", spec, temperature=0.0)
        for edge in (uniforms, uniforms * 0, uniforms * 0 + LARGEST):
            out = verify_logits(name, tree, target, draft, temperature=0, uniforms=edge)
            texts.append(out.tokens)
    assert all(torch.equal(text, texts[0]) for text in texts)
    for b, row in enumerate(texts[0].tolist()):
        node = 0
        for token in row:
            if token < 0:
                break
            assert token == target[b, node].argmax()
            children = tree.topology.children(node)
            node = next((u for u in children if tree.tokens[b, u] == token), -1)


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
