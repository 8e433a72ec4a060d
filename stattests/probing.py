"""STATS Lx: the exact law of a black box that takes uniforms, found by exact probing.

For one tree a verifier is a function of its uniforms. A correct one cuts the unit cube into
axis-aligned boxes, one outcome (stop node, next token) each: every slot has one interval. So a box
is known from one point inside it: move along each slot until the outcome changes. Boxes are found
from random points and by stepping across the faces of those already found, until their volumes sum
to 1; then the volumes are the law, to the resolution of the bisection, and nothing was sampled.

Volumes that do not sum to 1, or a box in which another outcome turns up, mean that a number is used
twice in a way that is no box, or that there is randomness besides the uniforms: `ProbeError`.

Letters: T trees, N nodes, V vocabulary, S = N + 1 slots, P points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stattests.exact import ExactLaw, drafted_trees, law_of_stops, node_hashes, tree_rows
from stattests.problems import Problem
from stattests.streams import numpy_generator
from stattests.subject import Subject

Points = NDArray[np.float64]  # [P, S]
Codes = NDArray[np.int64]  # [P], stop node x V + next token

LARGEST = 1 - 2**-53
BISECTIONS = 48  # the width left is 2^-48 = 4e-15
AHEAD = (4, 3, 2, 1)  # halvings that one call may settle, whichever way they go
MANY = 4096  # decisions of one call beyond which more of them cost more than a call
STEP = 2.0**-46  # how far beyond a face the next box is looked for
VOLUME_TOLERANCE = 1e-11  # what bisection leaves: some hundred faces of 4e-15 each
MAX_ROUNDS = 400


class ProbeError(Exception):
    """The outcomes are not boxes: uniforms are reused or something else is random."""


@dataclass
class TreeBoxes:
    """The boxes of one tree: bounds [n, S] and outcomes [n]."""

    low: list[Points] = field(default_factory=list)
    high: list[Points] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def volume(self) -> float:
        """Sum of the boxes' volumes."""
        return float(sum(np.prod(h - lo) for lo, h in zip(self.low, self.high, strict=True)))

    def inside(self, point: Points) -> bool:
        """Whether a point lies in a known box, or within bisection's width of one."""
        return any(
            ((point >= lo - STEP / 2) & (point <= h + STEP / 2)).all()
            for lo, h in zip(self.low, self.high, strict=True)
        )


@dataclass(frozen=True)
class Probe:
    """What probing one problem found.

    law: the exact law of the output.
    tokens: of every drafted tree, [T, N].
    joint: the law of (stop node, next token) given each tree, [T, N, V].
    boxes: one TreeBoxes a drafted tree.
    calls: decisions asked for.
    token_slots: the slots across which the next token changed while the stop node stayed.
    stop_slots: the slots across which the stop node changed.
    """

    law: ExactLaw
    tokens: Tensor
    joint: NDArray[np.float64]
    boxes: tuple[TreeBoxes, ...]
    calls: int
    token_slots: frozenset[int]
    stop_slots: frozenset[int]

    def reused_slots(self, slots: int) -> frozenset[int]:
        """Slots that decide a node and the next token as well."""
        return frozenset(
            slot for slot in self.token_slots if slot != slots - 1 and slot in self.stop_slots
        )


Ask = Callable[[NDArray[np.int64], Points], Codes]  # (tree of each point [P], points) -> outcomes


