"""The report's folder: tables, figures and the page that shows them all."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports.drawing import Drawn, save
from reports.forms import FORMS
from reports.names import visible
from reports.report import Report
from reports.runs import ReportError
from reports.table import numeric, shown

INDEX = "index.html"
FOLDERS = {"figures": (".svg", ".png"), "tables": tuple(f".{form}" for form in FORMS)}
UNFINISHED = ".unfinished"
WORDS = {
    "cycle": "one draft tree, one forward of the target, one decision of the verifier",
    "acceptance length": "tokens a cycle: the accepted ones and the next token",
    "topology": "2x5: 2 children a node, 5 deep; chain:5: one path; eagle: EAGLE-1's default tree;"
    " [[0],[1],[0,0]]: the paths to its nodes",
    "T": "temperature; at 0 the most likely token is taken",
    "TV": "total variation distance between two laws: 0 if they are the same, 1 if disjoint",
    "PIT": "probability integral transform: where a token lies in its law, uniform if lossless",
    "E": "what a bet against losslessness has made of 1; log10 E is its logarithm",
    "paired": "all verifiers judged in the same contexts; decoding: each writes its own text",
    "RRSw": "recursive rejection sampling without replacement, the baseline",
}


def write(report: Report, folder: Path, command: str) -> None:
    """Write tables, figures and page beside what the folder holds, then put them in its place.

    What fails on the way, say on a full disk, leaves the report that was there before.

    Args:
        report: what they show.
        folder: new, empty, or an earlier report.
        command: what is being run, for the reader.

    Raises:
        ReportError: the folder cannot be written, or holds something that is no report.
    """
    if folder.exists() and not folder.is_dir():
        raise ReportError(f"{visible(str(folder))} is a file; the report needs a folder.")
    made = not folder.exists()
    unfinished = folder / UNFINISHED
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if strange := sorted(_strange(folder)):
            raise ReportError(
                f"{visible(str(folder))} holds {visible(strange[0])}, which is no part of a report;"
                " name a new folder."
            )
        rmtree(unfinished, ignore_errors=True)
        _write(report, unfinished, command)
        for name in FOLDERS:
            if (folder / name).exists():
                rmtree(folder / name)
            (unfinished / name).rename(folder / name)
        (unfinished / INDEX).replace(folder / INDEX)
    except OSError as error:
        raise ReportError(
            f"{visible(str(folder))} cannot be written: {error.strerror or error}."
        ) from error
    finally:
        rmtree(unfinished, ignore_errors=True)
        if made:
            with suppress(OSError):  # it stays if it holds the report
                folder.rmdir()


def _strange(folder: Path) -> Iterator[str]:
    yield from {path.name for path in folder.iterdir()} - {INDEX, UNFINISHED, *FOLDERS}
    for name, endings in FOLDERS.items():
        if (folder / name).exists():
            others = (path for path in (folder / name).iterdir() if path.suffix not in endings)
            yield from (f"{name}/{path.name}" for path in others)


def _write(report: Report, folder: Path, command: str) -> None:
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for table in report.tables:
        for ending, form in FORMS.items():
            path = folder / "tables" / f"{table.name}.{ending}"
            path.write_text(form(table), encoding="utf-8")
    for figure in report.figures:
        save(figure, folder / "figures")
    (folder / INDEX).write_text(render(report, folder, command), encoding="utf-8")


def render(report: Report, folder: Path, command: str) -> str:
    """The page, with the figures inside."""

    def image(figure: Drawn) -> str:
        return b64encode((folder / "figures" / f"{figure.name}.svg").read_bytes()).decode()

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"shown": shown, "numeric": numeric, "image": image, "command": command}
    return environment.get_template("page.html.j2").render(
        words=WORDS.items(),
        verdicts=report.verdicts,
        headline=report.headline,
        sections=report.sections,
        notes=report.notes,
        not_shown=report.not_shown,
    )
