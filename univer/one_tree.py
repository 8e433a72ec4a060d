"""Verification from logits on a CPU: one tree at a time, a row read only when it is needed.

A local verifier walks down and reads the nodes that it enters. A conditional one goes through the
tree in post-order, reads an internal node before the first leaf below it and stops at the first
node that is accepted; what comes later is never read. Rows are float32, in buffers that stay in
the cache, and their sums are cascades; masses and thresholds are Python's floats (float64).

Every rule of `univer.allocation` takes this path, a node at a time, in the float64 arithmetic that
it has level by level. `RULES` has those that are written for it once more, in float32, where that
pays: its rounding moves a stop law by some 1e-6, up to 1e-5.

Letters: N nodes, I internal nodes, m arity, V vocabulary.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from univer.drafting import DraftTree
from univer.errors import check_logit_rows
from univer.filters import Filters
from univer.rows import total
from univer.rules import Rule as LevelRule
from univer.topology import Topology
from univer.tree_rows import renormalise
from univer.verifiers import Verifier

BLOCK = 1024  # entries whose sum is looked at before they are, when a token is drawn
LITTLE = 2.0**-60  # draft mass below which what is left is divided by it
NOTHING = 2.0**-60  # a mass that float32 rows cannot tell from 0


class Rows:
    """The laws of one tree's rows, softmax(logits / temperature), written into two buffers [V].

    `p` and `q` hold a law up to a factor, which is the sum that the methods return.

    Args:
        target: logits [N, V].
        draft: logits [I, V].
        filters: a temperature above 0 and no other filter.
        tree: the tree's number, for the sentence about a bad row.
    """

    def __init__(self, target: Tensor, draft: Tensor, filters: Filters, tree: int) -> None:
        self._target, self._draft, self._filters, self._tree = target, draft, filters, tree
        vocab = target.shape[1]
        self._blocks = torch.zeros(-(-vocab // BLOCK), BLOCK)
        self.p = self._blocks.flatten()[:vocab]
        self.q = torch.empty(vocab)

    def target(self, node: int) -> float:
        """Write the target's law after a node into `p`."""
        logits = self._target[node]
        mass = self._law(logits, self.p).sum().item()
        self._check("target_logits", logits, node, mass)
        return mass

    def draft(self, row: int, node: int, without: Tensor) -> float:
        """Write what is left of a node's draft law without these tokens into `q`."""
        # However little is left: children were drawn from these very numbers, tiny ones included.
        logits = self._draft[row]
        self._check("draft_logits", logits, node, self._law(logits, self.q)[0].item())
        return self.take(without)

    def take(self, tokens: Tensor) -> float:
        """Remove tokens from `q`."""
        mass = self.q.index_fill_(0, tokens, 0.0).sum().item()
        # Subnormal numbers are exact as they are, but a product with one is not.
        return self.q.div_(mass).sum().item() if 0 < mass < LITTLE else mass

    def _law(self, logits: Tensor, out: Tensor) -> Tensor:
        logits = logits.float()
        if self._filters.temperature != 1:
            logits = (logits - logits.amax()).div_(self._filters.divisor(torch.float32))
        # Its sum is off by up to 6e-5 (V = 128,256): what is taken is the sum of what it wrote.
        return torch.softmax(logits, -1, out=out)

    def _check(self, name: str, logits: Tensor, node: int, mass: float) -> None:
        if math.isnan(mass):
            place = f"the row of node {node} in tree {self._tree}"
            check_logit_rows(name, logits.float(), torch.tensor(True), lambda _: place)

    def draw(self, mass: float, uniform: float) -> int:
        """The token of `p` / mass at a uniform (SPEC 8): first its block, then itself."""
        sums = self._blocks.sum(1).double() / mass
        reached = sums.cumsum(0).tolist()
        block = min(bisect_right(reached, uniform * reached[-1]), _last(sums))
        law = self._blocks[block].double() / mass
        before = reached[block - 1] if block else 0.0
        within = law.cumsum(0).tolist()
        token = min(bisect_right(within, uniform * reached[-1] - before), _last(law))
        return block * BLOCK + token


def _last(weights: Tensor) -> int:
    """The last id that has weight: the answer where rounding leaves no other."""
    return int(weights.nonzero()[-1])


@dataclass(frozen=True)
class Opened:
    """One node's thresholds, and the sum of its residual, which is left in `Rows.p`.

    acceptance: of each child slot, given that the earlier ones failed; 0 for an absent one.
    fallback: acceptance of the node itself after all its children failed.
    """

    acceptance: list[float]
    fallback: float
    residual: float


