"""The report's folder: tables, figures and the page that shows them all."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports.drawing import Drawn, save
from reports.report import Report
from reports.runs import ReportError
from reports.table import FORMS, numeric, shown

INDEX = "index.html"
FOLDERS = {"figures": ("svg", "png"), "tables": tuple(FORMS)}


def prepare(folder: Path) -> None:
    """Make the folder and its rooms; remove what an earlier report left in them.

    Raises:
        ReportError: it cannot be made, or holds something that is no report.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = {path.name for path in folder.iterdir()}
        if strange := sorted(held - {INDEX, *FOLDERS}):
            raise ReportError(
                f"{folder} holds {strange[0]}, which is no part of a report; name a new folder."
            )
        for name, endings in FOLDERS.items():
            (folder / name).mkdir(exist_ok=True)
            for ending in endings:
                for path in (folder / name).glob(f"*.{ending}"):
                    path.unlink()
        (folder / INDEX).unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{folder} cannot be written: {error.strerror or error}.") from error


def write(report: Report, folder: Path, command: str) -> None:
    """Write all tables, all figures and, last, the page.

    Args:
        report: what they show.
        folder: prepared.
        command: what is being run, for the reader.

    Raises:
        ReportError: the disk is full, or the folder is gone.
    """
    try:
        for table in report.tables:
            for ending, form in FORMS.items():
                path = folder / "tables" / f"{table.name}.{ending}"
                path.write_text(form(table), encoding="utf-8")
        for figure in report.figures:
            save(figure, folder / "figures")
        (folder / INDEX).write_text(render(report, folder, command), encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{folder} cannot be written: {error.strerror or error}.") from error


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
        verdicts=report.verdicts,
        headline=report.headline,
        sections=report.sections,
        notes=report.notes,
        not_shown=report.not_shown,
    )
