"""What a certification says: a verdict, why it stopped, and the numbers behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from math import inf
from typing import Any


class Verdict(Enum):
    """The outcome, with the exit code of `univer certify`."""

    CERTIFIED = 0  # no bias of the stated size, with the stated error rates
    BIASED = 1  # the emitted law is not the target's
    BROKEN = 2  # the contract is broken: nothing can be said of the law, or of the length
    INCONCLUSIVE = 3  # time or draws ran out first; not a pass

    @property
    def failed(self) -> bool:
        """Whether something wrong was found."""
        return self in (Verdict.BIASED, Verdict.BROKEN)


class Reason(Enum):
    """Why a verdict was reached."""

    ALL_PASSED = "every case reached its sample size without crossing"
    EXACT_BIAS = "the exact law differs from the target's"
    PROBED_BIAS = "the law found by exact probing differs from the target's"
    FORBIDDEN_TOKEN = "a token of probability 0 was emitted"
    EVIDENCE = "log E crossed its threshold"
    DEPENDENT_DRAWS = "outcomes that must be independent are not"
    SHORTER = "lossless, but shorter than the claimed verifier"
    ANOTHER_LAW = "its stop_law is not the law of its verify"
    RAISED = "the verifier raised"
    REFUSED_RETURN = "what it returned is not an answer"
    CHANGED_INPUTS = "it changed its inputs"
    NOT_DETERMINISTIC = "same inputs and uniforms, another answer"
    ROWS_INTERFERE = "a row's answer depends on the other rows"
    BAD_DRAFTING = "its drafter returned something that is not a draft"
    TIMEOUT = "no answer within the time limit"
    NOT_BOXES = "its outcomes are not boxes in the uniforms: numbers reused, or hidden randomness"
    OUT_OF_TIME = "the time allowed ran out"


class ContractError(Exception):
    """A verifier broke the contract; `reason` types it, the message says what was seen."""

    def __init__(self, reason: Reason, seen: str) -> None:
        super().__init__(seen)
        self.reason = reason
        self.seen = seen


class HarnessError(Exception):
    """The certification itself failed: a defect of ours or of the machine, never a verdict."""


@dataclass(frozen=True)
class PrefixFinding:
    """How one prefix was followed: the worst tokens, seen against expected; counts of all."""

    prefix: tuple[int, ...]
    visits: float
    tv: float
    p_value: float | None
    tokens: tuple[tuple[int, float, float], ...]  # token, share seen, share expected
    counts: tuple[int, ...] = ()  # of every token, where they were counted
    pooled: str = ""  # the prefixes that were counted together; `prefix` says nothing then

    @property
    def place(self) -> str:
        """Which prefix it is, in words."""
        return self.pooled or str(list(self.prefix))


@dataclass(frozen=True)
class CaseResult:
    """One case: a verifier on a problem, judged by one layer."""

    case: str
    layer: str
    verdict: Verdict
    reason: Reason
    detail: str
    n: int = 0
    n_required: int = 0
    log10_e: float | None = None
    tv: float | None = None
    findings: tuple[PrefixFinding, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), **self.words()}

    def words(self) -> dict[str, str]:
        """Its verdict, reason and detail."""
        return {
            "verdict": self.verdict.name,
            "reason": self.reason.name,
            "detail": self.detail,
        }


@dataclass(frozen=True)
class Run:
    """What all layers share.

    alpha: false-alarm rate of one case; delta: the TV to catch; root: where streams start;
    deadline: on the clock, which gives seconds.
    """

    alpha: float
    delta: float
    root: int
    deadline: float = inf
    clock: Callable[[], float] = time.monotonic

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return self.clock() > self.deadline


def passed(case: str, layer: str, detail: str, **numbers: Any) -> CaseResult:
    """A case that found nothing."""
    return CaseResult(case, layer, Verdict.CERTIFIED, Reason.ALL_PASSED, detail, **numbers)
