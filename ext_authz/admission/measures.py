"""How well a pool does at what it is for: promises kept, and requests refused without need.

PURE. Counters only grow; rolling windows are of a few numbers each. Everything is O(1) an event.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from enum import StrEnum
from math import exp, inf, log
from random import Random

from ext_authz.model import value

# Refusals that wait to be judged, and errors that are remembered.
MOST_REFUSALS = 1024
MOST_ERRORS = 512
# Rolling windows: so many slices of so many seconds.
SLICE_S, SLICES = 10.0, 60
# The Admission Efficiency Score below which something is wrong, and how many must be judged first.
ALARM_BELOW, ALARM_AFTER = 0.97, 100
QUANTILES = (0.5, 0.95, 0.99)


class Count(StrEnum):
    """What is counted. Labels of the metric `requests`."""

    OFFERED = "offered"
    ADMITTED = "admitted"
    DEMOTED = "demoted"
    REFUSED = "refused"
    # Admitted ones that are over, by what became of their promise.
    KEPT = "kept"
    BROKEN = "broken"
    UNPROMISED = "unpromised"
    FAILED = "failed"
    # Refusals that were judged, and those that need not have been.
    REFUSAL_JUDGED = "refusal_judged"
    REFUSAL_PREMATURE = "refusal_premature"
    # Refusals that were let in to learn what they would have become, and those that kept it.
    TRIED = "tried"
    TRIED_KEPT = "tried_kept"


@value
class Standing:
    """Of a rolling window: promises kept of those judged, and of all admitted that are over
    (Admission Efficiency Score); admitted of offered; kept a second. None without any."""

    compliance_ratio: float | None
    efficiency_ratio: float | None
    admission_ratio: float | None
    goodput_per_s: float
    alarm: bool


class Measures:
    """Of one pool."""

    def __init__(self) -> None:
        self.counts: Counter[Count] = Counter()
        self._slices: deque[tuple[float, Counter[Count]]] = deque(maxlen=SLICES)
        self._at_limit_s = -inf
        # (time of the refusal, end of its predicted life)
        self._refusals: deque[tuple[float, float]] = deque()
        self._errors: deque[float] = deque()
        self._ordered: list[float] = []
        self._within: Counter[float] = Counter()
        self._predicted = 0

    def count(self, what: Count, now: float) -> None:
        """One more."""
        self.counts[what] += 1
        if not self._slices or now - self._slices[-1][0] >= SLICE_S:
            self._slices.append((now, Counter()))
        self._slices[-1][1][what] += 1

    # -- refusals -------------------------------------------------------------------------

    def at_limit(self, now: float) -> None:
        """The pool is as full as it may get."""
        self._at_limit_s = now

    def refused(self, now: float, life_s: float) -> None:
        """A request within its tenant's share was refused; it would have run for `life_s`.

        It was premature if the pool has room for the whole of that time: judged when it is over.
        """
        if self._at_limit_s >= now:
            self.count(Count.REFUSAL_JUDGED, now)
        elif len(self._refusals) < MOST_REFUSALS:
            self._refusals.append((now, now + life_s))

    def judge(self, now: float) -> None:
        """Judge the refusals whose time has come, in the order of refusal."""
        while self._refusals and self._refusals[0][1] <= now:
            refused_s, _ = self._refusals.popleft()
            self.count(Count.REFUSAL_JUDGED, now)
            if self._at_limit_s < refused_s:
                self.count(Count.REFUSAL_PREMATURE, now)

    # -- predictions ----------------------------------------------------------------------

    def predicted(self, expected_s: float, within: dict[float, float], true_s: float) -> None:
        """A prediction is compared with what came; `within` are the predicted quantiles."""
        stray = log(true_s / expected_s)
        self._errors.append(stray)
        insort(self._ordered, stray)
        if len(self._errors) > MOST_ERRORS:
            self._ordered.remove(self._errors.popleft())
        self._predicted += 1
        for quantile, seconds in within.items():
            self._within[quantile] += true_s <= seconds

    def error_ratio(self, part: float) -> float | None:
        """The relative error that `part` of recent predictions do not exceed; None without any."""
        errors = sorted(abs(exp(-stray) - 1.0) for stray in self._errors)
        return errors[min(int(part * len(errors)), len(errors) - 1)] if errors else None

    def coverage_ratio(self, quantile: float) -> float | None:
        """The part of all that stayed within their predicted `quantile`; None without any."""
        return self._within[quantile] / self._predicted if self._predicted else None

    # -- standing -------------------------------------------------------------------------

    def standing(self, now: float, window_s: float) -> Standing:
        """How the pool has done over the last `window_s`, at most ten minutes."""
        seen: Counter[Count] = Counter()
        for began_s, counts in self._slices:
            if now - began_s <= window_s:
                seen.update(counts)
        judged = seen[Count.KEPT] + seen[Count.BROKEN]
        over = judged + seen[Count.FAILED]
        efficiency = seen[Count.KEPT] / over if over else None
        let_in = seen[Count.ADMITTED] + seen[Count.DEMOTED]
        return Standing(
            compliance_ratio=seen[Count.KEPT] / judged if judged else None,
            efficiency_ratio=efficiency,
            admission_ratio=let_in / seen[Count.OFFERED] if seen[Count.OFFERED] else None,
            goodput_per_s=seen[Count.KEPT] / window_s,
            alarm=efficiency is not None and over >= ALARM_AFTER and efficiency < ALARM_BELOW,
        )


def is_tried(ratio: float, rng: Random) -> bool:
    """Whether a refusal is let in after all, to learn what would become of it.

    It shows whether refusals were needed where nothing else can. It costs what the refusal was
    for: the request may be late, and others with it. So it is off (0) unless asked for.
    """
    return ratio > 0.0 and rng.random() < ratio
