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
from reference.laws import as_laws, exact, inverse_cdf
from univer import DraftTree
from univer import Topology as TorchTopology

NAMES = sorted({*reference.VERIFIERS} - {"token_verification", "block_verification"})  # chains
TREE = Tree(Topology((-1, 0, 0)), (0, 1, 2))
THIRDS = np.array([[Fraction(1, 3)] * 3] * 3)
DRAFT = np.array([[Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]])


@pytest.mark.parametrize("name", NAMES)
def test_laws_of_whole_numbers_are_exact(name: str) -> None:
    """A one-hot draft of ints beside a target of fractions is lossless, not almost so."""
    module = reference.VERIFIERS[name]

    def target(_: tuple[int, ...]) -> Any:
        return THIRDS[0]

    for one_hot in ([0, 1, 0], [np.int64(0), np.int64(1), np.int64(0)], [False, True, False]):
        law = np.array(one_hot)

        def draft(_: tuple[int, ...], law: Any = law) -> Any:
            return law

        topology = Topology((-1, 0, 0, 1, 1))
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
    with pytest.raises(ValueError, match="one holds floats, the other fractions"):
        reference.VERIFIERS[name].stop_law(TREE, THIRDS, DRAFT.astype(np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_refused_in_a_sentence(name: str) -> None:
    module = reference.VERIFIERS[name]
    batch = DraftTree(TorchTopology.parse("2x1"), torch.tensor([[0, 1, 2]]))
    with pytest.raises(ValueError, match=r"tree.tokens: expected one tree's 3 tokens"):
        module.stop_law(batch, THIRDS, DRAFT)
    for uniforms in ([0.5] * 3, [[0.5] * 4]):
        with pytest.raises(ValueError, match=r"uniforms: expected \[N \+ 1\] = \[4\]"):
            module.verify(TREE, THIRDS, DRAFT, uniforms=uniforms)


@pytest.mark.parametrize("name", NAMES)
def test_any_object_with_topology_and_tokens_is_a_tree(name: str) -> None:
    """A torch topology with a row of torch tokens gives what the oracle's own tree gives."""

    class Given:
        topology = TorchTopology.parse("2x1")
        tokens: Any = torch.tensor([0, 1, 2])

    module = reference.VERIFIERS[name]
    ours, theirs = (module.stop_law(tree, THIRDS, DRAFT) for tree in (TREE, Given()))
    assert (ours.stop_probs == theirs.stop_probs).all()
    uniforms = np.full(4, 0.25, dtype=np.float32)
    out = module.verify(Given(), THIRDS, DRAFT, uniforms=uniforms)
    assert (
        out.tokens.tolist() == module.verify(TREE, THIRDS, DRAFT, uniforms=uniforms).tokens.tolist()
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_absent_nodes_mean_nothing(name: str) -> None:
    tree = Tree(Topology((-1, 0, 0, 1, 2)), (0, 1, -1, 2, -1))
    target = np.full((5, 3), 1 / 3)
    draft = np.full((3, 3), 1 / 3)
    law = reference.VERIFIERS[name].stop_law(tree, target, draft)
    target[[2, 4]], draft[2] = np.nan, np.inf
    again = reference.VERIFIERS[name].stop_law(tree, target, draft)
    assert (again.stop_probs == law.stop_probs).all()
    assert again.expected_accepted == law.expected_accepted
    assert (again.next_token_probs() == law.next_token_probs()).all()


def test_inverse_cdf_of_nothing_is_absent() -> None:
    assert inverse_cdf(np.zeros(3), 0.5) == -1
