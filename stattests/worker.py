"""One worker process holds the subject; the parent watches the clock and can end it.

A verifier that hangs, exits or crashes the interpreter is a verdict, not the end of the run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from stattests.gate import Progress, Report, certify
from stattests.subject import load
from stattests.verdict import CaseResult, HarnessError, Reason, Verdict
from univer import InputError

POLL_SECONDS = 0.1
# glibc gives blocks of a batch's size back to the system at every free: a fifth of the run's time
# would go into getting them again. Read when a process starts.
KEEP_MEMORY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def _serve(connection: Connection, clock: Any, spec: str, options: dict[str, Any]) -> None:
    """In the worker: load, certify, send what happens as it happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(1)
    try:
        clock.value = time.time()  # loading is the subject's code as well
        subject = load(spec)
        clock.value = 0.0

        def on_call(started: bool) -> None:
            clock.value = time.time() if started else 0.0

        subject.on_call = on_call
        report = certify(
            subject,
            progress=lambda step, share: connection.send(("progress", step, share)),
            **options,
        )
        connection.send(("report", report))
    except InputError as error:
        connection.send(("error", str(error)))
    except Exception:
        connection.send(("failed", traceback.format_exc()))


def certify_in_worker(spec: str, *, timeout: float, progress: Progress, **options: Any) -> Report:
    """`certify` of what `spec` names, in a process of its own.

    Args:
        spec: a name in VERIFIERS or module:attribute.
        timeout: seconds that one call of the subject may take.
        progress: as in `certify`.
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
    clock = context.Value("d", 0.0)
    worker = context.Process(target=_serve, args=(theirs, clock, spec, options), daemon=True)
    start = time.monotonic()
    worker.start()
    theirs.close()
    try:
        while True:
            if ours.poll(POLL_SECONDS):
                try:
                    kind, *content = ours.recv()
                except EOFError:
                    worker.join()
                    seen = f"its process ended with exit code {worker.exitcode}"
                    if not clock.value:  # not while the subject's own code ran
                        raise HarnessError(f"{seen}, outside of the verifier") from None
                    return _broken(spec, Reason.RAISED, seen, options, start)
                if kind == "report":
                    report: Report = content[0]
                    return report
                if kind == "error":
                    raise InputError(content[0])
                if kind == "failed":
                    raise HarnessError(content[0])
                progress(*content)
                continue
            since = clock.value  # read once: the worker writes it
            if since and time.time() - since > timeout:
                seen = f"no answer within {timeout:g} s"
                return _broken(spec, Reason.TIMEOUT, seen, options, start)
    finally:
        worker.kill()
        worker.join()


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
