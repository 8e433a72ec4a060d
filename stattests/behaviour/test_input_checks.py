"""SPEC 10, case by case: one clear error that names the argument and the offending row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from univer import (
    PAPER,
    DraftTree,
    Filters,
    InputError,
    Topology,
    Verifier,
    stop_law,
    verify,
    verify_logits,
)
from univer.drafting import draft_children, draft_tree

TOPOLOGY = Topology.from_parents([-1, 0, 0, 1, 1])
B, N, V = 3, 5, 4


def good() -> dict[str, Any]:
    """A well-formed call of verify."""
    generator = torch.Generator().manual_seed(1)
    return {
        "verifier": "univer",
        "tree": DraftTree(TOPOLOGY, torch.tensor([[0, 1, 2, 0, 3]] * B)),
        "target_probs": torch.rand(B, N, V, generator=generator).softmax(-1),
        "draft_probs": torch.rand(B, 2, V, generator=generator).softmax(-1),
        "uniforms": torch.full((B, N + 1), 0.5, dtype=torch.float64),
    }


def call(arguments: dict[str, Any], function: Callable[..., Any] = verify) -> Any:
    arguments = dict(arguments)
    positional = [arguments.pop(k) for k in ("verifier", "tree", "target_probs", "draft_probs")]
    return function(*positional, **arguments)


def tokens(*rows: list[int]) -> DraftTree:
    return DraftTree(TOPOLOGY, torch.tensor([[0, 1, 2, 0, 3], [0, 1, 2, 0, 3], *rows][-B:]))


def row(name: str, tree: int, node: int, value: float) -> Callable[[dict[str, Any]], None]:
    """Put a value into one entry of a law."""

    def change(arguments: dict[str, Any]) -> None:
        arguments[name][tree, node, 1] = value

    return change


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Replace one argument."""
    return lambda arguments: arguments.__setitem__(name, value)


CASES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "unknown verifier": (put("verifier", "medusa"), "verifier: 'medusa' is unknown; choose one of"),
    "verifier of a wrong type": (put("verifier", 3), "verifier: 3 is unknown"),
    "no tree": (put("tree", [0, 1]), "tree: expected a DraftTree, got list"),
    "target is a list": (put("target_probs", [1.0]), "target_probs: expected a torch tensor"),
    "target of whole numbers": (
        put("target_probs", torch.ones(B, N, V, dtype=torch.int64)),
        "target_probs: expected a floating-point tensor, got torch.int64",
    ),
    "target without batch axis": (
        put("target_probs", torch.full((N, V), 1 / V)),
        r"target_probs: expected shape \[B, nodes, V\] = \[3, 5, V >= 1\], got \[5, 4\]",
    ),
    "target for another tree": (
        put("target_probs", torch.full((B, N + 1, V), 1 / V)), "target_probs: expected shape",
    ),
    "draft with a row a node": (
        put("draft_probs", torch.full((B, N, V), 1 / V)),
        r"draft_probs: expected shape .* = \[3, 2, V >= 1\], got \[3, 5, 4\]",
    ),
    "no draft": (put("draft_probs", None), "draft_probs: expected a torch tensor, got NoneType"),
    "vocabularies that differ": (
        put("draft_probs", torch.full((B, 2, V + 2), 1 / (V + 2))),
        "draft_probs: its vocabulary has 6 tokens but target's has 4",
    ),
    "NaN in a target row": (
        row("target_probs", 1, 3, torch.nan), "target_probs: the row of node 3 in tree 1 holds NaN",
    ),
    "infinity in a target row": (
        row("target_probs", 2, 0, torch.inf), "target_probs: the row of node 0 in tree 2 holds NaN",
    ),
    "negative probability": (
        row("draft_probs", 0, 1, -0.1),
        "draft_probs: the row of node 1 in tree 0 holds -0.1; probabilities must not be negative",
    ),
    "NaN in a draft row": (
        row("draft_probs", 1, 0, torch.nan), "draft_probs: the row of node 0 in tree 1 holds NaN",
    ),
    "row that does not sum to 1": (
        row("target_probs", 0, 4, 0.9), "target_probs: the row of node 4 in tree 0 sums to",
    ),
    "logits given as probabilities": (
        put("target_probs", torch.randn(B, N, V, generator=torch.Generator().manual_seed(0))),
        "target_probs: the row of node 0 in tree 0 (holds -|sums to)",
    ),
    "token beyond the vocabulary": (
        put("tree", tokens([0, 1, 4, 0, 3])), "tree.tokens: node 2 of tree 2 holds token 4",
    ),
    "token below -1": (
        put("tree", tokens([0, 1, -2, 0, 3])), "tree.tokens: node 2 of tree 2 holds token -2",
    ),
    "absent before a real child": (
        put("tree", tokens([0, -1, 2, -1, -1])), "tree.tokens: node 1 of tree 2 is absent",
    ),
    "child of an absent node": (
        put("tree", tokens([0, -1, -1, 0, 3])),
        "tree.tokens: node 3 of tree 2 is present but its parent 1 is absent",
    ),
    "duplicated sibling": (
        put("tree", tokens([0, 1, 2, 3, 3])), "token 3 is drafted twice below node 1 of tree 2",
    ),
    "uniforms in float32": (put("uniforms", torch.zeros(B, N + 1)), "uniforms: expected a float64"),
    "one uniform too few": (
        put("uniforms", torch.zeros(B, N, dtype=torch.float64)),
        r"uniforms: expected shape \[3, 6\], got \[3, 5\]",
    ),
    "uniform of 1": (
        put("uniforms", torch.ones(B, N + 1, dtype=torch.float64)), "uniforms: entry .* is 1.0",
    ),
    "no randomness": (put("uniforms", None), "uniforms, generator: pass exactly one"),
    "two sources of randomness": (
        put("generator", torch.Generator()), "uniforms, generator: pass exactly one",
    ),
}  # fmt: skip


