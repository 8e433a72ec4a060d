"""Processes that end with the one that started them, whatever ends that.

The parent holds one end of a pipe and never writes; the child waits for the other end to close.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO

ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Signalled(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # as shells say it


def end_with(descriptor: int, end: Callable[[], Any]) -> None:
    """Call `end` when the other end of a pipe closes."""

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        end()

    threading.Thread(target=watch, daemon=True).start()


def end_with_stdin() -> None:
    """End this process, as SIGTERM does, when its standard input closes."""
    end_with(0, lambda: os.kill(os.getpid(), signal.SIGTERM))


@cache
def leash() -> tuple[int, BinaryIO]:
    """A pipe for the children of this process: their standard input, and the end that it holds.

    When that end closes the children end, those as well that are only about to start.
    """
    theirs, ours = os.pipe()
    return theirs, os.fdopen(ours, "wb")


@contextmanager
def signals_raise() -> Iterator[None]:
    """What asks a process to end raises Signalled, as Ctrl-C raises KeyboardInterrupt.

    Signals that are ignored (nohup) or handled already stay so.
    """

    def end(number: int, _: object) -> None:
        raise Signalled(number)

    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDS if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
