"""What a draft tree costs and what it brings: modelled tokens a second, and why.

    tokens a second = acceptance length / time of a cycle

A tree pays where its length outgrows its cycle. Plain decoding is "none", the tree that is only its
root: length 1, one forward of one token. The ratios say where another machine stands: the forward
of the tree over that of one token (near 1 where memory is the limit, the number of nodes where
arithmetic is), and a level's drafting over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import mean, median, stdev

from univer.decoder import CycleRecord
from univer.topology import Topology

PLAIN = Topology.parse("none")


@dataclass(frozen=True)
class Costs:
    """A cycle's milliseconds by part: drafting, the target's forward, the decision, the caches."""

    draft_ms: float
    target_ms: float
    verify_ms: float
    keep_ms: float

    @staticmethod
    def of(records: Sequence[CycleRecord]) -> Costs:
        """The medians of some cycles on one topology; a forward's never 0, as on a coarse clock."""
        return Costs(
            median(record.draft_ms for record in records),
            max(median(record.target_ms for record in records), 1e-6),
            median(record.verify_ms for record in records),
            median(record.keep_ms for record in records),
        )

    @property
    def total_ms(self) -> float:
        """The whole cycle's milliseconds."""
        return self.draft_ms + self.target_ms + self.verify_ms + self.keep_ms


@dataclass(frozen=True)
class Modelled:
    """A topology and what the model says of it.

    lengths: acceptance lengths of some cycles, the next token counted.
    costs: of a cycle.
    plain: the costs of plain decoding.
    """

    topology: Topology
    lengths: tuple[float, ...]
    costs: Costs
    plain: Costs

    @property
    def length(self) -> float:
        """The mean acceptance length."""
        return mean(self.lengths)

    @property
    def length_error(self) -> float:
        """Its standard error; nan for a single cycle."""
        count = len(self.lengths)
        return stdev(self.lengths) / sqrt(count) if count > 1 else nan

    @property
    def forward_ratio(self) -> float:
        """The target's forward of this tree over that of one token."""
        return self.costs.target_ms / self.plain.target_ms

    @property
    def draft_ratio(self) -> float:
        """A level's drafting over the target's forward of one token; 0 for the empty tree."""
        levels = self.topology.depth
        return self.costs.draft_ms / levels / self.plain.target_ms if levels else 0.0

    @property
    def tokens_per_second(self) -> float:
        """The modelled speed."""
        return 1e3 * self.length / self.costs.total_ms

    @property
    def cycle_ratio(self) -> float:
        """A cycle's time over plain decoding's."""
        return self.costs.total_ms / self.plain.total_ms

    @property
    def speed_up(self) -> float:
        """The modelled speed over plain decoding's."""
        return self.length / self.cycle_ratio

    @property
    def pays_below(self) -> float:
        """The forward ratio below which this tree is faster than plain decoding, all else equal.

        Below 1 it pays nowhere: drafting and the rest cost too much.
        """
        rest = self.costs.total_ms - self.costs.target_ms
        return (self.length * self.plain.total_ms - rest) / self.plain.target_ms


@dataclass(frozen=True)
class Choice:
    """The candidates as the model sees them; as text, the table and the reason."""

    rows: tuple[Modelled, ...]

    @property
    def best(self) -> Modelled:
        """The fastest; of equals the one with fewer nodes."""
        return max(self.rows, key=lambda row: (row.speed_up, -row.topology.num_nodes))

    @property
    def topology(self) -> Topology:
        """The fastest's, for the texts to come."""
        return self.best.topology

    def __str__(self) -> str:
        head = ("topology", "drafts", "tokens/cycle", "cycle ms", "draft", "target", "verify")
        table: list[tuple[str, ...]] = [
            (*head, "keep", "forward", "draft step", "tokens/s", "speed-up")
        ]
        for row in self.rows:
            c, ratio = row.costs, f"{row.forward_ratio:.2f}"
            times = (c.total_ms, c.draft_ms, c.target_ms, c.verify_ms, c.keep_ms)
            table.append(
                (
                    str(row.topology),
                    str(row.topology.num_nodes - 1),
                    f"{row.length:.2f} +- {row.length_error:.2f}",
                    *(f"{ms:.1f}" for ms in times),
                    ratio,
                    f"{row.draft_ratio:.2f}",
                    f"{row.tokens_per_second:.1f}",
                    f"{row.speed_up:.2f}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.rjust, line, widths)).rstrip() for line in table]
        return "\n".join([*lines, self.reason()])

    def reason(self) -> str:
        """Why, in one sentence."""
        best = self.best
        if best.topology != PLAIN:
            return (
                f"chosen: {best.topology}, {best.speed_up:.2f} x plain decoding: {best.length:.2f}"
                f" tokens a cycle that costs {best.cycle_ratio:.2f} of it."
            )
        others = [row for row in self.rows if row.topology != PLAIN]
        if not others:
            return "chosen: none, the only candidate."
        near = Choice(tuple(others)).best
        needed = "it would not pay even with a forward as cheap as a plain one."
        if near.pays_below > 1:
            needed = (
                f"it would pay with a forward below {near.pays_below:.2f} plain ones, which is"
                f" {near.forward_ratio:.2f} here."
            )
        return (
            f"chosen: none, plain decoding. No tree pays here: the best, {near.topology}, brings"
            f" {near.length:.2f} tokens a cycle that costs {near.cycle_ratio:.2f} plain ones"
            f" ({near.speed_up:.2f} x);"
            f" {needed}"
        )


def model_speeds(
    lengths: Mapping[Topology, Sequence[float]], costs: Mapping[Topology, Costs]
) -> Choice:
    """The model's table, from acceptance lengths and costs by topology.

    Args:
        lengths: topology -> acceptance lengths of one cycle or more, the next token counted.
        costs: topology -> a cycle's costs; the same topologies, PLAIN among them.

    Example:
        >>> two = Topology.parse("chain:2")
        >>> costs = {PLAIN: Costs(0, 10, 0, 0), two: Costs(3, 15, 1, 1)}
        >>> choice = model_speeds({PLAIN: [1.0], two: [1.6, 2.0]}, costs)
        >>> str(choice.topology), choice.best.speed_up, choice.best.tokens_per_second
        ('none', 1.0, 100.0)
    """
    return Choice(tuple(Modelled(t, tuple(lengths[t]), costs[t], costs[PLAIN]) for t in lengths))
