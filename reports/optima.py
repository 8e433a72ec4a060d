"""How far every verifier is from the best possible on toys: the file, its tables and its figure.

The file is `python -m reference.toy_optima`'s: for each toy the expected accepted tokens of each
verifier, and for each draft law the most that any lossless verifier could accept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reports.drawing import WIDE, Drawn, Series, dodged, said
from reports.estimates import LEVEL, Estimate, difference, quotient, ratio
from reports.names import label
from reports.runs import ReportError, shown_path
from reports.table import Cell, Table, amount

TOY_OPTIMA = Path(__file__).parent / "data" / "toy_optima.json"
MERGED = "_merged"  # at the end of a name: twins are one branch
FIXED_LAW = "top"  # its one rule is its optimum
CONDITIONAL = "_conditional"  # at the end of a name: the rule before it, in the other composition
NAMED = {"univer": "greedy", "traversal": "rrsw", "block_verification": "token_verification"}
NOT_SEEN = 1e-7  # a distance below it is the linear programme's rounding


@dataclass(frozen=True)
class Toys:
    """The file's toys.

    path: of the file.
    command: that wrote it.
    topologies: name -> its parents and the number of tokens.
    drafting: verifier -> its draft law.
    rows: one a toy: topology, accepted by verifier, optimum by draft law.
    """

    path: Path
    command: str
    topologies: dict[str, dict[str, Any]]
    drafting: dict[str, str]
    rows: list[dict[str, Any]]

    def verifiers(self, *, merged: bool = False) -> dict[str, list[str]]:
        """Draft law -> its verifiers, local ones first; or those whose twins are `merged`."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.drafting, key=lambda name: local(name) is not None):
            if self.drafting[name] != FIXED_LAW and name.endswith(MERGED) == merged:
                found.setdefault(self.drafting[name], []).append(name)
        return found

    def of(self, topology: str) -> list[dict[str, Any]]:
        """The toys of a tree."""
        return [row for row in self.rows if row["topology"] == topology]

    def length(self, topology: str, verifier: str) -> Estimate:
        """Expected accepted tokens; an estimate of nothing where a verifier does not take it."""
        return self._mean(topology, "accepted", verifier)

    def optimum(self, topology: str, drafting: str) -> Estimate:
        """The most that a lossless verifier accepts under a draft law."""
        return self._mean(topology, "optimum", drafting)

    def distance(self, topology: str, drafting: str, verifier: str) -> Estimate:
        """Optimum less verifier, paired by toy."""
        length = self.length(topology, verifier)
        return difference(self.optimum(topology, drafting), length) if length.n else length

    def _mean(self, topology: str, of: str, name: str) -> Estimate:
        return ratio({str(k): (row[of][name], 1.0) for k, row in self._with(topology, of, name)})

    def _with(self, topology: str, of: str, name: str) -> Iterable[tuple[int, dict[str, Any]]]:
        return ((k, row) for k, row in enumerate(self.of(topology)) if name in row[of])


def local(verifier: str) -> str | None:
    """The local verifier of a conditional one's rule; None for one that is not conditional.

    Example:
        >>> local("univer"), local("rrs_conditional"), local("rrs_conditional_merged"), local("rrs")
        ('greedy', 'rrs', 'rrs_merged', None)
    """
    name = verifier.removesuffix(MERGED)
    twin = verifier[len(name) :]
    rule = NAMED.get(name) or (name.removesuffix(CONDITIONAL) if CONDITIONAL in name else None)
    return rule and f"{rule}{twin}"


