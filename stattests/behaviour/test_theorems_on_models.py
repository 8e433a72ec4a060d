"""The theorem report on models: its numbers against slow or exact ones, and faults that it sees."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runs import theorems_direct
from gpu_runs.theorems_direct import (
    Box,
    box_of,
    direct_findings,
    fault_findings,
    first_token_tv,
    planted,
)
from gpu_runs.theorems_layers import LIMITS, LayerReport, Node, equation_10, layer_means
from gpu_runs.theorems_lengths import SCALES, LengthReport, scaled_length
from gpu_runs.theorems_memo import PrefixMemo
from gpu_runs.theorems_text import read_texts, run_length_findings, text_findings
from reference import univer as oracle
from reference.decision import Laws
from stattests.behaviour.tiny_models import plain_logits, save_model, tiny_llama
from stattests.behaviour.tiny_runs import rows_of_text, write_run
from stattests.faults.rules import (
    AT_SAMPLED,
    OT_CHILDREN,
    OT_RESIDUAL,
    REST,
)
from stattests.planting import Patch, plant
from univer import PAPER, VERIFIERS, DraftTree, Filters, InputError, Topology, draft_tree
from univer.allocation import ALLOCATION
from univer.decoding import Drawn, seeded

PROMPT = (1, 4, 2)


def law(rng: np.random.Generator, size: int) -> torch.Tensor:
    """A random law, some of it zero."""
    weights = rng.gamma(0.5, size=size) * (rng.random(size) < 0.8)
    weights[rng.integers(size)] += 1e-3
    return torch.from_numpy(weights / weights.sum())


def random_node(seed: int, size: int = 9) -> Node:
    rng = np.random.default_rng(seed)
    target, draft = law(rng, size), law(rng, size)
    arity = 1 + seed % 4
    children = draft.argsort(descending=True, stable=True)[: arity - 1].tolist()
    rest = draft.clone()
    rest[children] = 0
    children.append(int(rest.argmax()) if rest.sum() > 0 else -1)
    return Node(target, draft, torch.tensor(children))


def slow_means(node: Node, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean masses [V] and accepted mass: the rule called at every sampled child."""
    fixed = node.children[:-1].tolist()
    rest = node.draft.clone()
    rest[fixed] = 0
    masses, accepted = torch.zeros_like(node.target), torch.zeros((), dtype=torch.float64)
    if rest.sum() == 0:
        outcomes = [(-1, 1.0)]
    else:
        outcomes = [(u, float(rest[u] / rest.sum())) for u in range(len(rest)) if rest[u] > 0]
    for sampled, chance in outcomes:
        children = [u for u in [*fixed, sampled] if u >= 0]
        out = ALLOCATION["ot"].allocate(
            torch.tensor([scale], dtype=torch.float64),
            node.target[None],
            node.draft[None],
            torch.tensor([[*fixed, sampled]]),
        )
        taken = out.child_acceptance[0, : len(children)]
        masses += chance * out.residual[0].index_add(0, torch.tensor(children), taken)
        accepted += chance * taken.sum()
    return masses, accepted


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_the_closed_form_is_the_mean_over_all_sampled_children(seed: int, scale: float) -> None:
    node = random_node(seed)
    means = layer_means(node, scale)
    masses, accepted = slow_means(node, scale)
    torch.testing.assert_close(means.masses, masses, atol=1e-14, rtol=0)
    torch.testing.assert_close(means.accepted, accepted, atol=1e-14, rtol=0)
    torch.testing.assert_close(equation_10(node, scale), accepted, atol=1e-14, rtol=0)


def report(allocate: Any = ALLOCATION["ot"].allocate) -> LayerReport:
    found = LayerReport()
    for seed in range(40):
        node = random_node(seed)
        fixed = set(node.children[:-1].tolist())
        others = [u for u in range(9) if u not in fixed and node.draft[u] > 0]
        found.add(node, (0.3, 0.9), others, allocate)
    return found


def test_the_rule_passes_its_theorems() -> None:
    findings = report().findings()
    assert all(row.holds for row in findings)
    assert {row.n for row in findings} == {40}


WRONG_RULES = {
    "masses": ("factor = ratio(1 - at_sampled, whole)", "factor = 1 - at_sampled"),
    "rest": (REST, REST.replace("without(draft, fixed)", "draft")),
    "children": (OT_CHILDREN, OT_CHILDREN.replace("* factor", "* factor / 2")),
    "residual": (OT_RESIDUAL, "residual=surplus * factor"),
    "sampled": (AT_SAMPLED, AT_SAMPLED.replace("ratio(", "1.001 * ratio(", 1)),
}


