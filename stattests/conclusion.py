"""One verdict from the results of all layers; what else they found is said beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stattests.verdict import CaseResult, Reason, Verdict

# Which findings decide: a broken contract, a bias, a lost length or another law, time.
BROKEN, BIASED, LESS, LATE, NOTHING = range(5)


@dataclass(frozen=True)
class Conclusion:
    """What a certification comes to.

    verdict, reason, detail: of what decides; the detail names all kinds of failure that were found.
    also: the first finding of each other kind of failure.
    notes: a sentence each on results that look as if they counted, and do not.
    """

    verdict: Verdict
    reason: Reason
    detail: str
    also: tuple[CaseResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nothing_certified(self) -> str:
        """What a verdict that certifies nothing means."""
        if not self.also:
            return "nothing was certified"
        whys = "; ".join([self.reason.value, *(found.reason.value for found in self.also)])
        return f"nothing was certified, and {1 + len(self.also)} things are wrong: {whys}"


def rank(result: CaseResult) -> int:
    """Which of the kinds above a result is."""
    if result.verdict is Verdict.BROKEN:
        return LESS if result.reason in (Reason.SHORTER, Reason.ANOTHER_LAW) else BROKEN
    if result.verdict is Verdict.BIASED:
        return BIASED
    # Where probing does not apply or finds no boxes, sampling gives the verdict.
    return LATE if result.verdict is Verdict.INCONCLUSIVE and result.layer != "Lx" else NOTHING


def concluded(results: Sequence[CaseResult], ran: str, asked: str) -> Conclusion:
    """The verdict of these results, of a budget that ran where another may have been asked for.

    Example:
        >>> biased = CaseResult("a", "L3", Verdict.BIASED, Reason.EVIDENCE, "log10 E = 12")
        >>> broken = CaseResult("b", "wide", Verdict.BROKEN, Reason.RAISED, "verify raised")
        >>> end = concluded([biased, broken], "pr", "pr")
        >>> end.verdict.name, end.detail
        ('BROKEN', 'wide b: verify raised; also BIASED, L3 a: log10 E = 12')
        >>> end.nothing_certified.partition(": ")[2]
        'the verifier raised; log E crossed its threshold'
    """
    found: dict[int, CaseResult] = {}
    for result in results:
        found.setdefault(rank(result), result)  # the first of its kind
    notes = _notes(results)
    kinds = [found[kind] for kind in sorted(found) if kind < LATE]
    if kinds:
        first, *also = kinds
        detail = _place(first) + "".join(f"; also {r.verdict.name}, {_place(r)}" for r in also)
        return Conclusion(first.verdict, first.reason, detail, tuple(also), notes)
    if LATE in found:
        late = found[LATE]
        return Conclusion(late.verdict, late.reason, _place(late), notes=notes)
    if ran != asked:
        detail = f"budget {asked} does not fit the time; {ran} ran and found nothing"
        return Conclusion(Verdict.INCONCLUSIVE, Reason.OUT_OF_TIME, detail, notes=notes)
    return Conclusion(Verdict.CERTIFIED, Reason.ALL_PASSED, Reason.ALL_PASSED.value, notes=notes)


def _place(result: CaseResult) -> str:
    return f"{result.layer} {result.case}: {result.detail}"


def _notes(results: Sequence[CaseResult]) -> tuple[str, ...]:
    """Why cases that could not be probed do not count."""
    unprobed = [r for r in results if r.verdict is Verdict.INCONCLUSIVE and rank(r) == NOTHING]
    if not unprobed:
        return ()
    cases = "1 case" if len(unprobed) == 1 else f"{len(unprobed)} cases"
    return (
        f"INCONCLUSIVE in Lx does not count: {cases} could not be probed exactly"
        f" ({unprobed[0].detail}); there the other layers, which sample, give the verdict",
    )