def test_the_call_that_the_cases_change_is_good() -> None:
    for name in PAPER:
        call({**good(), "verifier": name})


@pytest.mark.parametrize("case", sorted(CASES))
def test_bad_input_is_named(case: str) -> None:
    change, says = CASES[case]
    arguments = good()
    change(arguments)
    with pytest.raises(InputError, match=says):
        call(arguments)


LAW_CASES = sorted(case for case in CASES if "uniform" not in case and "randomness" not in case)
# Shapes, types, vocabularies and tokens: the same for laws and logits.
SHAPE_CASES = sorted(
    case for case in LAW_CASES if not any(word in case for word in ("row", "negative", "logits"))
)


@pytest.mark.parametrize("case", LAW_CASES)
def test_stop_law_checks_the_same(case: str) -> None:
    change, says = CASES[case]
    arguments = good()
    change(arguments)
    del arguments["uniforms"]
    with pytest.raises(InputError, match=says):
        call(arguments, stop_law)


@pytest.mark.parametrize("case", SHAPE_CASES)
def test_verify_logits_checks_the_same_of_its_logits(case: str) -> None:
    change, says = CASES[case]
    arguments = logits()
    change(arguments)
    with pytest.raises(InputError, match=says.replace("_probs", "_logits")):
        call(arguments, verify_logits)


@pytest.mark.parametrize("sibling", ["rrsw", "univer"])
def test_duplicate_is_refused_under_both_draft_laws(sibling: str) -> None:
    with pytest.raises(InputError, match="siblings must be distinct"):
        call({**good(), "verifier": sibling, "tree": tokens([0, 1, 1, 0, 3])})


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [
        ((B, N), torch.int32, "expected an int64 tensor"),
        ((B, N), torch.float32, "expected an int64 tensor"),
        ((N,), torch.int64, r"expected shape \[B, N\] with N = 5, got \[5\]"),
        ((B, N + 1), torch.int64, r"got \[3, 6\]"),
    ],
)
def test_tokens_of_a_wrong_shape_or_type(
    shape: tuple[int, ...], dtype: torch.dtype, says: str
) -> None:
    with pytest.raises(InputError, match=f"^tree.tokens: .*{says}"):
        DraftTree(TOPOLOGY, torch.zeros(shape, dtype=dtype))


