"""How things are called and ordered in tables and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from zlib import crc32

LABELS = {
    "rrsw": "RRSw",
    "traversal": "Traversal",
    "greedy": "Greedy",
    "univer": "UniVer",
    "plain": "plain decoding",
}
BASELINE, PLAIN = "rrsw", "plain"
CATEGORIES = {
    "mt_bench": "MT-Bench",
    "translation": "Translation",
    "summarization": "Summarization",
    "qa": "QA",
    "math_reasoning": "Math",
    "rag": "RAG",
}
EAGLE_NODES, EAGLE_DEPTH = 25, 5  # drafted nodes and depth of EAGLE-1's default tree


def label(verifier: str) -> str:
    """The verifier's name for people; an unknown one's is its own."""
    return LABELS.get(verifier, verifier)


def category_label(category: str) -> str:
    """The category's name for people.

    Example:
        >>> category_label("qa"), category_label("long_form")
        ('QA', 'long form')
    """
    return CATEGORIES.get(category, category.replace("_", " "))


def ordered(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names once each: known ones in their order, then the others by alphabet.

    Example:
        >>> ordered({"mine", "univer", "rrsw"}, LABELS)
        ['rrsw', 'univer', 'mine']
    """
    left = set(names)
    first = [name for name in known if name in left]
    return first + sorted(left - set(first))


def shape(topology: str) -> tuple[int, int] | None:
    """Number of drafted nodes (without the root) and depth; None for a spec that is not known.

    Example:
        >>> shape("2x3"), shape("chain:5"), shape("[[0], [1], [0, 0]]"), shape("mine")
        ((14, 3), (5, 5), (3, 2), None)
    """
    if topology == "eagle":
        return EAGLE_NODES, EAGLE_DEPTH
    if match := re.fullmatch(r"chain:(\d+)", topology):
        return int(match[1]), int(match[1])
    if match := re.fullmatch(r"(\d+)x(\d+)", topology):
        branching, depth = int(match[1]), int(match[2])
        return sum(branching**level for level in range(1, depth + 1)), depth
    try:
        paths = json.loads(topology)
        return len(paths), max(map(len, paths))
    except (ValueError, TypeError):
        return None


def branching(topology: str) -> int | None:
    """Children a node of a regular tree; None for another.

    Example:
        >>> branching("2x5"), branching("chain:3"), branching("eagle")
        (2, 1, None)
    """
    if topology.startswith("chain:"):
        return 1
    match = re.fullmatch(r"(\d+)x(\d+)", topology)
    return int(match[1]) if match else None


def slug(text: str) -> str:
    """The text as part of a file's name; lists, which lose their brackets, keep a mark of theirs.

    Example:
        >>> slug("smollm2 2x5 T=0.6"), slug("[[0],[1]]"), slug("[[0,1]]")
        ('smollm2-2x5-T0.6', '0-1-216a51bf', '0-1-ae54b3f0')
    """
    mark = f"-{crc32(text.encode()):08x}" if "[" in text else ""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text.replace("=", "")).strip("-") + mark
