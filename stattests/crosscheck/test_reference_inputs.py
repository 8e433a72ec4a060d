"""The oracle stays exact, and says so when it cannot: whole numbers, NumPy numbers, odd shapes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import reference
from reference import enumeration
from reference.decision import Topology, Tree
from reference.drafting import WHOLE
from reference.laws import as_laws, exact, inverse_cdf
from reference.toy_optima import max_arity
from stattests.crosscheck.both import fitting
from univer import VERIFIERS, DraftTree

NAMES = sorted(VERIFIERS)
HALF = np.array([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)])


def example(name: str, spec: str = "2x1") -> tuple[Tree, Any, Any]:
    """A tree that the verifier takes, with the tokens 0, 1, 2, ... and its laws."""
    topology = Topology(fitting(name, spec).parents)
    target = np.array([[Fraction(1, 3)] * 3] * topology.num_nodes)
    tokens = tuple(range(topology.num_nodes))
    return Tree(topology, tokens), target, np.array([HALF] * len(topology.internal))


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_row_has_a_twin_for_the_same_trees(name: str) -> None:
    twin, row = reference.VERIFIERS.get(name), VERIFIERS[name]
    assert twin is not None, (
        f"reference.VERIFIERS has no {name!r}: write its rule as a module of `reference` and add it"
        " to LAYERS (or, a whole verifier, to VERIFIERS) in reference/__init__.py"
    )
    assert row.drafting == twin.DRAFTING, f"{name}: DRAFTING of its twin is another draft law"
    assert max_arity(name) == row.max_arity, (
        f"{name}: its twin's module must say MAX_ARITY = {row.max_arity} (nothing for None)"
    )


@pytest.mark.parametrize("name", NAMES)
def test_laws_of_whole_numbers_are_exact(name: str) -> None:
    """A one-hot draft of ints beside a target of fractions is lossless, not almost so."""
    module = reference.VERIFIERS[name]

    def target(_: tuple[int, ...]) -> Any:
        return np.array([Fraction(1, 3)] * 3)

    for one_hot in ([0, 1, 0], [np.int64(0), np.int64(1), np.int64(0)], [False, True, False]):
        law = np.array(one_hot)

        def draft(_: tuple[int, ...], law: Any = law) -> Any:
            return law

        topology = Topology(fitting(name, "[[0],[1],[0,0],[0,1]]").parents)
        outputs = enumeration.output_law(module.stop_law, module.DRAFTING, topology, target, draft)
        assert enumeration.conditional_violations(outputs, target) == []


def test_fractions_of_numpy_integers_do_not_overflow() -> None:
    narrow = Fraction(np.int64(1), np.int64(10**9))  # type: ignore[call-overload]
    law = as_laws(np.array([narrow], dtype=object))
    power = law[0] ** 5
    assert type(power.numerator) is int
    assert power == Fraction(1, 10**45)
    assert exact(np.float32(0.5)) == Fraction(1, 2)


@pytest.mark.parametrize("name", NAMES)
def test_floats_beside_fractions_are_refused(name: str) -> None:
    tree, target, draft = example(name)
    with pytest.raises(ValueError, match="one holds floats, the other fractions"):
        reference.VERIFIERS[name].stop_law(tree, target, draft.astype(np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_refused_in_a_sentence(name: str) -> None:
    module, (tree, target, draft) = reference.VERIFIERS[name], example(name)
    n = tree.topology.num_nodes
    batch = DraftTree(fitting(name, "2x1"), torch.tensor([tree.tokens]))
    with pytest.raises(ValueError, match=f"tree.tokens: expected one tree's {n} tokens"):
        module.stop_law(batch, target, draft)
    for uniforms in ([0.5] * n, [[0.5] * (n + 1)]):
        with pytest.raises(ValueError, match=rf"uniforms: expected \[N \+ 1\] = \[{n + 1}\]"):
            module.verify(tree, target, draft, uniforms=uniforms)


@pytest.mark.parametrize("name", NAMES)
def test_any_object_with_topology_and_tokens_is_a_tree(name: str) -> None:
    """A torch topology with a row of torch tokens gives what the oracle's own tree gives."""
    tree, target, draft = example(name)

    class Given:
        topology = fitting(name, "2x1")
        tokens: Any = torch.tensor(tree.tokens)

    module = reference.VERIFIERS[name]
    ours, theirs = (module.stop_law(each, target, draft) for each in (tree, Given()))
    assert (ours.stop_probs == theirs.stop_probs).all()
    uniforms = np.full(tree.topology.num_nodes + 1, 0.25, dtype=np.float32)
    out, again = (module.verify(each, target, draft, uniforms=uniforms) for each in (Given(), tree))
    assert out.tokens.tolist() == again.tokens.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_absent_nodes_mean_nothing(name: str) -> None:
    spec = "[[0],[1],[0,0],[1,0]]" if fitting(name, "2x1").num_nodes > 2 else "chain:2"
    topology = Topology(fitting(name, spec).parents)
    whole = reference.VERIFIERS[name].DRAFTING in WHOLE
    absent = [v for v in ((4,) if whole else (2, 4)) if v < topology.num_nodes]
    tokens = tuple(-1 if v in absent else v % 3 for v in range(topology.num_nodes))
    tree = Tree(topology, tokens)
    target = np.full((topology.num_nodes, 3), 1 / 3)
    draft = np.full((len(topology.internal), 3), 1 / 3)
    law = reference.VERIFIERS[name].stop_law(tree, target, draft)
    target[absent] = np.nan
    draft[[k for k, v in enumerate(topology.internal) if v in absent]] = np.inf
    again = reference.VERIFIERS[name].stop_law(tree, target, draft)
    assert (again.stop_probs == law.stop_probs).all()
    assert again.expected_accepted == law.expected_accepted
    assert (again.next_token_probs() == law.next_token_probs()).all()


def test_inverse_cdf_of_nothing_is_absent() -> None:
    assert inverse_cdf(np.zeros(3), 0.5) == -1