@pytest.mark.parametrize("fault", WRONG_RULES)
def test_a_wrong_rule_fails_theorem_3(fault: str) -> None:
    patch = Patch("univer.rules.ot", *WRONG_RULES[fault])
    broken = plant(patch)["univer.allocation"].ALLOCATION["ot"].allocate
    rows = report(broken).findings()
    assert not all(row.holds for row in rows if "Theorem 3" in row.claim or "itself" in row.claim)


def test_the_limits_are_those_that_were_promised() -> None:
    assert dict(LIMITS) == {torch.float32: 2e-6, torch.float64: 1e-12}


def drawn_tree(seed: int, shape: str, vocabulary: int = 6) -> Drawn:
    """A `top_residual` tree with random laws."""
    rng, topology = np.random.default_rng(seed), Topology.parse(shape)
    laws = torch.stack([law(rng, vocabulary) for _ in range(2 * topology.num_nodes)])
    target, draft = laws[: topology.num_nodes], laws[topology.num_nodes :]

    def next_law(_: DraftTree, nodes: tuple[int, ...]) -> tuple[torch.Tensor, None]:
        return draft[None, list(nodes)], None

    tree, rows = draft_tree(
        "top_residual", topology, torch.tensor([2]), next_law, generator=seeded(seed)
    )
    return Drawn(tree, target[None].log(), rows.log(), rows, Filters(), 0.0, 0.0)


@pytest.mark.parametrize("shape", ["2x2", "chain:3", "3x2"])
@pytest.mark.parametrize("scale", SCALES)
def test_the_scaled_length_is_the_oracles(scale: float, shape: str) -> None:
    for seed in range(5):
        drawn = drawn_tree(seed, shape)
        tree = drawn.tree
        one = DraftTree(tree.topology, tree.tokens)
        laws = Laws.of(
            _SingleTree(one), drawn.target_probs[0].numpy(), drawn.draft_probs[0].numpy()
        )
        expected, alive = 0.0, 1.0
        for node, acceptance, _ in oracle.visits(laws, 0, scale):
            expected += alive * acceptance * tree.topology.depths[node]
            alive *= 1 - acceptance
        assert scaled_length(drawn, scale) == pytest.approx(expected, abs=1e-12)


class _SingleTree:
    """A tree as the oracle takes it: no batch axis."""

    def __init__(self, tree: DraftTree) -> None:
        self.topology, self.tokens = tree.topology, tree.tokens[0].tolist()


@cache
def length_report() -> LengthReport:
    found = LengthReport("2x3")
    for seed in range(240):
        found.add(f"prompt {seed % 60}", drawn_tree(seed, "2x3"))
    return found


def test_univer_accepts_more_than_greedy_on_random_trees() -> None:
    rows = length_report().findings()
    assert [row.holds for row in rows] == [True] * (2 + len(SCALES))
    assert rows[1].value > 0


def test_verifiers_in_exchanged_roles_fail_theorem_6() -> None:
    found = length_report()
    rows = replace(found, univer=found.greedy, greedy=found.univer).findings()
    assert rows[0].holds
    assert not rows[1].holds


def test_a_single_prompt_bounds_nothing() -> None:
    found = LengthReport("2x2")
    for seed in range(5):
        found.add("the only one", drawn_tree(seed, "2x2"))
    assert not found.findings()[1].holds


@pytest.mark.stat
def test_lossless_text_passes_and_pools_over_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(seed), rows_of_text(1.0, 2000, seed)) for seed in range(2)]
    texts = read_texts(folders)
    assert list(texts) == ["univer"]
    rows = text_findings(texts)
    assert all(row.holds for row in rows)
    assert [row.n for row in rows] == [4000, 4000]
    assert "TV of 0.1" in rows[0].found


@pytest.mark.stat
@pytest.mark.parametrize("heat", [0.6, 2.0])
def test_text_of_another_temperature_fails(heat: float, tmp_path: Path) -> None:
    rows = text_findings(read_texts([write_run(tmp_path / "run", rows_of_text(heat, 4000, 1))]))
    assert [row.holds for row in rows] == [False, False]


def rows_of_trees(sign: int) -> list[dict[str, Any]]:
    """Trees on which UniVer accepts more than Greedy, or for sign -1 less; a few hardly so."""
    rng = np.random.default_rng(3)
    rows = []
    for tree in range(200):
        few = tree % 50 == 0
        gain = sign * (0.2 + 0.1 * rng.standard_normal()) * (not few)
        common = {
            "topology": "2x5",
            "temperature": 0.0 if few else 1.0,
            "prompt_id": f"prompt {tree % 40}",
            "tree_id": f"tree {tree}",
        }
        for name, length in (("univer", 1 + gain), ("greedy", 1.0)):
            rows.append(common | {"verifier": name, "expected_accepted": length})
        rows.append(common | {"verifier": "rrsw", "tree_id": f"other {tree}"})
    return rows


