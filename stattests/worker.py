"""One worker process holds the subject; the parent watches the clock and can end it.

A verifier that hangs, exits or crashes the interpreter is a verdict, not the end of the run. What
it prints comes through a pipe, and it ends with its parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from stattests.gate import Progress, Report, certify
from stattests.lifeline import end_with
from stattests.printed import Printed, kept, print_into
from stattests.raised import own_place, raised
from stattests.subject import load
from stattests.verdict import CaseResult, HarnessError, Reason, Verdict
from univer import VERIFIERS, InputError

POLL_SECONDS = 0.1
# glibc gives blocks of a batch's size back to the system at every free: a fifth of the run's time
# would go into getting them again. Read when a process starts.
KEEP_MEMORY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
# By which something else than the subject ends a process.
OUTSIDE = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGHUP")}


def _serve(
    connection: Connection,
    lifeline: Connection,
    output: Connection,
    clock: Any,
    spec: str,
    options: dict[str, Any],
) -> None:
    """In the worker: load, certify, send what happens as it happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    end_with(lifeline.fileno(), lambda: os._exit(1))
    print_into(output)
    torch.set_num_threads(1)
    package = spec.partition(":")[0].partition(".")[0]
    fallen: list[str] = []  # threads of the subject's
    threading.excepthook = _noting(fallen, package)
    try:
        clock.value = time.monotonic()  # loading is the subject's code as well
        subject = load(spec)
        clock.value = 0.0

        def on_call(started: bool) -> None:
            clock.value = time.monotonic() if started else 0.0

        subject.on_call = on_call
        report = certify(
            subject,
            progress=lambda step, share: connection.send(("progress", step, share)),
            **options,
        )
        connection.send(("report", replace(report, notes=(*report.notes, *fallen[:1]))))
    except InputError as error:
        connection.send(("error", str(error)))
    except BaseException as error:
        if spec not in VERIFIERS and own_place(error, package):  # a signal handler's, a hook's, ...
            connection.send(
                ("broken", f"between two calls, its code raised {raised(error, package)}")
            )
        else:
            connection.send(("failed", traceback.format_exc()))


def _noting(fallen: list[str], package: str) -> Any:
    """A hook for what threads raise: noted, and printed as ever."""
    usual = threading.excepthook

    def hook(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is not None:
            fallen.append(f"a thread of the verifier ended: {raised(given.exc_value, package)}")
        usual(given)

    return hook


def certify_in_worker(
    spec: str,
    *,
    timeout: float,
    progress: Progress,
    printed: Printed | None = None,
    **options: Any,
) -> Report:
    """`certify` of what `spec` names, in a process of its own.

    Args:
        spec: a name in VERIFIERS or module:attribute.
        timeout: seconds that one call of the subject may take.
        progress: as in `certify`.
        printed: takes what the subject prints.
        options: as for `certify`.

    Raises:
        InputError: the subject cannot be loaded, or an option does not fit.
        HarnessError: the certification itself failed.
    """
    if not timeout > 0:
        raise InputError(f"timeout: expected a number > 0, got {timeout:g}.")
    context = multiprocessing.get_context("spawn")
    for name in KEEP_MEMORY:
        os.environ.setdefault(name, str(2**30))
    ours, theirs = context.Pipe()
    lifeline, life = context.Pipe(duplex=False)
    prints, output = context.Pipe(duplex=False)
    clock = context.Value("d", 0.0)
    given = (theirs, lifeline, output, clock, spec, options)
    worker = context.Process(target=_serve, args=given, daemon=True)
    start = time.monotonic()
    with kept(prints, printed or Printed()), life, ours:
        try:
            worker.start()
            for end in (theirs, lifeline, output):
                end.close()
            found = _watched(worker, ours, clock, spec, timeout, progress)
        finally:
            if worker.pid is not None:
                worker.kill()
                worker.join()
    return found if isinstance(found, Report) else _broken(spec, *found, options, start)


def _watched(
    worker: Any, ours: Connection, clock: Any, spec: str, timeout: float, progress: Progress
) -> Report | tuple[Reason, str]:
    """What the worker reports, or why there will be no report."""
    while True:
        if ours.poll(POLL_SECONDS):
            try:
                kind, *content = ours.recv()
            except (EOFError, OSError):
                worker.join()
                return Reason.RAISED, _end_seen(worker.exitcode, bool(clock.value), spec)
            if kind == "report":
                report: Report = content[0]
                return report
            if kind == "error":
                raise InputError(content[0])
            if kind == "failed":
                raise HarnessError(content[0])
            if kind == "broken":
                return Reason.RAISED, content[0]
            progress(*content)
        since = clock.value  # read once: the worker writes it
        if since and time.monotonic() - since > timeout:
            return Reason.TIMEOUT, f"no answer within {timeout:g} s"


def _end_seen(code: int, during_call: bool, spec: str) -> str:
    """How the worker's process ended by itself.

    Nothing of ours ends it between two calls: a thread of the subject's does, or memory that its
    code has spoilt; unless the machine sends a signal, or there is only our own code.

    Raises:
        HarnessError: it was not the subject.
    """
    seen = f"its process ended with exit code {code}"
    if code < 0:
        known = signal.valid_signals()
        name = signal.Signals(-code).name if -code in known else f"signal {-code}"
        seen = f"its process was ended by {name}"
        seen += " (was there memory enough?)" if name == "SIGKILL" else ""
    if during_call:
        return seen
    if spec in VERIFIERS or -code in OUTSIDE:
        raise HarnessError(f"{seen}, outside of the verifier")
    return f"{seen} between two calls, as when a thread of its own ends it"


def _broken(spec: str, reason: Reason, seen: str, options: dict[str, Any], start: float) -> Report:
    result = CaseResult("contract", "contract", Verdict.BROKEN, reason, seen)
    return Report(
        subject=spec,
        verdict=Verdict.BROKEN,
        reason=reason,
        detail=seen,
        guarantee="nothing was certified",
        budget=options["asked"],
        asked=options["asked"],
        seed=options["seed"],
        results=(result,),
        cycles_per_second=0.0,
        seconds=time.monotonic() - start,
    )
