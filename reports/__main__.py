"""`python -m reports <run folders> -o <folder> [--against <folder>]`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from reports.documents import read_documents
from reports.page import INDEX, write
from reports.report import build
from reports.runs import ReportError, find, report_command, shown_path

INTERRUPTED = 130  # the exit code that shells give a program ended by Ctrl-C


@click.command(context_settings={"max_content_width": 100})
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Where figures, tables and index.html go.",
)
@click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Runs of before: says what changed. Repeat it for several.",
)
def main(folders: tuple[Path, ...], output: Path, against: tuple[Path, ...]) -> None:
    """Make figures, tables and one HTML page of runs.

    FOLDERS are runs of gpu_runs, or folders that hold some; theorem and gate reports (*.json) that
    lie beside the runs are shown as well.
    """
    try:
        make(list(folders), output, list(against))
    except ReportError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        click.echo("interrupted; no report was written.", err=True)
        sys.exit(INTERRUPTED)


def make(folders: list[Path], output: Path, against: list[Path]) -> None:
    """The whole command; raises ReportError."""

    def say(line: str) -> None:
        click.echo(line, err=True)

    runs, beside = find(folders)
    before = find(against)[0] if against else []
    report = build(runs, read_documents(beside), before, say)
    say(f"drawing {len(report.figures)} figures, writing {len(report.tables)} tables ...")
    write(report, output, report_command(folders, output, against))
    for note in report.notes:
        say(f"note: {note}")
    click.echo(f"{shown_path(output)}/{INDEX}")


if __name__ == "__main__":
    main()
