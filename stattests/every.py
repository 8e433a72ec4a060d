"""`python -m stattests.every`: certify every row of VERIFIERS, as many at once as there are cores.

Arguments are those of `univer certify`, whose output is shown as each ends. Files are one for each
verifier: `--json gate.json` writes gate-<name>.json, `--junit` likewise; what is needed to look at
failures is in a folder each, `univer-failures/<name>` if `--failures` names none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import click

from univer import VERIFIERS

FILES = ("--json", "--junit", "--failures")
Ended = tuple[str, int, str]  # name, exit code, output


def own_files(options: Sequence[str], name: str) -> Iterator[str]:
    """The options with each file that they name made this verifier's own.

    Example:
        >>> list(own_files(["--json", "out/gate.json", "--failures=bad"], "rrs"))
        ['--json', 'out/gate-rrs.json', '--failures=bad/rrs']
    """

    def own(flag: str, value: str) -> str:
        path = Path(value)
        folder = flag == "--failures"
        return str(path / name if folder else path.with_name(f"{path.stem}-{name}{path.suffix}"))

    flag = ""
    for option in options:
        word, equals, value = option.partition("=")
        if flag in FILES:
            yield own(flag, option)
        elif word in FILES and equals:
            yield f"{word}={own(word, value)}"
        else:
            yield option
        flag = "" if flag in FILES else option


def certified(name: str, options: Sequence[str]) -> Ended:
    """Run `univer certify` on one of VERIFIERS."""
    command = [sys.executable, "-m", "stattests.cli", "certify", name]
    command += own_files(["--failures", "univer-failures", *options], name)
    columns = str(shutil.get_terminal_size().columns)
    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": columns},
    )
    return name, run.returncode, run.stdout


def all_ended(
    certify: Callable[[str], Ended], names: Iterable[str], at_once: int
) -> Iterator[Ended]:
    """What each gave, as they end, `at_once` of them running together."""
    pool = ThreadPoolExecutor(at_once)
    try:
        for ended in as_completed([pool.submit(certify, name) for name in names]):
            yield ended.result()
    finally:
        pool.shutdown(cancel_futures=True)


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(options: tuple[str, ...]) -> None:
    """Certify every row of VERIFIERS; exit code 1 unless all are certified."""
    failed = []
    for name, code, output in all_ended(
        lambda name: certified(name, options), VERIFIERS, os.cpu_count() or 1
    ):
        click.echo(output)
        failed += [name] * (code != 0)
    if failed:
        click.echo(f"not certified: {', '.join(failed)}")
        sys.exit(1)
    click.echo(f"certified: {', '.join(VERIFIERS)}")


if __name__ == "__main__":
    main()
