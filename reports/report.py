"""Everything that a report shows, put together: sections with tables and figures, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports import compare
from reports.documents import (
    FAULTS,
    Documents,
    fault_table,
    gate_table,
    read_faults,
    theorem_command,
    theorem_table,
)
from reports.drawing import Drawn
from reports.evidence_figures import fault_figure, text_figures
from reports.losslessness import Text, losslessness_table, texts
from reports.optima import optimum_figure, optimum_tables, read_toy_optima
from reports.run_figures import run_figures
from reports.runs import ReportError, Run, rows_of, run_command, shown_path
from reports.summaries import Summary, summarise
from reports.table import Table
from reports.tables import run_tables
from reports.verdicts import (
    Verdict,
    anchor,
    document_verdicts,
    length_verdicts,
    not_shown,
    notes,
    speed_verdicts,
    text_verdicts,
)


@dataclass(frozen=True)
class Section:
    """A part of the page.

    anchor, title: of its heading.
    facts: (what, value) lines above the tables.
    command: what made the files.
    tables, figures: in their order.
    folded: whether only the first table is open on the page.
    """

    anchor: str
    title: str
    facts: tuple[tuple[str, str], ...]
    command: str
    tables: tuple[Table, ...]
    figures: tuple[Drawn, ...]
    folded: bool = False


@dataclass(frozen=True)
class Report:
    """The page's content.

    verdicts: lines for its top.
    headline: the table to look at first; None where no run has trees.
    sections: the rest.
    notes: what the reader must know about the input.
    not_shown: what these files cannot say.
    """

    verdicts: tuple[Verdict, ...]
    headline: Table | None
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    not_shown: tuple[str, ...]

    @property
    def tables(self) -> list[Table]:
        """All of them, once each."""
        return [table for section in self.sections for table in section.tables]

    @property
    def figures(self) -> list[Drawn]:
        """All of them."""
        return [figure for section in self.sections for figure in section.figures]


def build(
    runs: Sequence[Run], documents: Documents, before: Sequence[Run], say: Callable[[str], None]
) -> Report:
    """The report on these runs and documents.

    Args:
        runs: what it is about.
        documents: what lay beside them.
        before: the runs to compare with; none for no comparison.
        say: told what is being done.

    Raises:
        ReportError: a file that is not what it should be.
    """
    summaries = _read(runs, say)
    then = _read(before, say)
    found = texts(summaries)
    compared, heard = _comparison(summaries, then)
    sections = (*compared, *(_run_section(s) for s in summaries if s.verifiers))
    sections += (_text_section(found, summaries), *_document_sections(documents), *_toy_sections())
    first = next((s for s in summaries if s.verifiers and s.run.paired), None)
    first = first or next((s for s in summaries if s.verifiers), None)
    headline = None
    if first is not None:
        headline = next(t for s in sections if s.anchor == anchor(first.run) for t in s.tables)
    names = [figure.name for section in sections for figure in section.figures]
    _check_names(names, [table.name for section in sections for table in section.tables])
    return Report(
        (
            *(Verdict(line, "comparison") for line in heard[:1]),
            *length_verdicts(first),
            *speed_verdicts(summaries),
            *text_verdicts(found),
            *document_verdicts(documents, read_faults()),
        ),
        headline,
        sections,
        (*heard[1:], *notes(summaries, names), *documents.notes),
        tuple(not_shown(found, runs)),
    )


def _check_names(*kinds: Sequence[str]) -> None:
    """Refuse what would overwrite a file of the same report."""
    for name, times in (item for names in kinds for item in Counter(names).items()):
        if times > 1:
            raise ReportError(
                f"two parts of the report would be named {name}; rename the folder of a run."
            )


def _read(runs: Sequence[Run], say: Callable[[str], None]) -> list[Summary]:
    summaries = []
    for run in sorted(runs, key=lambda run: not run.paired):
        say(f"reading {shown_path(run.folder)}: {run.rows:,} rows in {len(run.parts)} parts ...")
        summaries.append(summarise(run))
    return summaries


def _comparison(
    now: Sequence[Summary], then: Sequence[Summary]
) -> tuple[tuple[Section, ...], list[str]]:
    """The section that compares, and what it says: a sentence, then notes."""
    if not then:
        return (), []
    matched = compare.pairs(now, then)
    found = compare.changes(matched)
    if not found:
        raise ReportError("nothing to compare: no setting and verifier is on both sides.")
    table = compare.change_table(found, matched)
    figure = compare.change_figure(found, table)
    section = Section("comparison", "What changed", (), _commands(now), (table,), (figure,))
    return (section,), [compare.improved(found), *compare.notes(matched)]


def _run_section(summary: Summary) -> Section:
    run, config = summary.run, summary.run.config
    prompts = summary.prompts["prompt_id"].n_unique()
    drafter = config["drafter"]
    facts = (
        ("mode", "paired: all verifiers in each context" if run.paired else "decoding"),
        ("target", str(config["target"])),
        ("drafter", f"{drafter.get('kind', '?')} {drafter.get('model', '')}".strip()),
        ("rows", f"{run.rows:,} in {rows_of(run)}"),
        ("texts", f"{prompts} prompts, {config['tokens']} tokens a text"),
        ("settings", "; ".join(map(str, summary.settings))),
        ("seeds", ", ".join(map(str, config["seeds"]))),
        ("device", run.device),
        ("code", str(run.record.get("git_revision", "not said"))),
    )
    return Section(
        anchor(run),
        f"Run {run.name}",
        facts,
        run_command(run),
        tuple(run_tables(summary)),
        tuple(run_figures(summary)),
        folded=True,
    )


def _text_section(found: Sequence[Text], summaries: Sequence[Summary]) -> Section:
    sources = {summary.run.name: rows_of(summary.run) for summary in summaries}
    return Section(
        "losslessness",
        "Losslessness of the text",
        (),
        _commands(summaries),
        (losslessness_table(found, summaries),),
        tuple(text_figures(found, sources)),
    )


def _commands(summaries: Sequence[Summary]) -> str:
    return "; ".join(dict.fromkeys(run_command(summary.run) for summary in summaries))


def _document_sections(documents: Documents) -> list[Section]:
    sections = []
    if documents.theorems:
        many = len(documents.theorems) > 1
        tables = tuple(
            theorem_table(document, f"theorems-{number}" if many else "theorems")
            for number, document in enumerate(documents.theorems, 1)
        )
        command = "; ".join(map(theorem_command, documents.theorems))
        sections.append(Section("theorems", "Theorems on a real model", (), command, tables, ()))
    if documents.gates:
        table = gate_table(documents.gates)
        command = "univer certify <verifier> --json <file>"
        sections.append(Section("gate", "Certification", (), command, (table,), ()))
    return sections


def _toy_sections() -> list[Section]:
    optima, faults, path = read_toy_optima(), read_faults(), shown_path(FAULTS)
    return [
        Section(
            "optimum",
            "How far from the best possible",
            (),
            f"{optima.command} {shown_path(optima.path)}",
            tuple(optimum_tables(optima)),
            (optimum_figure(optima),),
            folded=True,
        ),
        Section(
            "faults",
            "Faults that the certification must catch",
            (),
            f"python -m stattests.faults --nightly {path}",
            (fault_table(faults, path),),
            (fault_figure(faults, path),),
        ),
    ]
