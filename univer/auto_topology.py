"""The topology that is fastest here, found while the text is being written.

The first cycles of a text take the candidates in turn; from then on each cycle is on the one that
is fastest by the cost model, plain decoding included. Times are medians of the cycles on a
topology; the very first cycle, which reads the prompt, is left out. Lengths are means: in the first
cycles of 1 + expected_accepted, which is exact given each drafted tree, and such a tree also tells
the length of every candidate that lies inside it; later of the tokens that cycles had, so that a
tree that was overrated is found out. (One that was underrated is not.)

The choice does not bias the text. The topology of a cycle is settled before the cycle draws
anything, by times and trees of earlier cycles only; given the text so far, whatever shape that is,
the cycle's tokens follow the target's law. (A tree that was looked at and then thrown away for
another one would not.) But the clock has a say in the shapes, so a seed no longer fixes the text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from univer.cost_model import PLAIN, Choice, Costs, model_speeds
from univer.decoder import Cut, Cycle, CycleRecord, Decoder, Drawn, cycles
from univer.drafting import DraftTree
from univer.dynamic_tree import Dynamic
from univer.errors import InputError
from univer.filters import Filters
from univer.topology import Topology, TopologySpec
from univer.verifiers import Verifier, resolve, stop_law

AUTO, DYNAMIC = "auto", "dynamic:"
# Few nodes where a forward of k tokens costs nearly k, many where it costs one: 2, 4, 7, 26, 63.
CANDIDATES = ("none", "chain:1", "chain:3", "2x2", "eagle", "2x5")


@dataclass(frozen=True)
class Auto:
    """A topology that is chosen while the text is being written.

    Args:
        candidates: what `Topology.parse` takes; plain decoding is added if it is not among them.
            Trees are left out where a model takes chains only.
        rounds: cycles on each candidate before the first choice, >= 1.
        told: called with the choice when it is made and when it changes, `print` for one; a text
            that ends before makes none.
        clock: seconds from anywhere, for the times.

    Raises:
        InputError: an unknown topology, one given twice, or no rounds.
    """

    candidates: Sequence[TopologySpec] = CANDIDATES
    rounds: int = 2
    told: Callable[[Choice], None] | None = None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        if isinstance(self.candidates, str) or not isinstance(self.candidates, Sequence):
            raise InputError(f"candidates: expected a list of them, got {self.candidates!r}.")
        for name in ("told", "clock"):
            given = getattr(self, name)
            if not (callable(given) or (name == "told" and given is None)):
                raise InputError(f"{name}: expected a function, got {given!r}.")
        shapes = tuple(Topology.parse(spec) for spec in self.candidates)
        if len(set(shapes)) < len(shapes):
            raise InputError(f"candidates: one of {', '.join(map(str, shapes))} is given twice.")
        if not isinstance(self.rounds, int) or isinstance(self.rounds, bool) or self.rounds < 1:
            raise InputError(f"rounds: expected an integer >= 1, got {self.rounds!r}.")
        object.__setattr__(self, "candidates", shapes if PLAIN in shapes else (PLAIN, *shapes))

    @property
    def plan(self) -> tuple[Topology, ...]:
        """The cycles before the choice: the largest tree, whose times are not used, then rounds."""
        shapes: tuple[Topology, ...] = tuple(self.candidates)  # type: ignore[arg-type]
        return (max(shapes, key=lambda shape: shape.num_nodes), *self.rounds * shapes)


Shape = Topology | Dynamic | Auto
ShapeSpec = TopologySpec | Dynamic | Auto  # what `parse_topology` takes


def overheard(topology: Shape, made: list[Choice]) -> Shape:
    """The same, with the choice added to a list when it is made."""
    if not isinstance(topology, Auto):
        return topology
    given = topology.told

    def told(choice: Choice) -> None:
        made.append(choice)
        if given is not None:
            given(choice)

    return replace(topology, told=told)


def clock_of(topology: Shape) -> Callable[[], float]:
    """The clock that a decoder on it reads."""
    return topology.clock if isinstance(topology, Auto) else time.perf_counter


def parse_topology(spec: ShapeSpec, max_arity: int | None = None) -> Shape:
    """A topology, for "auto" an Auto, for "dynamic:..." a Dynamic; these two stay what they are.

    `max_arity` leaves those out of "auto" that have more children a node.
    """
    if isinstance(spec, Auto | Dynamic):
        return spec
    if isinstance(spec, str) and spec.strip().lower() == AUTO:
        shapes = map(Topology.parse, CANDIDATES)
        return Auto([x for x in shapes if max_arity is None or x.max_arity <= max_arity])
    if isinstance(spec, str) and spec.strip().lower().startswith(DYNAMIC):
        return Dynamic.parse(spec)
    return Topology.parse(spec)


def cycles_on(
    decoder: Decoder,
    verifier: Verifier,
    topology: Shape,
    *,
    cut: Cut,
    generator: torch.Generator,
) -> Iterator[Cycle]:
    """`cycles`; for an Auto on the candidates in turn and then on the fastest."""
    if not isinstance(topology, Auto):
        yield from cycles(decoder, verifier, topology, cut=cut, generator=generator)
        return
    topology = _taken(topology, decoder)
    ended, tally = False, Tally(topology.plan)

    def cut_here(emitted: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        nonlocal ended
        tokens, ended = cut(emitted)
        return tokens, ended

    chosen = None
    for number in count():
        if number < len(topology.plan):
            shape = topology.plan[number]
        else:
            choice = tally.choice()
            shape = choice.topology
            if shape != chosen and topology.told is not None:
                topology.told(choice)
            chosen = shape
        cycle = next(cycles(decoder, verifier, shape, cut=cut_here, generator=generator))
        yield cycle
        if ended:
            return
        if chosen is None:
            tally.add(verifier, cycle)
        else:
            tally.add_later(cycle)


def _taken(auto: Auto, decoder: Decoder) -> Auto:
    """The same with those candidates only that the models can read: some take no trees."""
    return replace(auto, candidates=[x for x in auto.candidates if decoder.takes(x)])  # type: ignore[arg-type]


class Tally:
    """What the cycles of a text have told of the candidates so far.

    Args:
        plan: the topologies of the first cycles, as in `Auto.plan`.
    """

    def __init__(self, plan: Sequence[Topology]) -> None:
        self._first = True
        self._records: dict[Topology, list[CycleRecord]] = {shape: [] for shape in plan[1:]}
        self._lengths: dict[Topology, list[float]] = {shape: [] for shape in plan[1:]}

    def add(self, verifier: Verifier, cycle: Cycle) -> None:
        """A cycle of the plan, in its order: its times, and the lengths of what lies inside."""
        if not self._first:
            self._records[cycle.drawn.tree.topology].append(cycle.record)
        self._first = False
        inside = lengths_inside(verifier, cycle.drawn, tuple(self._lengths))
        for shape, length in inside.items():
            self._lengths[shape].append(length)

    def add_later(self, cycle: Cycle) -> None:
        """A cycle behind the plan: its times and its own length, which cost nothing to know."""
        shape = cycle.drawn.tree.topology
        self._records[shape].append(cycle.record)
        self._lengths[shape].append(len(cycle.record.tokens))

    def choice(self) -> Choice:
        """What the model makes of it."""
        costs = {shape: Costs.of(records) for shape, records in self._records.items()}
        return model_speeds(self._lengths, costs)


def choose(
    target: Any,
    drafter: Any,
    prompt: Sequence[int] | Tensor,
    *,
    verifier: str | Verifier = "univer",
    auto: Auto | None = None,
    filters: Filters | None = None,
    generator: torch.Generator,
) -> Choice:
    """The choice on a text behind this prompt, which is thrown away.

    Args:
        target: as in `univer.decoding.generate`, like the next three.
        drafter: as there.
        prompt: as there.
        verifier: as there.
        auto: candidates and rounds; None for the usual ones.
        filters: shape the laws; none by default.
        generator: where the random numbers come from.

    Returns:
        Choice: `.topology` is for `generate`; `print` shows the table and the reason.

    Raises:
        InputError: names the argument that does not fit.
    """
    auto, rule = auto or Auto(), resolve(verifier)
    most = sum(shape.depth + 1 for shape in auto.plan)
    shaping = filters or Filters()
    try:
        decoder = Decoder(
            target, drafter, prompt, filters=shaping, max_new_tokens=most, clock=auto.clock
        )
    except InputError as error:
        if not str(error).startswith("max_new_tokens"):
            raise
        raise InputError(
            f"prompt: the cycles that measure may write {most} tokens behind it, which does not"
            f" fit; take a shorter prompt, or fewer rounds or candidates ({error})"
        ) from error
    auto = _taken(auto, decoder)
    tally = Tally(auto.plan)

    def endless(emitted: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        return tuple(emitted), False

    for shape in auto.plan:
        tally.add(rule, next(cycles(decoder, rule, shape, cut=endless, generator=generator)))
    return tally.choice()


def lengths_inside(
    verifier: Verifier, drawn: Drawn, candidates: Sequence[Topology]
) -> dict[Topology, float]:
    """The acceptance lengths of the candidates that lie inside a drawn tree, exact given it.

    Args:
        verifier: the one whose draft law the tree was drawn with.
        drawn: one tree with its laws.
        candidates: topologies, in the tree or not.
    """
    whole, found = drawn.tree.topology, {}
    for shape in candidates:
        nodes = _nodes_inside(shape, whole)
        if nodes is None:
            continue
        if shape == PLAIN:
            found[shape] = 1.0
            continue
        rows = [whole.internal.index(nodes[v]) for v in shape.internal]
        law = stop_law(
            verifier,
            DraftTree(shape, drawn.tree.tokens[:, nodes]),
            drawn.target_probs[:, nodes],
            drawn.draft_probs[:, rows],
        )
        found[shape] = 1 + law.expected_accepted.item()
    return found


@lru_cache(maxsize=128)
def _nodes_inside(small: Topology, large: Topology) -> list[int] | None:
    """The nodes of a larger tree that are drawn as the smaller tree is; None if there are none.

    Both start at the root, and a node has either all of its children in the smaller tree or none:
    with fewer children they would be drawn by another law.
    """
    nodes = [0] * small.num_nodes
    for node in small.internal:
        slots, images = small.children(node), large.children(nodes[node])
        if len(slots) != len(images):
            return None
        for slot, image in zip(slots, images, strict=True):
            nodes[slot] = image
    return nodes
