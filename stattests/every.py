"""`python -m stattests.every`: certify every row of VERIFIERS, as many at once as there are cores.

Arguments are those of `univer certify`, whose output is shown as each ends. Files are one for each
verifier: `--json gate.json` writes gate-<name>.json, `--junit` likewise; what is needed to look at
failures is in a folder each, `univer-failures/<name>` if `--failures` names none. A `--topology` is
cut to the children that a verifier takes. Whatever ends this command ends what it has started.
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

from stattests.cases import first_children, narrowed
from stattests.cli import INTERRUPTED
from stattests.lifeline import Signalled, leash, signals_raise
from univer import VERIFIERS, InputError, Topology

FILES = ("--json", "--junit", "--failures")
ON_A_LEASH = """
from stattests import cli, lifeline
lifeline.end_with_stdin()
cli.main(prog_name="univer")
"""
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


def fitting(options: Sequence[str], most: int | None) -> tuple[list[str], str]:
    """The options, their topology cut to `most` children a node, and a sentence that says so.

    Example:
        >>> fitting(["--topology", "3x2"], 1)
        (['--topology', '1x2'], 'topology: 3x2 was cut to 1x2, which has at most 1 child a node.')
        >>> fitting(["--topology=[[0],[1],[2],[1,0]]"], 2)[0]
        ['--topology=[[0],[1],[1,0]]']
        >>> fitting(["--topology", "2x2"], 2)
        (['--topology', '2x2'], '')
    """
    fit, said = list(options), ""
    for at, option in enumerate(options):
        flag, equals, value = option.partition("=")
        if flag != "--topology" and options[at - 1 : at] != ["--topology"]:
            continue
        given = value if equals else option
        spec = _cut(given, most)
        if spec != given:
            fit[at] = f"{flag}={spec}" if equals else spec
            has = f"at most {most} {'child' if most == 1 else 'children'} a node"
            said = f"topology: {given} was cut to {spec}, which has {has}."
    return fit, said


def _cut(spec: str, most: int | None) -> str:
    """The topology with at most this many children a node, as a command line names it."""
    try:
        whole = Topology.parse(spec)
    except InputError:  # each verifier's own command says what is wrong with it
        return spec
    if most is None or whole.max_arity <= most:
        return spec
    cut, name = first_children(whole, most), narrowed(spec, most)
    if name != f"{spec}-{most}":
        return name
    ranks = {u: rank for v in cut.internal for rank, u in enumerate(cut.children(v))}
    paths = [[ranks[u] for u in cut.path(v)] for v in range(1, cut.num_nodes)]
    return str(paths).replace(" ", "")


def certified(name: str, options: Sequence[str]) -> Ended:
    """Run `univer certify` on one of VERIFIERS."""
    fit, said = fitting(options, VERIFIERS[name].max_arity)
    command = [sys.executable, "-c", ON_A_LEASH, "certify", name]
    command += own_files(["--failures", "univer-failures", *fit], name)
    width = {"COLUMNS": str(shutil.get_terminal_size().columns)} if sys.stdout.isatty() else {}
    run = subprocess.run(
        command,
        stdin=leash()[0],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **width},
    )
    return name, run.returncode, f"{said}\n{run.stdout}".lstrip("\n")


def all_ended(
    certify: Callable[[str], Ended], names: Iterable[str], at_once: int
) -> Iterator[Ended]:
    """What each gave, as they end, `at_once` of them running together."""
    leash()  # before threads ask for it
    pool = ThreadPoolExecutor(at_once)
    try:
        for ended in as_completed([pool.submit(certify, name) for name in names]):
            yield ended.result()
    except BaseException:
        leash()[1].close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(options: tuple[str, ...]) -> None:
    """Certify every row of VERIFIERS; exit code 1 unless all are certified."""
    failed = []
    try:
        with signals_raise():
            for name, code, output in all_ended(
                lambda name: certified(name, options), VERIFIERS, os.cpu_count() or 1
            ):
                click.echo(output)
                failed += [name] * (code != 0)
    except (KeyboardInterrupt, Signalled) as end:
        click.echo("interrupted: no verdict", err=True)
        sys.exit(INTERRUPTED if isinstance(end, KeyboardInterrupt) else end.exit_code)
    if failed:
        click.echo(f"not certified: {', '.join(failed)}")
        sys.exit(1)
    click.echo(f"certified: {', '.join(VERIFIERS)}")


if __name__ == "__main__":
    main()