def probe(
    subject: Subject, problem: Problem, *, max_calls: int | None = None, seed: int = 0
) -> Probe:
    """Find the exact law of a subject on a problem, over all drafted trees.

    Raises:
        ProbeError: the outcomes are not boxes that fill the cube.
        TimeoutError: more than max_calls decisions were needed.
        ContractError: the subject broke the contract.
    """
    drafting = subject.drafting_name
    if drafting is None or subject.own_randomness:
        raise ValueError("probing needs a named draft law and given uniforms")
    tokens, chances = drafted_trees(problem, drafting)
    rows = tree_rows(problem, node_hashes(problem.topology, tokens))
    vocab, slots = problem.vocab, problem.topology.num_nodes + 1
    calls = 0

    def ask(trees: NDArray[np.int64], points: Points) -> Codes:
        nonlocal calls
        calls += len(points)
        if max_calls is not None and calls > max_calls:
            raise TimeoutError(f"probing needs more than {max_calls} decisions")
        at = torch.from_numpy(trees)
        uniforms = torch.from_numpy(points.clip(0, LARGEST))
        out = subject.decide(problem.topology, tokens[at], rows[0][at], rows[1][at], uniforms)
        codes: Codes = (out.stop * vocab + out.next_token).numpy()
        return codes

    ahead = AHEAD if subject.batched else (1,)
    boxes, token_slots, stop_slots = _find_boxes(ask, len(tokens), slots, vocab, seed, ahead)
    joint = np.zeros((len(tokens), slots - 1, vocab))
    for tree, found in enumerate(boxes):
        for low, high, code in zip(found.low, found.high, found.codes, strict=True):
            joint[tree, code // vocab, code % vocab] += np.prod(high - low)
    stop_probs = joint.sum(-1)
    rows_given = np.divide(
        joint, stop_probs[..., None], out=np.zeros_like(joint), where=stop_probs[..., None] > 0
    )
    law = law_of_stops(problem, tokens, chances, stop_probs, rows_given)
    return Probe(
        law, tokens, joint, tuple(boxes), calls, frozenset(token_slots), frozenset(stop_slots)
    )


def _find_boxes(
    ask: Ask, trees: int, slots: int, vocab: int, seed: int, ahead: Sequence[int]
) -> tuple[list[TreeBoxes], set[int], set[int]]:
    rng = numpy_generator("probing", root=seed)
    boxes = [TreeBoxes() for _ in range(trees)]
    token_slots: set[int] = set()
    stop_slots: set[int] = set()
    pending = [(tree, rng.random(slots), -1, -1) for tree in range(trees)]
    for _ in range(MAX_ROUNDS):
        fresh = [entry for entry in pending if not boxes[entry[0]].inside(entry[1])]
        if not fresh:
            short = [t for t in range(trees) if 1 - boxes[t].volume() > VOLUME_TOLERANCE]
            if not short:
                break
            # Everything reachable was found; what is missing may still be hit by chance.
            fresh = [(t, rng.random(slots), -1, -1) for t in short for _ in range(8)]
            fresh = [entry for entry in fresh if not boxes[entry[0]].inside(entry[1])]
            if not fresh:
                missing = max(1 - boxes[t].volume() for t in short)
                raise ProbeError(f"the boxes found fill all but {missing:.2g} of the cube")
        at = np.array([entry[0] for entry in fresh])
        points = np.array([entry[1] for entry in fresh])
        codes = ask(at, points)
        for (_, _, came_from, slot), code in zip(fresh, codes.tolist(), strict=True):
            if came_from >= 0 and code != came_from:
                same_stop = code // vocab == came_from // vocab
                (token_slots if same_stop else stop_slots).add(slot)
        low, high = _bounds(ask, at, points, codes, ahead)
        _check_inside(ask, at, low, high, codes, rng)
        pending = []
        for tree, point, code, lo, hi in zip(
            at.tolist(), points, codes.tolist(), low, high, strict=True
        ):
            if boxes[tree].inside(point):
                continue  # two points of one round were in the same box
            boxes[tree].low.append(lo)
            boxes[tree].high.append(hi)
            boxes[tree].codes.append(code)
            if boxes[tree].volume() > 1 + VOLUME_TOLERANCE:
                raise ProbeError("boxes overlap: an outcome depends on more than its slots")
            for slot in range(slots):
                for face, beyond in ((lo[slot], -STEP), (hi[slot], STEP)):
                    if 0 < face < 1:
                        step = point.copy()
                        step[slot] = min(max(face + beyond, 0.0), LARGEST)
                        pending.append((tree, step, code, slot))
    else:
        raise ProbeError(f"no end after {MAX_ROUNDS} rounds: the outcomes are not boxes")
    return boxes, token_slots, stop_slots


def _bounds(
    ask: Ask, trees: NDArray[np.int64], points: Points, codes: Codes, ahead: Sequence[int]
) -> tuple[Points, Points]:
    """How far each point can move along each slot, both ways, with the same outcome.

    By bisection, as many halvings a call, among `ahead`, as few points allow: all middles that
    these can come to are asked for together, which changes no bound.
    """
    count, slots = points.shape
    ends = np.stack([np.zeros_like(points), np.full_like(points, LARGEST)])  # [2, P, S]
    index = np.indices(ends.shape).reshape(3, -1)
    side, row, slot = index

    def same(values: NDArray[np.float64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
        moved = points[row[chosen]]
        moved[np.arange(len(chosen)), slot[chosen]] = values
        answer: NDArray[np.bool_] = ask(trees[row[chosen]], moved) == codes[row[chosen]]
        return answer

    everywhere = np.arange(2 * count * slots)
    limit = ends.reshape(-1).copy()
    open_ = everywhere[~same(limit, everywhere)]
    good, bad = points[row[open_], slot[open_]], limit[open_]
    few = (steps for steps in ahead if len(open_) * (2**steps - 1) <= MANY)
    steps = next(few, ahead[-1])
    for _ in range(BISECTIONS // steps):
        # A heap: after middle k come 2k + 1, where the outcome holds there, and 2k + 2.
        goods, bads, middles = [good], [bad], []
        for k in range(2**steps - 1):
            middles.append((goods[k] + bads[k]) / 2)
            goods += [middles[k], goods[k]]
            bads += [bads[k], middles[k]]
        holds = same(np.concatenate(middles), np.tile(open_, len(middles)))
        which, rows = np.zeros_like(open_), np.arange(len(open_))
        for _ in range(steps):
            which = 2 * which + 2 - holds.reshape(len(middles), -1)[which, rows]
        good, bad = np.array(goods)[which, rows], np.array(bads)[which, rows]
    limit[side == 1] = 1.0  # the largest float below 1 stands for 1
    limit[open_] = (good + bad) / 2
    bounds = limit.reshape(2, count, slots)
    return bounds[0], bounds[1]


def _check_inside(
    ask: Ask,
    trees: NDArray[np.int64],
    low: Points,
    high: Points,
    codes: Codes,
    rng: np.random.Generator,
) -> None:
    """Random points and near-corners of every box have the box's outcome."""
    shares = rng.random((3, *low.shape))
    shares[0] = np.where(shares[0] < 0.5, 1e-3, 1 - 1e-3)
    points = (low + shares * (high - low)).reshape(-1, low.shape[1])
    if (ask(np.tile(trees, 3), points) != np.tile(codes, 3)).any():
        raise ProbeError(
            "an outcome's region is not a box: two decisions share one number, or there is"
            " randomness besides the uniforms"
        )