def read_toy_optima(path: Path = TOY_OPTIMA) -> Toys:
    """Every verifier and the optimum of its draft law, on toys.

    Raises:
        ReportError: it is not there or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        toys = Toys(
            path,
            content["command"],
            content["topologies"],
            content["drafting"],
            content["rows"],
        )
        for name in toys.topologies:
            for drafting, verifiers in toys.verifiers().items():
                toys.optimum(name, drafting), [toys.length(name, each) for each in verifiers]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{path} is no file of toy optima; python -m reference.toy_optima {path} writes it."
        ) from error
    return toys


def optimum_tables(toys: Toys) -> Iterator[Table]:
    """The optimum by draft law; then by draft law how far its verifiers are from it."""
    yield _laws(toys)
    for drafting, verifiers in toys.verifiers().items():
        yield _distances(toys, drafting, verifiers, f"toy-optima-{drafting.replace('_', '-')}")
    for drafting, verifiers in toys.verifiers(merged=True).items():
        yield _distances(toys, drafting, verifiers, "toy-optima-merged", merged=True)


def _laws(toys: Toys) -> Table:
    laws = (*toys.verifiers(), FIXED_LAW)
    rows = tuple(
        (
            topology,
            str(toys.topologies[topology]["vocab"]),
            *(
                amount(_counted(toys.optimum(topology, law)))
                if toys.optimum(topology, law).n
                else ""
                for law in laws
            ),
        )
        for topology in toys.topologies
    )
    return Table(
        "toy-optima",
        "The most that any lossless verifier accepts on toys, by draft law",
        ("tree", "vocabulary", *laws),
        rows,
        "Tokens a cycle, the next token counted: optimum of the linear programme over whole trees;"
        " ± is the standard error over toys, which are the same"
        " for all draft laws. Trees: first:k, last:k, two children with k - 1 more below the first"
        " or the last; delayed, one child with two below it; rollouts:k, two independent chains.",
        (shown_path(toys.path),),
    )


def _counted(length: Estimate) -> Estimate:
    """With the next token."""
    return Estimate(length.value + 1, length.influence, length.n)


def _distances(
    toys: Toys, drafting: str, verifiers: Sequence[str], name: str, *, merged: bool = False
) -> Table:
    pairs = [(name, rule) for name in verifiers if (rule := local(name)) and rule in verifiers]
    rows: list[tuple[Cell, ...]] = []
    for topology in toys.topologies:
        cells: list[Cell] = []
        for verifier in verifiers:
            distance = toys.distance(topology, drafting, verifier)
            cells.append(amount(distance, digits=4) if distance.n else "")
        for ours, theirs in pairs:
            cells.append(_closed(toys, topology, drafting, ours, theirs))
        if any(cells):
            rows.append((topology, *cells))
    columns = [f"optimum - {_named(verifier)}" for verifier in verifiers]
    columns += [f"closed by {_named(ours)}" for ours, _ in pairs]
    twins = " with twins merged into one branch" if merged else ""
    return Table(
        name,
        f"Distance to the whole-tree optimum on toys, {drafting}{twins}",
        ("tree", *columns),
        tuple(rows),
        "Tokens a cycle (the next token, which is counted, drops out), ± the standard error over"
        " toys. Closed: the share of the local verifier's mean distance that the conditional one of"
        " the same rule does not have.",
        (shown_path(toys.path),),
    )


def _closed(toys: Toys, topology: str, drafting: str, ours: str, theirs: str) -> Cell:
    near, far = (toys.distance(topology, drafting, name) for name in (ours, theirs))
    if not (near.n and far.n) or abs(far.value) < NOT_SEEN:
        return ""
    left = quotient(near, far)
    share = Estimate(1 - left.value, left.influence, left.n)
    return amount(share, scale=100.0, digits=0, suffix="%")


def _named(verifier: str) -> str:
    return label(verifier.removesuffix(MERGED))


def optimum_figure(toys: Toys) -> Drawn:
    """Each verifier's distance to the optimum of its draft law, a panel a draft law."""
    trees = list(toys.topologies)
    panels: dict[str, Series] = {
        drafting: {
            verifier: [toys.distance(tree, drafting, verifier) for tree in trees]
            for verifier in verifiers
        }
        for drafting, verifiers in toys.verifiers().items()
    }

    def draw() -> Figure:
        figure = Figure(figsize=(WIDE, 6.4))
        grid = figure.subplots(len(panels), 1, sharex=True)
        for ax, (drafting, series) in zip(grid, panels.items(), strict=True):
            dodged(ax, series, range(len(trees)), 0.7 / max(len(series), 3))
            ax.axhline(0, color="black", linewidth=0.8)
            ax.set_title(f"draft law {drafting}", loc="left")
            ax.grid(False, axis="x")
            ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
            for edge in range(1, len(trees)):
                ax.axvline(edge - 0.5, color="#dddddd", linewidth=0.6)
            ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.5)
        grid[-1].set_xticks(range(len(trees)), trees, rotation=30, ha="right")
        grid[-1].set_xlim(-0.6, len(trees) - 0.4)
        figure.supylabel("optimum of the draft law - verifier, tokens a cycle", fontsize=8)
        return figure

    words = " ".join(f"{law}: {said(series, trees, 3)}." for law, series in panels.items())
    return Drawn(
        "toy-optima",
        "Distance to the whole-tree optimum on toys",
        f"Mean distance in tokens a cycle, a panel a draft law. {words}",
        "The optimum is that of the linear programme over whole trees, for the panel's draft law:"
        f" 0 is the best possible. Dots: means; bars: {LEVEL:.0%} intervals over toys. A verifier"
        " has no dot on trees that it does not take.",
        draw,
        (shown_path(toys.path),),
        wide=True,
    )
