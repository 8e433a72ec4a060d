"""Every row of ALLOCATION is locally lossless for the draft laws it names, at every scale.

Definition 1 for the torch rules themselves: averaged over the children that the draft law can draw,
each token's mass is s p(t); each outcome's masses sum to 1. And a pair that the table leaves out is
refused for a reason: it is lossy.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.drafting import children_law
from stattests.cases import problem
from stattests.crosscheck.both import FLOAT64_TOLERANCE
from stattests.exact import drafted_trees, exact_law, node_hashes, tree_rows
from stattests.strategies import Weights, fractions, law_pairs, scales
from stattests.streams import torch_generator
from univer import DRAFTING, DraftTree, InputError, Topology, Verifier, stop_law, verify
from univer.allocation import ALLOCATION

PAIRS = [(rule, drafting) for rule in sorted(ALLOCATION) for drafting in sorted(DRAFTING)]
NAMED = [pair for pair in PAIRS if pair[1] in ALLOCATION[pair[0]].drafting]
LEFT_OUT = [pair for pair in PAIRS if pair not in NAMED]


def rule_of(rule: str, drafting: str) -> Any:
    """The rule, told the outcomes of the draft law if it asks for them: a pair may be refused."""
    row = ALLOCATION[rule]
    if row.by_outcomes:
        return partial(row.allocate, outcomes=DRAFTING[drafting].outcomes)
    return row.allocate


def most_children(rule: str, drafting: str, most: int) -> int:
    """The largest arity that both take."""
    limits = (ALLOCATION[rule].max_arity, DRAFTING[drafting].max_arity)
    return min([most, *(limit for limit in limits if limit is not None)])


def mean_masses(rule: str, drafting: str, scale: Fraction, target: Any, draft: Any, m: int) -> Any:
    """Mean mass of each token [V] over the draft law's outcomes, checked to sum to 1 in each."""
    outcomes = list(children_law(drafting, draft, m))
    n = len(outcomes)
    children = torch.tensor([drawn for drawn, _ in outcomes])
    masses = rule_of(rule, drafting)(
        torch.full((n,), float(scale), dtype=torch.float64),
        torch.tensor(np.tile(target.astype(np.float64), (n, 1))),
        torch.tensor(np.tile(draft.astype(np.float64), (n, 1))),
        children,
    )
    by_token = masses.residual.clone()
    present = children >= 0
    accepted = torch.where(present, masses.child_acceptance, 0.0)
    by_token.scatter_add_(1, children.clamp(min=0), accepted)
    whole = by_token.sum(-1) + masses.rejection_mass
    assert (whole - 1).abs().max() <= FLOAT64_TOLERANCE
    assert min(by_token.min(), masses.rejection_mass.min()) >= 0
    chances = torch.tensor([float(chance) for _, chance in outcomes], dtype=torch.float64)
    return (chances[:, None] * by_token).sum(0).numpy()


@pytest.mark.parametrize(("rule", "drafting"), NAMED)
@given(pair=st.integers(2, 5).flatmap(law_pairs), scale=scales, data=st.data())
def test_rule_is_locally_lossless_for_its_draft_laws(
    rule: str, drafting: str, pair: tuple[Weights, Weights], scale: Fraction, data: st.DataObject
) -> None:
    arity = data.draw(st.integers(1, most_children(rule, drafting, 2 if rule == "optimal" else 4)))
    target, draft = map(fractions, pair)
    mean = mean_masses(rule, drafting, scale, target, draft, arity)
    exact = (scale * target).astype(np.float64)
    assert np.abs(mean - exact).max() <= FLOAT64_TOLERANCE


@pytest.mark.parametrize(("rule", "drafting"), LEFT_OUT)
def test_pair_that_is_left_out_is_lossy_and_refused(rule: str, drafting: str) -> None:
    arity, draft = most_children(rule, drafting, 2), fractions((1, 1, 8, 2))
    targets = [fractions((2, 8, 0, 3)), fractions((25, 0, 72, 3))]
    means = [mean_masses(rule, drafting, Fraction(1), p, draft, arity) for p in targets]
    assert np.abs(np.array(means) - np.array(targets).astype(np.float64)).max() > 0.01
    with pytest.raises(InputError, match=f"allocation: '{rule}' is not lossless"):
        Verifier(drafting, rule, "local")


@pytest.mark.parametrize("drafting", sorted(DRAFTING))
@pytest.mark.parametrize("topology", ["2x1", "chain:2", "[[0],[1],[0,0]]"])
@pytest.mark.parametrize("composition", ["local", "conditional"])
def test_the_best_rule_is_lossless_and_decides_by_its_law(
    drafting: str, topology: str, composition: str
) -> None:
    verifier, toy = Verifier(drafting, "optimal", composition), problem("near", topology, 4)
    law = exact_law(toy, drafting, partial(stop_law, verifier))
    assert law.joint_tv() <= FLOAT64_TOLERANCE
    tokens, _ = drafted_trees(toy, drafting)
    tree = DraftTree(toy.topology, tokens)
    rows = tree_rows(toy, node_hashes(toy.topology, tokens))
    given = stop_law(verifier, tree, *rows)
    generator = torch_generator(f"{drafting}/{topology}/{composition}")
    for _ in range(8):
        out = verify(verifier, tree, *rows, generator=generator)
        stop = out.accepted_nodes.amax(1).clamp(min=0)
        assert (given.stop_probs.gather(1, stop[:, None]) > 0).all()
        laws = given.next_token_probs()[torch.arange(len(stop)), stop]
        assert (laws.gather(1, out.next_token[:, None]) > 0).all()


def test_the_best_rule_refuses_what_is_never_drawn_and_what_is_no_toy() -> None:
    tree = DraftTree(Topology.parse("2x1"), torch.tensor([[0, 1, 2]]))
    law = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).expand(1, 3, 3)
    verifier = Verifier("with_replacement", "optimal", "conditional")
    with pytest.raises(InputError, match=r"children \[1, 2\] are never drawn"):
        stop_law(verifier, tree, law, law[:, :1])
    wide = torch.full((1, 3, 5000), 1 / 5000, dtype=torch.float64)
    with pytest.raises(InputError, match="'optimal' is for toys; 2 children of 5000 tokens"):
        stop_law(verifier, tree, wide, wide[:, :1])


def test_the_hub_is_the_one_that_was_drawn_from() -> None:
    """Neighbouring numbers become equal when they are divided by their sum, just below 1."""
    draft = torch.tensor([[0.24999959026476065, 0.24999959026476068, *[0.16666693982349287] * 2,
                           0.16660693982349287]], dtype=torch.float64)  # fmt: skip
    target = torch.tensor([0.5, 0.1, 0.1, 0.2, 0.1], dtype=torch.float64)
    assert (draft / draft.sum())[0, 0] == (draft / draft.sum())[0, 1]
    mean = torch.zeros(5, dtype=torch.float64)
    for children, chance in DRAFTING["spechub_pairs"].outcomes(draft[0].numpy(), 2):
        one = torch.ones(1, dtype=torch.float64)
        found = ALLOCATION["spechub"].allocate(one, target[None], draft, torch.tensor([children]))
        mean += chance * found.residual[0].index_add(
            0, torch.tensor(children), found.child_acceptance[0]
        )
    torch.testing.assert_close(mean / mean.sum(), target, atol=1e-9, rtol=0)
