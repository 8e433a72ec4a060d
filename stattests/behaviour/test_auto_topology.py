"""The cost model, and the topology that is chosen while a text is written.

Times come from a clock that the models themselves move, so that no test depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from stattests.behaviour.test_decoding_laws import PROMPT, PlainRows
from stattests.behaviour.test_eagle import models
from stattests.behaviour.tiny_models import LAW_TOLERANCE, tiny_llama
from stattests.exact import drafted_trees, node_hashes, tree_rows
from stattests.problems import Problem, normalised
from univer import PAPER, VERIFIERS, Filters, InputError, Topology, stop_law
from univer.auto_topology import CANDIDATES, Auto, choose, lengths_inside
from univer.cached_model import CachedModel
from univer.cost_model import PLAIN, Choice, Costs, model_speeds
from univer.decoder import Drawn
from univer.decoding import decode, generate, speculative
from univer.drafters.layer_skip import layer_skip
from univer.drafting import DraftTree

TWO, THREE = Topology.parse("2x2"), Topology.parse("2x3")
SMALL = ("chain:1", "2x2", "2x3")
EXACT = 1e-12


class Clock:
    """Seconds that pass only in a model's forwards."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The seconds so far."""
        return self.now

    def on(self, model: Any, seconds: Callable[[torch.Tensor], float]) -> Any:
        """The model, whose forwards take this long, by the token ids that they are fed."""

        def pass_time(module: Any, args: Any, given: dict[str, Any]) -> None:
            del module, args
            self.now += seconds(given["input_ids"][0])

        model.register_forward_pre_hook(pass_time, with_kwargs=True)
        return model


def test_speed_is_length_over_time() -> None:
    costs = {PLAIN: Costs(0, 80, 0, 2), TWO: Costs(40, 160, 3, 2)}
    choice = model_speeds({PLAIN: [1], TWO: [2.0]}, costs)
    plain, tree = choice.rows
    assert plain.tokens_per_second == pytest.approx(1e3 / 82)
    assert tree.tokens_per_second == pytest.approx(2e3 / 205)
    assert tree.speed_up == pytest.approx(2 * 82 / 205)
    assert (tree.forward_ratio, tree.draft_ratio, plain.draft_ratio) == (2.0, 0.25, 0.0)
    assert choice.topology == PLAIN


def test_a_tree_pays_just_below_its_bound() -> None:
    for length, draft in ((1.7, 12.0), (2.4, 50.0)):
        costs = {PLAIN: Costs(0, 80, 0, 2), TWO: Costs(draft, 160, 3, 2)}
        bound = model_speeds({PLAIN: [1], TWO: [length]}, costs).rows[1].pays_below
        for ratio, best in ((bound - 1e-9, TWO), (bound + 1e-9, PLAIN)):
            costs[TWO] = Costs(draft, 80 * ratio, 3, 2)
            assert model_speeds({PLAIN: [1], TWO: [length]}, costs).topology == best


def test_the_table_says_why() -> None:
    costs = {PLAIN: Costs(0, 80, 0, 2), TWO: Costs(40, 160, 3, 2), THREE: Costs(60, 270, 5, 2)}
    text = str(model_speeds({PLAIN: [1], TWO: [1.5, 2.5], THREE: [2.2]}, costs))
    row = " ".join(text.splitlines()[2].split())
    assert row == "2x2 6 2.00 +- 0.50 205.0 40.0 160.0 3.0 2.0 2.00 0.25 9.8 0.80"
    assert "chosen: none" in text
    assert "2x2, brings 2.00 tokens a cycle that costs 2.50 plain ones (0.80 x)" in text
    costs[TWO] = Costs(4, 100, 3, 2)
    assert "chosen: 2x2, 1.50 x plain decoding" in str(
        model_speeds({PLAIN: [1], TWO: [1.5, 2.5], THREE: [2.2]}, costs)
    )
    assert "only candidate" in model_speeds({PLAIN: [1]}, {PLAIN: costs[PLAIN]}).reason()


def problem(topology: Topology) -> Problem:
    target, draft = np.random.default_rng(4).random((2, 5, 3)) ** 2
    return Problem("toy", topology, normalised(target), normalised(draft))


@pytest.mark.parametrize("verifier", PAPER)
def test_lengths_inside_a_tree_are_those_of_trees_drawn_alone(verifier: str) -> None:
    """Over all trees that can be drawn: an average of exact numbers, nothing is sampled."""
    rule, star = VERIFIERS[verifier], Topology.parse("2x1")
    found = {}
    for shape in (TWO, star):
        toy = problem(shape)
        tokens, chances = drafted_trees(toy, rule.drafting)
        rows = tree_rows(toy, node_hashes(shape, tokens))
        tree = DraftTree(shape, tokens)
        exact = stop_law(verifier, tree, *rows).expected_accepted.numpy()
        found[shape] = 1 + float(exact @ chances)
        if shape == TWO:
            lengths: dict[Topology, float] = {TWO: 0.0, star: 0.0}
            for row, chance in enumerate(chances):
                one = slice(row, row + 1)
                p, q = (part[one].log() for part in rows)
                drawn = Drawn(DraftTree(shape, tokens[one]), p, q, rows[1][one], Filters(), 0, 0)
                for small, length in lengths_inside(rule, drawn, (TWO, star)).items():
                    lengths[small] += chance * length
    assert lengths == pytest.approx(found, abs=EXACT)