@pytest.mark.parametrize("sign", [1, -1])
def test_the_runs_trees_show_theorem_6_or_contradict_it(sign: int, tmp_path: Path) -> None:
    rows = run_length_findings([write_run(tmp_path / "run", rows_of_trees(sign))])
    assert [row.n for row in rows] == [200, 4, 196]
    assert [row.holds for row in rows] == [sign > 0, True, sign > 0]


def test_the_same_names_in_two_runs_are_two_trees(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(i), rows_of_trees(1)) for i in range(2)]
    assert run_length_findings(folders)[0].n == 400


def test_runs_without_common_trees_say_nothing_of_theorem_6(tmp_path: Path) -> None:
    assert run_length_findings([write_run(tmp_path / "run", rows_of_text(1.0, 8, 0))]) == []


def test_a_token_that_cannot_come_fails(tmp_path: Path) -> None:
    rows = rows_of_text(1.0, 80, 0)
    rows[0] |= {"pit": [float("inf")] * 4, "log_prob": [float("-inf")] * 4}
    found = text_findings(read_texts([write_run(tmp_path / "run", rows)]))
    assert [row.holds for row in found] == [False, False]


def test_unreadable_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no part"):
        read_texts([tmp_path])
    (tmp_path / "part-0-0.parquet").write_text("not a table")
    with pytest.raises(InputError, match="cannot be read"):
        read_texts([tmp_path])


@cache
def memo(top_k: int = 0) -> PrefixMemo:
    target, drafter = tiny_llama(31), tiny_llama(32)
    return PrefixMemo(target, drafter, PROMPT, Filters(top_k=top_k))


def test_the_memos_rows_are_the_models() -> None:
    rows = memo()
    slots = rows.slots(torch.tensor([5, 0, -1, 5]))
    assert slots[2] == 0
    assert slots[0] == slots[3] != slots[1]
    for model, laws in ((tiny_llama(31), rows.target), (tiny_llama(32), rows.draft)):
        for slot, text in ((0, PROMPT), (slots[0], (*PROMPT, 5)), (slots[1], (*PROMPT, 0))):
            expected = Filters()(plain_logits(model, text)[-1])
            torch.testing.assert_close(laws[slot], expected, atol=1e-10, rtol=0)


def test_the_memo_refuses_temperature_0() -> None:
    with pytest.raises(InputError, match="temperature"):
        PrefixMemo(tiny_llama(31), tiny_llama(32), PROMPT, Filters(0.0))


def quiet(_: int) -> None:
    """No progress."""


def direct(boxes: dict[str, Box] | None = None, top_k: int = 0, cycles: int = 4000) -> Any:
    shape = Topology.parse("2x2")
    return direct_findings([memo(top_k)], shape, cycles, seeded(3), quiet, boxes)


@pytest.mark.stat
@pytest.mark.parametrize("top_k", [0, 5])
def test_first_two_tokens_pass_for_all_verifiers(top_k: int) -> None:
    rows = direct(top_k=top_k)
    assert [row.holds for row in rows] == [True] * len(PAPER)
    assert all(row.n >= 4000 for row in rows)


@pytest.mark.stat
def test_a_biased_verifier_fails() -> None:
    wrong = planted("ratio-inverted")
    (row,) = direct({"wrong": wrong})
    assert not row.holds
    tv, error = first_token_tv(memo(), wrong, Topology.parse("2x2"), seeded(1))
    assert tv > 6 * error


@pytest.mark.stat
def test_a_lossless_verifier_is_not_said_to_have_a_bias() -> None:
    for name in PAPER:
        box = box_of(name, VERIFIERS[name])
        tv, error = first_token_tv(memo(), box, Topology.parse("2x2"), seeded(1))
        assert tv < 6 * error


@pytest.mark.stat
def test_a_forbidden_token_is_proof() -> None:
    honest = box_of("univer", VERIFIERS["univer"])
    banned = int(memo(5).target[0].argmin())

    def verify(*args: Any, **options: Any) -> Any:
        out = honest.verify(*args, **options)
        out.tokens[0, 0] = banned
        return out

    (row,) = direct({"bad": Box("bad", honest.drafting, verify, honest.stop_law)}, top_k=5)
    assert row.value == float("inf")
    assert not row.holds


@pytest.mark.stat
def test_planted_faults_are_caught_on_a_models_trees() -> None:
    rows = fault_findings(memo(), Topology.parse("2x2"), seeded(5), quiet)
    assert len(rows) == 3
    assert all(row.holds for row in rows if row.value >= theorems_direct.FAULT_TV)
    assert any(row.value >= theorems_direct.FAULT_TV for row in rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))
