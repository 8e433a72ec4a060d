"""`univer certify`: the gate on the command line.

Exit codes: 0 CERTIFIED, 1 BIASED, 2 usage, bad input or BROKEN, 3 INCONCLUSIVE.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
from rich.box import ASCII, SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from stattests import budget
from stattests.gate import Report
from stattests.verdict import CaseResult, HarnessError, Verdict
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
    console = Console(stderr=False)
    try:
        for name, file in (("--json", json_file), ("--junit", junit)):
            if file is not None:
                _check_file(name, file)
        if failures.exists() and not failures.is_dir():
            raise InputError(f"--failures: {failures} is not a folder; give the name of one.")
        report = _watched(
            console,
            verifier,
            asked=asked,
            seed=seed,
            max_minutes=max_minutes,
            timeout=timeout,
            topology=topology,
            vocab=vocab,
        )
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except HarnessError as error:
        click.echo(
            f"error: the certification itself failed, which is no verdict: {error}", err=True
        )
        sys.exit(2)
    except KeyboardInterrupt:
        click.echo("interrupted: no verdict", err=True)
        sys.exit(INTERRUPTED)
    replay = replay_command(report, topology, vocab)
    _print(console, report, replay)
    try:
        if json_file is not None:
            _write(json_file, json.dumps({**report.to_json(), "replay": replay}, indent=1))
        if junit is not None:
            _write(junit, junit_xml(report))
        if report.verdict.failed:
            for file in write_failures(report, replay, failures):
                console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    except OSError as error:
        click.echo(f"error: cannot write {error.filename}: {error.strerror}.", err=True)
        sys.exit(report.verdict.value or 2)
    sys.exit(report.verdict.value)


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


def replay_command(report: Report, topology: str | None, vocab: int | None) -> str:
    """The command that gives this verdict again, bit for bit."""
    parts = ["univer", "certify", report.subject, "--budget", report.budget]
    parts += ["--seed", str(report.seed)]
    if topology is not None:
        parts += ["--topology", f"'{topology}'"]
    if vocab is not None:
        parts += ["--vocab", str(vocab)]
    return " ".join(parts)


INTERRUPTED = 130  # what shells expect after Ctrl-C: no verdict
COLOURS = {"CERTIFIED": "green", "BIASED": "red", "BROKEN": "red", "INCONCLUSIVE": "yellow"}


def _print(console: Console, report: Report, replay: str) -> None:
    """A table of the layers, the verdict, what it means and how to replay it."""
    table = Table(box=SIMPLE if console.is_terminal else ASCII, title=report.subject)
    for column in ("layer", "case", "verdict", "n", "log10 E", "TV", "what was seen"):
        right = column in ("n", "log10 E", "TV")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    shown = [r for r in report.results if r.layer == "L3" or r.verdict is not Verdict.CERTIFIED]
    for result in shown:
        colour = COLOURS[result.verdict.name]
        table.add_row(
            result.layer,
            result.case,
            f"[{colour}]{result.verdict.name}[/]",
            f"{result.n:,}" if result.n else "",
            "" if result.log10_e is None else f"{result.log10_e:.1f}",
            "" if result.tv is None else f"{result.tv:.2g}",
            result.detail,
        )
    console.print(table)
    quiet = Counter(r.layer for r in report.results if r not in shown)
    layers = ", ".join(f"{layer} {count}" for layer, count in quiet.items())
    lines = [f"{quiet.total()} further checks passed ({layers})"]
    lines += [_where(result) for result in report.results if _shows_where(result)][:1]
    for match in report.matches:
        lines.append(
            f"looks like: {match.name} ({match.says.rstrip('.')}), log likelihood"
            f" {match.margin:+.0f} against no fault"
        )
    if report.verdict is Verdict.BIASED and not report.matches:
        lines.append("looks like: no fault of the catalogue explains it better than none")
    if report.missing_laws is not None:
        lines.append(f"not compared: {report.missing_laws}")
    if report.pytest is not None:
        lines += ["smallest toy that shows it, as a test:", "", *report.pytest.splitlines(), ""]
    lines += [
        f"{result.layer} {result.case}: warning: {result.extra['warning']}"
        for result in report.results
        if "warning" in result.extra
    ][:1]
    lines += [
        f"{report.cycles_per_second:,.0f} cycles a second, {report.seconds:.0f} s",
        f"verdict: {report.verdict.name} ({report.detail})",
        f"what it means: {report.guarantee}",
        f"replay: {replay}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _shows_where(result: CaseResult) -> bool:
    """Whether its worst prefix is off by more than chance."""
    if result.verdict is not Verdict.BIASED or not result.findings:
        return False
    p_value = result.findings[0].p_value
    return result.log10_e is None or (p_value is not None and p_value < budget.SHOWN_P_VALUE)


def _where(result: CaseResult) -> str:
    worst = result.findings[0]
    tokens = ", ".join(f"{token}: {seen:.4f} for {due:.4f}" for token, seen, due in worst.tokens)
    return f"where: {result.case} after {worst.place}, tokens {tokens}"


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
            name = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{result.layer}-{result.case}")
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


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = file.with_name(file.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


if __name__ == "__main__":
    main()