def test_a_chain_is_not_inside_a_tree_of_more_children() -> None:
    """Its only child is drawn from the whole law, the first of two is the most probable token."""
    target, generator = tiny_llama(3), torch.Generator().manual_seed(0)
    cycles = decode(target, target, PROMPT, topology="2x3", max_new_tokens=9, generator=generator)
    cycle = next(cycles)
    shapes = [Topology.parse(spec) for spec in (*CANDIDATES, "2x3", "3x1", [[0], [1], [0, 0]])]
    found = lengths_inside(VERIFIERS["univer"], cycle.drawn, shapes)
    assert set(found) == {PLAIN, TWO, THREE}
    assert found[PLAIN] == 1


def timed(seconds: Callable[[int], float], seed: int = 3) -> tuple[Any, Clock]:
    """A target whose forward of k tokens takes this long."""
    clock = Clock()
    return clock.on(tiny_llama(seed), lambda ids: seconds(len(ids))), clock


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        (lambda k: 1 + 0 * k, "2x3"),
        (lambda k: 1 + 0.2 * k, "chain:1"),
        (lambda k: 1.0 * k**2, "none"),
    ],
    ids=["flat", "rising", "steep"],
)
def test_the_price_of_a_forward_decides(seconds: Callable[[int], float], chosen: str) -> None:
    """The drafter costs nothing and agrees with the target, so that every tree is accepted."""
    target, clock = timed(seconds)
    told: list[Choice] = []
    auto = Auto(SMALL, rounds=2, told=told.append, clock=clock)
    done = generate(target, tiny_llama(3), PROMPT, topology=auto, max_new_tokens=50, seed=0)
    assert done.choice is not None
    assert told == [done.choice]
    assert str(done.choice.topology) == chosen
    for row in done.choice.rows:
        assert row.costs.target_ms == pytest.approx(1e3 * seconds(row.topology.num_nodes))
        assert row.length == pytest.approx(1 + row.topology.depth, abs=1e-6)
    # The cycles after the plan: as many tokens as the chosen tree is deep, and one.
    rest = [len(record.tokens) for record in done.cycles[len(auto.plan) : -1]]
    assert rest
    assert set(rest) == {done.choice.best.topology.depth + 1}


class Fickle:
    """A drafter that agrees with the target for some trees, and from then on never."""

    def __init__(self, trees: int) -> None:
        self._left = trees

    def start(self, target: CachedModel) -> CachedModel:
        """The session."""
        del target
        session = CachedModel(tiny_llama(3), "drafter")
        right = session.logits

        def logits(text: Sequence[int], tree: DraftTree, nodes: Sequence[int]) -> torch.Tensor:
            self._left -= nodes[0] == 0
            rows = right(text, tree, nodes)
            return rows if self._left >= 0 else -9 * rows

        session.logits = logits  # type: ignore[method-assign]
        return session


def test_a_tree_that_was_overrated_is_found_out() -> None:
    target, clock = timed(lambda k: 1 + 0.21 * k)
    told: list[Choice] = []
    auto = Auto(("2x1",), rounds=2, told=told.append, clock=clock)
    options: dict[str, Any] = {"max_new_tokens": 50, "seed": 0}
    done = generate(target, Fickle(3), PROMPT, topology=auto, **options)
    assert [str(choice.topology) for choice in told] == ["2x1", "none"]
    assert told[0].best.length == pytest.approx(2)
    assert done.choice == told[-1]
    tree = told[1].rows[1]
    assert 1 < tree.length < 1.63 / 1.21  # what its forward costs
    assert len(tree.lengths) > len(told[0].rows[1].lengths)
    still = generate(target, tiny_llama(3), PROMPT, topology=replace(auto, told=None), **options)
    assert str(still.choice.topology if still.choice else None) == "2x1"


def constant(seconds: float, ids: torch.Tensor) -> float:
    del ids
    return seconds


def test_the_drafters_time_counts() -> None:
    target, clock = timed(lambda k: 1 + 0 * k)
    for price, chosen in ((0.01, "2x3"), (1.5, "none")):
        drafter = clock.on(tiny_llama(3), partial(constant, price))
        found = choose(
            target,
            drafter,
            PROMPT,
            auto=Auto(("none", "2x2", "2x3"), rounds=1, clock=clock),
            generator=torch.Generator().manual_seed(0),
        )
        assert str(found.topology) == chosen
        assert found.rows[2].draft_ratio == pytest.approx(price)