def _ratio(numerator: float, denominator: float) -> float:
    """Quotient of numbers >= 0, with x/0 = inf for x > 0 and 0/0 = 0 (SPEC 3)."""
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 0.0


def _thresholds(masses: list[float], rest: float, rejection: float, residual: float) -> Opened:
    """Conditional acceptances from masses: ratios of what is left, summed from the last one on."""
    left, acceptance = rest + rejection, []
    fallback = _ratio(rest, left)
    for mass in reversed(masses):
        left += mass
        acceptance.append(_ratio(mass, left))
    return Opened(acceptance[::-1], fallback, residual)


def _surplus(laws: Rows, factor: float) -> Tensor:
    """Leave -[factor p - q]+ in `p`."""
    return torch.add(laws.q, laws.p, alpha=-factor, out=laws.p).clamp_(max=0)


def _ot(laws: Rows, node: int, row: int, scale: float, children: list[int]) -> Opened:
    """Optimal transport (Eqs. 3-7), as `univer.rules.ot.optimal_transport`."""
    sampled = children[-1]
    present = torch.tensor([x for x in children if x >= 0], dtype=torch.int64)
    fixed = present[:-1] if sampled >= 0 else present
    p_mass, q_mass = laws.target(node), laws.draft(row, node, fixed)
    at_sampled = 0.0
    if sampled >= 0:
        q_sampled = _ratio(laws.q[sampled].item(), q_mass)
        at_sampled = min(1.0, _ratio(scale * laws.p[sampled].item() / p_mass, q_sampled))
    if sampled < 0 or q_mass == 0:
        laws.q.zero_()
        q_mass = 1.0
    surplus = [-x / q_mass for x in _surplus(laws, scale * q_mass / p_mass)[present].tolist()]
    residual = laws.p.index_fill_(0, present, 0.0).sum().item()
    rest = -residual / q_mass
    whole = (1 - scale) + sum(surplus) + rest  # Z
    if whole <= 0 and sampled >= 0:
        at_sampled = 1.0
    factor = _ratio(1 - at_sampled, whole)  # f
    masses = [x * factor for x in surplus[: len(fixed)]]
    masses += [0.0] * (len(children) - 1 - len(fixed)) + [at_sampled]
    return _thresholds(masses, rest * factor, (1 - scale) * factor, residual)


def _rrsw(laws: Rows, node: int, row: int, scale: float, children: list[int]) -> Opened:
    """Recursive rejection without replacement, as `univer.rules.rrsw.recursive_rejection`."""
    present = torch.tensor([x for x in children if x >= 0], dtype=torch.int64)
    c, reached, masses = scale, 1.0, [0.0] * len(children)
    p_mass, q_mass = laws.target(node), laws.draft(row, node, present[:0])
    for slot, x in enumerate(children[: len(present)]):
        if slot > 0:
            q_mass = laws.take(present[slot - 1 : slot])
        at_x = c * _ratio(laws.p[x].item(), p_mass)
        accepted = min(1.0, _ratio(at_x, _ratio(laws.q[x].item(), q_mass)))
        masses[slot] = reached * accepted
        reached *= 1 - accepted
        p_mass = _surplus(laws, _ratio(c * q_mass, p_mass)).sum().item()
        left = -_ratio(p_mass, q_mass)
        c = _ratio(left, left + (1 - c)) if left > NOTHING else 0.0
    residual = laws.p.index_fill_(0, present, 0.0).sum().item()
    rest = reached * c * _ratio(residual, p_mass)
    return _thresholds(masses, rest, reached * (1 - c), residual)


Rule = Callable[[Rows, int, int, float, list[int]], Opened]
RULES: dict[str, Rule] = {"ot": _ot, "rrsw": _rrsw}


def one_node(allocate: LevelRule) -> Rule:
    """A rule of levels on a level of one node, its thresholds as `univer.composition` has them."""

    def rule(laws: Rows, node: int, row: int, scale: float, children: list[int]) -> Opened:
        laws.target(node)
        laws.draft(row, node, torch.empty(0, dtype=torch.int64))
        p, q = (renormalise(rows[None]) for rows in (laws.p, laws.q))
        masses = allocate(torch.tensor([scale]).double(), p, q, torch.tensor([children]))
        slots = zip(children, masses.child_acceptance[0].tolist(), strict=True)
        accepted = [mass if x >= 0 else 0.0 for x, mass in slots]
        rest, rejection = total(masses.residual).item(), masses.rejection_mass.item()
        residual = laws.p.copy_(masses.residual[0]).sum().item()
        return _thresholds(accepted, rest, rejection, residual)

    return rule


