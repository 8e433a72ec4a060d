"""What the command answers when it cannot make a report: one sentence."""

from __future__ import annotations


class ReportError(Exception):
    """The input or the output folder is not usable; the text says why and what to do."""
