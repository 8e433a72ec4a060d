"""What a subject prints: the first and the last of it is kept, however much it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event, Thread
from typing import Any

FIRST, LAST = 900_000, 90_000  # bytes kept: a log stays below a megabyte
CHUNK = 2**16  # bytes read at once, as many as a pipe holds
LINES, LETTERS = 3, 200  # of the last words


class Printed:
    r"""Bytes as they come; `total` of them, of which the first and the last are kept.

    Example:
        >>> printed = Printed()
        >>> for _ in range(20):
        ...     printed.add(b"ninety thousand and nine\n" * 4000)
        >>> printed.total, len(printed.log()) < 1_000_000
        (2000000, True)
        >>> printed.log().decode().splitlines()[-1]
        '[cut: 2,000,000 bytes came; the first 900,000 and the last 90,000 are above]'
    """

    def __init__(self) -> None:
        self.total = 0
        self._first, self._last = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Keep what there is room for."""
        self.total += len(data)
        room = FIRST - len(self._first)
        self._first += data[:room]
        self._last = (self._last + data[room:])[-LAST:]

    @property
    def cut(self) -> bool:
        """Whether some of it is not kept."""
        return self.total > FIRST + LAST

    def log(self) -> bytes:
        """All of it, or if that is too much its two ends and a last line that says so."""
        if not self.cut:
            return bytes(self._first + self._last)
        end = (
            f"[cut: {self.total:,} bytes came; the first {FIRST:,} and the last {LAST:,} are above]"
        )
        return b"\n".join([self._first, b"[...]", self._last, end.encode(), b""])

    def last_lines(self) -> list[str]:
        """The last lines that say something, fit to be shown."""
        lines = (self._first[-LAST:] + self._last).decode(errors="replace").splitlines()
        said = [line.expandtabs().rstrip() for line in lines if line.strip()]
        return [shown(line, LETTERS) for line in said[-LINES:]]

    def to_json(self, file: Path) -> dict[str, Any] | None:
        """A JSON object, given where the log is kept; None if nothing was printed."""
        if not self.total:
            return None
        seen = {"bytes": self.total, "cut": self.cut, "last_lines": self.last_lines()}
        return {"file": str(file), **seen}


def shown(text: str, most: int) -> str:
    r"""A text without what would not be shown, or steer a terminal: control characters by name.

    Example:
        >>> shown("\x1b[31mred\udcff, and more", 17)
        '\\x1b[31mred\\udcff'
    """
    letters = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(letters)[:most]


@contextmanager
def kept(pipe: Connection, printed: Printed) -> Iterator[None]:
    """Read what comes through a pipe meanwhile, so that nobody who prints has to wait."""
    over = Event()

    def read() -> None:
        left = CHUNK  # that may be in the pipe once who prints has ended
        while left > 0:
            if wait([pipe], 0.05):
                data = os.read(pipe.fileno(), CHUNK)
                if not data:
                    return
                printed.add(data)
                left -= len(data) * over.is_set()
            elif over.is_set():
                return

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        pipe.close()


def print_into(pipe: Connection) -> None:
    """Send what this process prints from here on, by whatever means, into a pipe."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor in (1, 2):
        os.dup2(pipe.fileno(), descriptor)
    pipe.close()
    os.close(nothing)
    # By lines: what was printed before a crash is there, and both streams stay in order.
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, stream)
