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
    "rrs": "RRS",
    "rrs_conditional": "RRS conditional",
    "k_seq": "k-SEQ",
    "k_seq_conditional": "k-SEQ conditional",
    "spechub": "SpecHub",
    "spechub_conditional": "SpecHub conditional",
    "token_verification": "token verification",
    "block_verification": "Block Verification",
    "target_only": "target only",
    "optimal": "best one-step",
    "optimal_conditional": "best conditional",
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
NOT_THEIRS = ("", *LABELS.values())
SLUG = 120  # signs of a file's name, which must stay far below 255
MOST_NODES = 1 << 20  # no larger tree is drawn
EAGLE_NODES, EAGLE_DEPTH = 25, 5  # drafted nodes and depth of EAGLE-1's default tree


def label(verifier: str) -> str:
    """The verifier's name for people; an unknown one's is its own, told apart from a known one's.

    Example:
        >>> label("univer"), label("mine"), label("UniVer")
        ('UniVer', 'mine', "'UniVer'")
    """
    return LABELS.get(verifier) or (repr(verifier) if verifier in NOT_THEIRS else visible(verifier))


def category_label(category: str) -> str:
    """The category's name for people.

    Example:
        >>> category_label("qa"), category_label("long_form")
        ('QA', 'long form')
    """
    return CATEGORIES.get(category, visible(category.replace("_", " ")))


def visible(text: str) -> str:
    r"""The text without what cannot be seen: control characters, changes of direction, line ends.

    Example:
        >>> visible("one\ntwo")
        'one?two'
    """
    return "".join(sign if sign.isprintable() else "?" for sign in text)


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
        >>> shape("9x999999")  # too many to be counted
    """
    if topology == "eagle":
        return EAGLE_NODES, EAGLE_DEPTH
    if arity := branching(topology):
        depth = int(re.split("[:x]", topology)[1])
        if arity == 1:
            return (depth, depth) if depth <= MOST_NODES else None
        levels = range(1, min(depth, MOST_NODES.bit_length()) + 1)
        nodes = sum(arity**level for level in levels)
        return (nodes, depth) if nodes <= MOST_NODES else None
    try:
        paths = json.loads(topology)
        return len(paths), max(map(len, paths))
    except (ValueError, TypeError, RecursionError):
        return None


def branching(topology: str) -> int | None:
    """Children a node of a regular tree; None for another.

    Example:
        >>> branching("2x5"), branching("chain:3"), branching("eagle")
        (2, 1, None)
    """
    match = re.fullmatch(r"(?:(chain):|(\d{1,9})x)\d{1,9}", topology)
    return (1 if match[1] else int(match[2])) if match else None


def slug(text: str) -> str:
    """The text as part of a file's name; what loses signs or its end keeps a mark of them.

    Example:
        >>> slug("smollm2 2x5 T=0.6"), slug("[[0],[1]]"), slug("[[0,1]]")
        ('smollm2-2x5-T0.6', '0-1-216a51bf', '0-1-ae54b3f0')
    """
    short = re.sub(r"[^A-Za-z0-9._]+", "-", text.replace("=", "")).strip("-")
    whole = len(short) <= SLUG and not re.search(r"[^A-Za-z0-9._ ,:=-]", text)
    return short if whole else f"{short[:SLUG]}-{crc32(text.encode()):08x}"
