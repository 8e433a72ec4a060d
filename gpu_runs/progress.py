"""Progress for people: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

LINE_SECONDS = 30.0


class Ticker:
    """A context manager that shows how far a part is: rate, time left and a note.

    Args:
        console: where to.
        title: the part's name.
        unit: what is counted, in the plural.
        total: the value of `tick`'s first argument at which the part is over.
    """

    def __init__(self, console: Console, title: str, unit: str, total: float) -> None:
        self._console, self._title, self._unit, self._total = console, title, unit, total
        self.done = 0.0
        self._start = self._printed = time.perf_counter()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, note="")

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def tick(self, done: float, counted: int, note: str) -> None:
        """Say that this much of the total is done, and how many units that was."""
        self.done = done
        rate = f"{counted} {self._unit}, {counted / self.elapsed:.2f} a second; {note}"
        self._bar.update(self._task, completed=done, note=rate)
        now = time.perf_counter()
        if not self._console.is_terminal and now - self._printed >= LINE_SECONDS:
            self._printed = now
            left = self.elapsed * max(self._total / done - 1, 0)
            self._console.print(
                f"{self._title}: {rate}; {left:.0f} s left", highlight=False, soft_wrap=True
            )

    def __enter__(self) -> Ticker:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
