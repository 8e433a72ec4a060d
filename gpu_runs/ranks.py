"""One process, or the ranks that torchrun started: who does what, and one voice for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import click
import torch
import torch.distributed as dist

from univer import InputError

T = TypeVar("T")
PATIENCE = timedelta(days=30)  # the last rank may end long after the first; torchrun sees deaths


@dataclass(frozen=True)
class Ranks:
    """This process's number among `world`, and its number on its machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @staticmethod
    def join() -> Ranks:
        """The place that torchrun gives this process, or the only one there is."""
        rank, world, local = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        )
        if world > 1:
            # Only words are exchanged, so gloo does on every machine.
            dist.init_process_group("gloo", timeout=PATIENCE)
        return Ranks(rank, world, local)

    @property
    def first(self) -> bool:
        """Whether this rank speaks and keeps the folder."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device that a configuration's name means for this rank."""
        if name != "auto":
            return name
        return f"cuda:{self.local}" if torch.cuda.is_available() else "cpu"

    def together(self, step: Callable[[], T]) -> T:
        """The step's result, once it has gone well on every rank; else the end of all of them.

        Raises:
            InputError: in a single process, what the step raised.
            SystemExit: with code 2, on all ranks; the first one has said what was wrong.
        """
        if self.world == 1:
            return step()
        result, problem = None, None
        try:
            result = step()
        except InputError as error:
            problem = str(error)
        told = next((text for text in self._gathered(problem) if text is not None), None)
        if told is None:
            return result  # type: ignore[return-value]
        if self.first:
            click.echo(f"error: {told}", err=True)
        self.wait()  # torchrun ends the others as soon as one has ended
        sys.exit(2)

    def agree(self, mine: object) -> None:
        """Refuse ranks that have different things in mind.

        Raises:
            InputError, SystemExit: as in `together`.
        """

        def check() -> None:
            if any(other != mine for other in everyone):
                raise InputError("the ranks have different plans; give them the same files.")

        everyone = self._gathered(mine)
        self.together(check)

    def from_first(self, step: Callable[[], T]) -> T:
        """What the step gives on the first rank, the only one that takes it.

        Raises:
            InputError, SystemExit: as in `together`.
        """
        result = self.together(lambda: step() if self.first else None)
        return self._gathered(result)[0]  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Until all ranks have come here."""
        if self.world > 1:
            dist.barrier()

    def _gathered(self, mine: object) -> list[Any]:
        if self.world == 1:
            return [mine]
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, mine)
        return everyone