def test_a_tree_needs_a_topology() -> None:
    with pytest.raises(InputError, match=r"^tree.topology: expected a Topology, got str"):
        DraftTree("2x2", torch.zeros(1, 7, dtype=torch.int64))  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["drafting", "allocation", "composition"])
def test_unknown_part_of_a_verifier(part: str) -> None:
    parts = {"drafting": "top_residual", "allocation": "ot", "composition": "local", part: "beam"}
    with pytest.raises(InputError, match=f"^{part}: 'beam' is unknown; choose one of"):
        Verifier(**parts)


def logits() -> dict[str, Any]:
    """A well-formed call of verify_logits."""
    arguments = good()
    for name in ("target_probs", "draft_probs"):
        arguments[name] = arguments[name].log()
    return arguments


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("name", "node"), [("target", 1), ("draft", 1)])
def test_bad_logits_are_named(name: str, node: int, bad: float) -> None:
    arguments = logits()
    arguments[f"{name}_probs"][2, node, 0] = bad
    with pytest.raises(InputError, match=f"{name}_logits: the row of node 1 in tree 2 holds NaN"):
        call(arguments, verify_logits)


def test_logits_of_minus_infinity_are_tokens_that_cannot_come() -> None:
    arguments = logits()
    arguments["target_probs"][..., 0] = -torch.inf
    out = call(arguments, verify_logits)
    assert not (out.tokens == 0).any()
    arguments["target_probs"][1, 0] = -torch.inf
    with pytest.raises(InputError, match="target_logits: the row of node 0 in tree 1"):
        call(arguments, verify_logits)


def test_verify_logits_looks_only_at_rows_it_reads() -> None:
    """A leaf's row matters where the cycle stops at that leaf, and only there."""
    arguments = logits()
    arguments["target_probs"][:, 3] = torch.nan
    for stop_there in (False, True):
        arguments["uniforms"] = torch.full((B, N + 1), 1 - 2**-53, dtype=torch.float64)
        arguments["uniforms"][:, 3] = 0.0 if stop_there else 1 - 2**-53
        if stop_there:
            with pytest.raises(InputError, match="target_logits: the row of node 3 in tree 0"):
                call(arguments, verify_logits)
        else:
            call(arguments, verify_logits)


@pytest.mark.parametrize("temperature", [-1.0, float("nan")])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(InputError, match=r"^temperature: expected a number >= 0"):
        call({**logits(), "temperature": temperature}, verify_logits)


def test_draft_children_checks_its_input() -> None:
    law, eta = torch.full((2, 4), 0.25), torch.zeros(2, 3, dtype=torch.float64)
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("beam", law, 3, eta), "drafting: 'beam' is unknown"),
        (("top_residual", law[0], 3, eta), "draft_probs: expected 2 axes"),
        (("top_residual", law, 0, eta), "arity: expected an integer >= 1, got 0"),
        (("top_residual", law, "3", eta), "arity: expected an integer >= 1, got '3'"),
        (("top_residual", law.long(), 3, eta), "draft_probs: expected a floating-point tensor"),
        (("top_residual", [[1.0]], 3, eta), "draft_probs: expected a torch tensor, got list"),
        (("top_residual", law, 3, eta, [[1.0]]), "scores: expected a torch tensor, got list"),
        (("top_residual", law, 3, eta, law.long()), "scores: expected a floating-point tensor"),
        (("top_residual", law, 2, eta), r"uniforms: expected shape \[2, 2\], got \[2, 3\]"),
        (("top_residual", law, 3, eta.float()), "uniforms: expected a float64 tensor"),
        (("top_residual", law, 3, eta, law[:1]), "scores: expected the shape of draft_probs"),
        (("top_residual", -law, 3, eta), "draft_probs: row 0"),
        (("top_residual", law * torch.nan, 3, eta), "draft_probs: row 0"),
        (("top_residual", law * 2, 3, eta), "draft_probs: row 0"),
        (("top_residual", law, 3, eta, law * torch.nan), "scores: row 0"),
    ]
    for arguments, says in cases:
        with pytest.raises(InputError, match=says):
            draft_children(*arguments)


