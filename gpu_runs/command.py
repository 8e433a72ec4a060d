"""What the commands of this room share: how they end, and how many threads they use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import torch

from univer import InputError

INTERRUPTED = 130  # the exit code that shells give a program ended by Ctrl-C


@contextmanager
def one_sentence(interrupted: str) -> Iterator[None]:
    """End the program with one sentence for bad input (exit code 2) and for Ctrl-C (130)."""
    try:
        yield
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        click.echo(interrupted, err=True)
        sys.exit(INTERRUPTED)


def check_threads(threads: int) -> None:
    """Refuse a number of threads that the machine has no cores for; 0 is torch's choice.

    Raises:
        InputError: names the number of cores.
    """
    cores = os.cpu_count() or 1
    if not 0 <= threads <= cores:
        raise InputError(f"threads: expected 0 (torch's choice) to {cores} (cores), got {threads}.")


def use_threads(threads: int) -> None:
    """Compute with this many threads; 0 leaves torch's choice."""
    if threads > 0:
        torch.set_num_threads(threads)
