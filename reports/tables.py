"""The tables of a run, in the form of the paper's."""

from __future__ import annotations

from collections.abc import Iterable

from reports.estimates import Estimate, quotient
from reports.measures import (
    ERRORS,
    acceptance_change,
    acceptance_length,
    milliseconds,
    speed,
)
from reports.names import BASELINE, PLAIN, category_label, label, slug, visible
from reports.runs import TIMES, rows_of
from reports.summaries import Setting, Summary
from reports.table import Amount, Cell, Table, amount, count

TOKENS = "Tokens a cycle, the next token counted"
HOW = {
    True: "each cycle's exact mean given its tree, all verifiers in the same contexts",
    False: "as accepted while each verifier wrote its own text",
}
PARTS = {  # column -> name
    "draft_ms": "draft",
    "target_ms": "target",
    "verify_ms": "verify",
    "keep_ms": "compact caches",
}
PAIRS = (("univer", "greedy"), ("univer", "rrsw"))  # differences that the grid shows


def lengths_table(summary: Summary, setting: Setting) -> Table:
    """Verifier x category, the average, and the change against RRSw."""
    base = BASELINE in _present(summary, setting)
    rows: list[tuple[Cell, ...]] = []
    for name in _present(summary, setting):
        whole = acceptance_length(summary, name, setting)
        cells: list[Cell] = [label(name)]
        for category in summary.categories:
            cells.append(amount(acceptance_length(summary, name, setting, category)))
        cells.append(amount(whole))
        if base:
            cells += _against_baseline(summary, name, setting, whole)
        rows.append(tuple(cells))
    changes = (f"change against {label(BASELINE)}", "in %") if base else ()
    return Table(
        slug(f"lengths-{summary.run.name}-{setting}"),
        f"Acceptance length by category: {summary.run.name}, {setting}",
        ("verifier", *map(category_label, summary.categories), "average", *changes),
        tuple(rows),
        f"{TOKENS}: {HOW[summary.run.paired]}; {ERRORS}; the average is over all cycles.",
        (rows_of(summary.run),),
    )


def grid_table(summary: Summary) -> Table:
    """Setting x verifier, and the differences that matter most."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(summary.verifiers)]
    rows: list[tuple[Cell, ...]] = []
    for setting in summary.settings:
        lengths = [acceptance_length(summary, name, setting) for name in summary.verifiers]
        changes = [acceptance_change(summary, *pair, setting) for pair in pairs]
        rows.append(
            (
                visible(setting.topology),
                f"{setting.temperature:g}",
                *map(amount, lengths),
                *(amount(change, signed=True) for change in changes),
                count(max(length.n for length in lengths)),
                count(max(length.prompts for length in lengths)),
            )
        )
    columns = (
        "topology",
        "temperature",
        *map(label, summary.verifiers),
        *(f"{label(ours)} - {label(theirs)}" for ours, theirs in pairs),
        "cycles each" if summary.run.paired else "cycles at most",
        "prompts",
    )
    return Table(
        slug(f"grid-{summary.run.name}"),
        f"Acceptance length by topology and temperature: {summary.run.name}",
        columns,
        tuple(rows),
        f"{TOKENS}: {HOW[summary.run.paired]}; {ERRORS}. Settings have different prompts:"
        " compare along a row.",
        (rows_of(summary.run),),
    )


def speed_table(summary: Summary, setting: Setting) -> Table:
    """Tokens a second of each way of decoding, against plain decoding, and where time went."""
    names = [*_present(summary, setting), PLAIN]
    plain = speed(summary, PLAIN, setting)
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        fast = speed(summary, name, setting)
        if not fast.n:
            continue
        length = acceptance_length(summary, name, setting)
        plainly = name == PLAIN
        rows.append(
            (
                label(name),
                Amount(1.0, exact=True) if plainly else amount(length),
                amount(fast, digits=2),
                Amount(1.0, digits=2, suffix="x", exact=True)
                if plainly
                else amount(quotient(fast, plain), digits=2, suffix="x"),
                *(amount(milliseconds(summary, name, setting, p), digits=1) for p in TIMES),
            )
        )
    return Table(
        slug(f"speed-{summary.run.name}-{setting}"),
        f"Speed: {summary.run.name}, {setting}, {summary.run.device}",
        (
            "way of decoding",
            "acceptance length",
            "tokens a second",
            "against plain",
            *(f"{name}, ms a token" for name in PARTS.values()),
        ),
        tuple(rows),
        f"{TOKENS}; {ERRORS}. The prompt's own forward is counted. Times are of this machine and"
        " this load: read them as ratios.",
        (rows_of(summary.run),),
    )


def run_tables(summary: Summary) -> Iterable[Table]:
    """All tables of a run, the one to look at first leading."""
    head = summary.head
    settings = [head, *(setting for setting in summary.settings if setting != head)]
    yield from (lengths_table(summary, setting) for setting in settings)
    if len(summary.settings) > 1:
        yield grid_table(summary)
    if not summary.run.paired:
        yield from (speed_table(summary, setting) for setting in settings)


def _present(summary: Summary, setting: Setting) -> list[str]:
    return [n for n in summary.verifiers if acceptance_length(summary, n, setting).n]


def _against_baseline(
    summary: Summary, name: str, setting: Setting, whole: Estimate
) -> tuple[Cell, Cell]:
    if name == BASELINE:
        return "", ""
    base = acceptance_length(summary, BASELINE, setting)
    share = quotient(whole, base)
    relative = Estimate(share.value - 1, share.influence, share.n)
    return (
        amount(acceptance_change(summary, name, BASELINE, setting), signed=True),
        amount(relative, scale=100, digits=1, signed=True, suffix=" %"),
    )