def test_reading_the_prompt_is_no_part_of_a_tree_s_price() -> None:
    target, clock = timed(lambda k: 1.0 * k)
    auto = Auto(("2x2",), rounds=1, clock=clock)
    generator = torch.Generator().manual_seed(0)
    found = choose(target, tiny_llama(7), [*range(8)] * 4, auto=auto, generator=generator)
    assert [row.costs.target_ms for row in found.rows] == pytest.approx([1e3, 7e3])


def test_a_cycle_s_topology_is_settled_before_it_draws() -> None:
    """Other random numbers from a cycle on leave the topology of that very cycle as it was.

    The clock depends on the text, so that they do lead to other choices afterwards.
    """
    cycles = 9  # the plan has seven, and then comes what was chosen

    def shapes(changed: int | None) -> list[Topology]:
        clock = Clock()
        target = clock.on(tiny_llama(3), lambda ids: 1 + 0.7 * float((ids % 3 == 0).sum()))
        generator = torch.Generator().manual_seed(1)
        texts = decode(
            target,
            tiny_llama(7),
            PROMPT,
            topology=Auto(("2x1", "2x2"), rounds=2, clock=clock),
            max_new_tokens=50,
            generator=generator,
        )
        found = []
        for number in range(cycles):
            if number == changed:
                generator.manual_seed(99)
            found.append(next(texts).drawn.tree.topology)
        return found

    usual, chosen = shapes(None), set()
    for changed in range(cycles):
        other = shapes(changed)
        assert other[: changed + 1] == usual[: changed + 1]
        chosen.add(other[-1])
    assert len(chosen) > 1


@pytest.mark.parametrize("kind", ["small-model", "layer-skip", "eagle"])
def test_laws_stay_plain_while_topologies_change(kind: str) -> None:
    """Caches and positions, when every cycle has another tree; greedy texts are the target's."""
    target, head = models()
    drafter = {"small-model": tiny_llama(7), "layer-skip": layer_skip(target, 1), "eagle": head}[
        kind
    ]
    plain, text, seen = PlainRows(target), list(PROMPT), set()
    for cycle in decode(
        target,
        drafter,
        PROMPT,
        topology=Auto(SMALL, rounds=2),
        max_new_tokens=40,
        generator=torch.Generator().manual_seed(0),
    ):
        shape, tokens = cycle.drawn.tree.topology, cycle.drawn.tree.tokens[0].tolist()
        seen.add(shape)
        for node in range(shape.num_nodes):
            path = [tokens[v] for v in shape.path(node)]
            if -1 not in path:
                torch.testing.assert_close(
                    cycle.drawn.target_probs[0, node],
                    Filters()(plain([*text, *path])),
                    atol=LAW_TOLERANCE[torch.float64],
                    rtol=0,
                )
        text += cycle.record.tokens
    assert len(seen) == 4
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 40, "seed": 0}
    done = generate(target, drafter, PROMPT, topology="auto", **options)
    assert done.tokens == generate(target, drafter, PROMPT, topology="none", **options).tokens


def test_hugging_faces_generate_chooses_too() -> None:
    target, clock = timed(lambda k: 1 + 0 * k)
    ids = torch.tensor([PROMPT])
    for new, made in ((50, True), (3, False)):
        done = target.generate(
            ids,
            custom_generate=speculative(tiny_llama(3), topology=Auto(SMALL, rounds=1, clock=clock)),
            do_sample=True,
            max_new_tokens=new,
            return_dict_in_generate=True,
        )
        assert done.sequences.shape == (1, len(PROMPT) + new)
        assert (done.choice is not None) is made


def test_a_text_that_ends_in_the_warm_up_makes_no_choice() -> None:
    target = tiny_llama(3)
    done = generate(target, target, PROMPT, topology="auto", max_new_tokens=3, seed=0)
    assert done.choice is None
    assert len(done.tokens) == 3


def test_a_clock_that_stands_still_stops_no_text() -> None:
    target, auto = tiny_llama(3), Auto(SMALL, rounds=1, clock=lambda: 0.0)
    done = generate(target, target, PROMPT, topology=auto, max_new_tokens=50, seed=0)
    assert len(done.tokens) == 50
    assert done.choice is not None


def test_a_prompt_without_room_for_the_warm_up_is_named() -> None:
    target, generator = tiny_llama(3), torch.Generator()
    positions = target.config.max_position_embeddings
    with pytest.raises(InputError, match="prompt: the cycles that measure may write"):
        choose(target, target, [1] * (positions - 2), generator=generator)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"candidates": "2x2"}, "candidates: expected a list of them, got '2x2'"),
        ({"candidates": ("2x2", [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]])}, "given twice"),
        ({"candidates": ("2by2",)}, "topology: cannot read '2by2'"),
        ({"rounds": 0}, "rounds: expected an integer >= 1, got 0"),
        ({"candidates": 5}, "candidates: expected a list of them, got 5"),
        ({"told": 5}, "told: expected a function, got 5"),
        ({"clock": None}, "clock: expected a function, got None"),
    ],
    ids=str,
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Auto(**options)
