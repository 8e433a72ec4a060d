"""`univer certify`: the gate on the command line.

Exit codes: 0 CERTIFIED, 1 BIASED, 2 usage, bad input or BROKEN, 3 INCONCLUSIVE.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from stattests import budget
from stattests.gate import Report
from stattests.lifeline import Signalled, signals_raise
from stattests.printed import Printed
from stattests.report_text import show, wide_console
from stattests.verdict import HarnessError, Verdict
from stattests.worker import certify_in_worker
from univer import VERIFIERS, InputError, __version__


@click.group(context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="univer")
def main() -> None:
    """Lossless verifiers for speculative decoding, and their certification."""


CERTIFY_HELP = f"""Certify VERIFIER: a built-in name ({", ".join(VERIFIERS)}) or module:attribute.

\b
Exit codes: 0 certified; 1 biased; 2 bad input or broken contract; 3 inconclusive.
"""


@main.command(context_settings={"show_default": True}, help=CERTIFY_HELP)
@click.argument("verifier")
@click.option(
    "--budget",
    "asked",
    default="pr",
    type=click.Choice(list(budget.BUDGETS)),
    help="How small a bias must be caught: "
    + ", ".join(f"{name} {delta:g}" for name, delta in budget.BUDGETS.items())
    + " in total variation.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report here.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML here.")
@click.option("--max-minutes", default=budget.DEFAULT_MINUTES, help="Run what fits into this time.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=budget.ROOT_SEED,
    help="Root of all random streams; replays a run.",
)
@click.option("--timeout", default=budget.DEFAULT_TIMEOUT, help="Seconds one call may take.")
@click.option("--topology", help="Adds problems on your tree: 2x5, eagle, chain:4, ...")
@click.option("--vocab", type=int, help="Adds problems of this vocabulary.")
@click.option(
    "--failures",
    default=Path("univer-failures"),
    type=click.Path(path_type=Path),
    help="Folder for what is needed to look at a failure.",
)
def certify(
    verifier: str,
    asked: str,
    json_file: Path | None,
    junit: Path | None,
    max_minutes: float,
    seed: int,
    timeout: float,
    topology: str | None,
    vocab: int | None,
    failures: Path,
) -> None:
    """Certify, print, write what was asked for and exit with the verdict's code."""
    console, printed = wide_console(), Printed()
    log = failures / f"{_file_name(verifier)}.log"
    try:
        for name, file in (("--json", json_file), ("--junit", junit)):
            if file is not None:
                _check_file(name, file)
        if failures.exists() and not failures.is_dir():
            raise InputError(f"--failures: {failures} is not a folder; give the name of one.")
        with signals_raise():
            report = _watched(
                console,
                verifier,
                asked=asked,
                seed=seed,
                max_minutes=max_minutes,
                timeout=timeout,
                topology=topology,
                vocab=vocab,
                printed=printed,
            )
    except InputError as error:
        _end(f"error: {error}", 2, printed, log)
    except HarnessError as error:
        says = f"error: the certification itself failed, which is no verdict: {error}"
        _end(says, 2, printed, log)
    except KeyboardInterrupt:
        _end("interrupted: no verdict", INTERRUPTED, printed, log)
    except Signalled as ended:
        _end("ended by a signal: no verdict", ended.exit_code, printed, log)
    replay = replay_command(report, topology, vocab, max_minutes, timeout)
    show(console, report, replay, printed, log)
    try:
        _keep(printed, log)
        if json_file is not None:
            more = {"replay": replay, "printed": printed.to_json(log)}
            _write(json_file, json.dumps({**report.to_json(), **more}, indent=1))
        if junit is not None:
            _write(junit, junit_xml(report))
        if report.verdict.failed:
            for file in write_failures(report, replay, failures):
                console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    except OSError as error:
        click.echo(f"error: cannot write {error.filename}: {error.strerror}.", err=True)
        sys.exit(report.verdict.value or 2)
    sys.exit(report.verdict.value)