def rule_of(verifier: Verifier) -> Rule:
    """The form of a verifier's rule that reads one node."""
    return RULES.get(verifier.allocation) or one_node(verifier.allocate)


class _Visit:
    """What a decision reads of one tree: thresholds of nodes, and the next token at the end."""

    def __init__(self, rule: Rule, topology: Topology, tokens: list[int], laws: Rows) -> None:
        self._rule, self._topology, self._tokens, self._laws = rule, topology, tokens, laws
        self._scales: dict[int, float] = {}
        self._last, self._residual = -1, 0.0

    def open(self, node: int, scale: float) -> Opened:
        """The thresholds of an internal node."""
        children = [self._tokens[u] for u in self._topology.children(node)]
        if max(children) < 0:  # nothing was drafted: a leaf
            opened = Opened([0.0] * len(children), scale, 0.0)
        else:
            row = self._topology.draft_rows[node]
            opened = self._rule(self._laws, node, row, scale, children)
        self._scales[node] = scale
        self._last, self._residual = node, opened.residual
        return opened

    def next_token(self, stop: int, uniform: float) -> int:
        """The token that follows the stop node: by the residual, or by the target at a leaf."""
        if self._topology.children(stop) and self._last != stop:
            self.open(stop, self._scales[stop])
        # Rounding may leave a node without residual: then its target law.
        residual = self._residual if self._last == stop else 0.0
        return self._laws.draw(residual or self._laws.target(stop), uniform)


def _local(visit: _Visit, topology: Topology, uniforms: list[float]) -> int:
    node = 0
    while children := topology.children(node):
        acceptance = visit.open(node, 1.0).acceptance
        passed = [u for u, a in zip(children, acceptance, strict=True) if uniforms[u] < a]
        if not passed:
            break
        node = passed[0]
    return node


def _conditional(visit: _Visit, topology: Topology, uniforms: list[float]) -> int:
    acceptance = {0: 1.0}
    ahead = [0]  # what is to come, the next one last: v, and ~v for v after its children
    while ahead:
        node = ahead.pop()
        slots = topology.children(node) if node >= 0 else ()
        if slots:
            opened = visit.open(node, acceptance[node])
            acceptance |= zip(slots, opened.acceptance, strict=True)
            acceptance[node] = opened.fallback
            # Below a child that cannot be accepted nothing can be.
            ahead += [~node, *(u for u in reversed(slots) if acceptance[u] > 0)]
            continue
        node = max(node, ~node)
        if uniforms[node] < acceptance[node]:
            return node
    return 0  # whatever rounding leaves at the root: something is always emitted


Decision = Callable[[_Visit, Topology, list[float]], int]
DECISIONS: dict[str, Decision] = {"local": _local, "conditional": _conditional}


def by_tree(
    verifier: Verifier,
    tree: DraftTree,
    target_logits: Tensor,
    draft_logits: Tensor,
    filters: Filters,
    uniforms: Tensor,
    rule: Rule | None = None,
) -> tuple[Tensor, Tensor]:
    """Where each cycle stops and the token that follows, int64 [B] both.

    Args:
        verifier: decides.
        tree: B trees.
        target_logits: [B, N, V], on the CPU.
        draft_logits: [B, I, V].
        filters: a temperature above 0 and no other filter.
        uniforms: float64 [B, N + 1].
        rule: another form of its rule than `rule_of` gives.

    Raises:
        InputError: a row that is read holds no logits.
    """
    if not tree.topology.internal:
        draft_logits = target_logits  # never read: without drafts it may be anything
    decided, rule = [], rule or rule_of(verifier)
    for b, (tokens, numbers) in enumerate(
        zip(tree.tokens.tolist(), uniforms.tolist(), strict=True)
    ):
        laws = Rows(target_logits[b], draft_logits[b], filters, b)
        visit = _Visit(rule, tree.topology, tokens, laws)
        stop = DECISIONS[verifier.composition](visit, tree.topology, numbers)
        decided.append((stop, visit.next_token(stop, numbers[-1])))
    stop, token = torch.tensor(decided, dtype=torch.int64).reshape(-1, 2).T
    return stop, token