Change = Callable[[torch.Tensor], Any]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda law: law * torch.nan, "draft_probs: the row of node 0 in tree 0 holds NaN"),
        (lambda law: law.log(), "draft_probs: the row of node 0 in tree 0 holds -"),
        (lambda law: law * 0, "draft_probs: the row of node 0 in tree 0 sums to 0"),
        (lambda law: law[:1], "next_law: expected laws of shape"),
        (lambda law: law.repeat(1, 2, 1), "next_law: expected laws of shape"),
        (lambda law: law[0], "draft_probs: expected 3 axes"),
        (lambda law: law.long(), "draft_probs: expected a floating-point tensor"),
    ],
)
def test_draft_tree_checks_what_next_law_returns(change: Change, says: str) -> None:
    root = torch.zeros(2, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)

    def next_law(_: DraftTree, nodes: tuple[int, ...]) -> tuple[torch.Tensor, None]:
        return change(torch.full((2, len(nodes), 4), 0.25)), None

    with pytest.raises(InputError, match=says):
        draft_tree("top_residual", TOPOLOGY, root, next_law, generator=generator)


def test_draft_tree_checks_its_other_arguments() -> None:
    root = torch.zeros(2, dtype=torch.int64)
    cases: list[tuple[Any, ...]] = [
        ("beam", TOPOLOGY, root, "drafting: 'beam' is unknown"),
        ("top_residual", "2x2", root, "topology: expected a Topology, got str"),
        ("top_residual", TOPOLOGY, [0, 0], "root: expected an int64 tensor"),
        ("top_residual", TOPOLOGY, root[None], "root: expected an int64 tensor"),
    ]
    for drafting, topology, first, says in cases:
        with pytest.raises(InputError, match=says):
            draft_tree(drafting, topology, first, None, generator=torch.Generator())  # type: ignore[arg-type]


def test_randomness_is_checked_before_it_is_used() -> None:
    arguments = good()
    del arguments["uniforms"]
    with pytest.raises(InputError, match=r"^generator: expected a torch.Generator, got int"):
        call({**arguments, "generator": 3})
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    arguments["target_probs"][0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="target_probs"):
        call({**arguments, "generator": generator})
    assert torch.equal(generator.get_state(), before)


ROOT, LAW = torch.zeros(2, dtype=torch.int64), torch.full((2, 4), 0.25)
ETA = torch.zeros(2, 3, dtype=torch.float64)
GIVEN: dict[str, Callable[[Any], Any]] = {  # every argument that must be a tensor, and a right one
    "tree.tokens": lambda wrong: DraftTree(TOPOLOGY, wrong(torch.zeros(B, N, dtype=torch.int64))),
    "root": lambda wrong: draft_tree("top_residual", TOPOLOGY, wrong(ROOT), None, uniforms=ETA),  # type: ignore[arg-type]
    "draft_probs": lambda wrong: draft_children("top_residual", wrong(LAW), 3, ETA),
    "scores": lambda wrong: draft_children("top_residual", LAW, 3, ETA, wrong(LAW)),
    "logits": lambda wrong: Filters()(wrong(LAW)),
    **{
        name: lambda wrong, name=name: call({**good(), name: wrong(good()[name])})  # type: ignore[misc]
        for name in ("target_probs", "draft_probs", "uniforms")
    },
}
WRONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "a NumPy array of shape {shape} and dtype {dtype}": lambda right: right.numpy(),
    "list": lambda right: right.tolist(),
    "NoneType": lambda _: None,
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("argument", GIVEN)
def test_what_is_no_tensor_is_called_what_it_is(argument: str, kind: str) -> None:
    seen: list[torch.Tensor] = []

    def wrong(right: torch.Tensor) -> Any:
        seen.append(right)
        return WRONG[kind](right)

    if (argument, kind) in {("scores", "NoneType"), ("uniforms", "NoneType")}:
        pytest.skip("None means that there is none")
    with pytest.raises(InputError) as refused:
        GIVEN[argument](wrong)
    dtype = str(seen[0].dtype).removeprefix("torch.")
    says = kind.format(shape=list(seen[0].shape), dtype=dtype)
    assert str(refused.value).startswith(f"{argument}: expected ")
    assert f", got {says}" in str(refused.value)