def _end(says: str, code: int, printed: Printed, log: Path) -> NoReturn:
    """End without a report; what was printed may say why."""
    click.echo(says, err=True)
    try:
        if _keep(printed, log):
            click.echo(f"what the verifier printed: {log}", err=True)
    except OSError as error:
        click.echo(f"error: cannot write {error.filename}: {error.strerror}.", err=True)
    sys.exit(code)


def _keep(printed: Printed, log: Path) -> bool:
    """Write what was printed, if there was anything; whether there was."""
    if printed.total:
        log.parent.mkdir(parents=True, exist_ok=True)
        _write(log, printed.log())
    return printed.total > 0


def _check_file(option: str, file: Path) -> None:
    """Refuse before the work what could not be written after it."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{option}: there is no folder {folder}.")
    if file.is_dir():
        raise InputError(f"{option}: {file} is a folder; give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option}: the folder {folder} cannot be written to.")


def _watched(console: Console, verifier: str, **options: Any) -> Report:
    """Certify with a progress bar on a terminal, silently elsewhere."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("loading", total=1.0)

        def progress(step: str, share: float) -> None:
            bar.update(task, description=step, completed=share)

        return certify_in_worker(verifier, progress=progress, **options)


def replay_command(
    report: Report,
    topology: str | None,
    vocab: int | None,
    max_minutes: float = budget.DEFAULT_MINUTES,
    timeout: float = budget.DEFAULT_TIMEOUT,
) -> str:
    """The command that gives this verdict again: bit for bit, unless time decided it."""
    # What a smaller budget than was asked for found, it finds again.
    ran = report.budget if report.verdict.failed else report.asked
    parts = ["univer", "certify", shlex.quote(report.subject), "--budget", ran]
    parts += ["--seed", str(report.seed)]
    if topology is not None:
        parts += ["--topology", f"'{topology}'"]
    if vocab is not None:
        parts += ["--vocab", str(vocab)]
    if max_minutes != budget.DEFAULT_MINUTES:
        parts += ["--max-minutes", repr(max_minutes)]
    if timeout != budget.DEFAULT_TIMEOUT:
        parts += ["--timeout", repr(timeout)]
    return " ".join(parts)


INTERRUPTED = 130  # what shells expect after Ctrl-C: no verdict


def junit_xml(report: Report) -> str:
    """The report as JUnit XML: one test case a layer and problem."""
    failed = [result for result in report.results if result.verdict.failed]
    suite = ElementTree.Element(
        "testsuite",
        name=f"univer certify {report.subject}",
        tests=str(len(report.results) + 1),
        failures=str(len(failed) + (report.verdict is not Verdict.CERTIFIED)),
        time=f"{report.seconds:.1f}",
    )
    for result in report.results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{report.subject}.{result.layer}", name=result.case
        )
        if result in failed:
            ElementTree.SubElement(
                case, "failure", message=result.detail
            ).text = result.reason.value
        elif result.verdict is Verdict.INCONCLUSIVE:
            ElementTree.SubElement(case, "skipped", message=result.detail)
    case = ElementTree.SubElement(suite, "testcase", classname=report.subject, name="verdict")
    if report.verdict is not Verdict.CERTIFIED:
        ElementTree.SubElement(case, "failure", message=report.detail).text = report.verdict.name
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def write_failures(report: Report, replay: str, folder: Path) -> list[Path]:
    """One JSON file a failing case, with its problem in hexadecimal floats."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for result in report.results:
        if result.verdict.failed:
            name = _file_name(f"{result.layer}-{result.case}")
            data = {
                "verifier": report.subject,
                "seed": report.seed,
                "replay": replay,
                "versions": report.versions,
                "result": result.to_json(),  # with its problem, counts and path of log E
                "matches": [asdict(match) for match in report.matches],
                "smallest_problem": report.smallest,
                "pytest": report.pytest,
            }
            _write(folder / f"{name}.json", json.dumps(data, indent=1))
            files.append(folder / f"{name}.json")
    return files


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)


def _write(file: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    new = file.with_name(file.name + ".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.replace(file)


if __name__ == "__main__":
    main()
