"""How well a pool does at what it is for: promises kept, and requests refused without need.

PURE. Counters only grow, as Prometheus wants them; beside them are windows over the last minutes
of fixed size. Counting is O(1); what is shown is worked out when somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from enum import IntEnum
from heapq import heappop, heappush
from itertools import islice
from math import inf
from random import Random

from ext_authz.admission.would_have import WouldHave
from ext_authz.model import value

# Windows are made of slices of so many seconds, the longest is ten minutes.
SLICE_S, SLICES = 5.0, 120
# The Admission Efficiency Score below which something is wrong (the field's figure), and how many
# must be over first.
ALARM_BELOW, ALARM_AFTER = 0.97, 100
# Refusals that wait to be judged, and predictions that are remembered.
MOST_REFUSALS = 1024
MOST_PREDICTIONS = 512
QUANTILES = (0.5, 0.95, 0.99)


class Count(IntEnum):
    """What is counted."""

    # Every request is one of these.
    ADMITTED = 0
    DEMOTED = 1
    REFUSED = 2
    # Admitted ones that are over, by what became of their promise. `FAILED`: the server's doing.
    KEPT = 3
    BROKEN = 4
    UNPROMISED = 5
    FAILED = 6
    # Refusals that were judged, those that need not have been, and those too many to be judged.
    REFUSAL_JUDGED = 7
    REFUSAL_PREMATURE = 8
    REFUSAL_SKIPPED = 9
    # Let in in spite of a refusal, and over; those that kept their promise. Not among the above.
    TRIED = 10
    TRIED_KEPT = 11

    @property
    def label(self) -> str:
        """Its name on metrics."""
        return self.name.lower()


KINDS = len(Count)


@value
class Standing:
    """Of a window. `compliance_ratio`: promises kept of those judged; `efficiency_ratio`: of all
    that were let in with a promise and are over, failures too (Admission Efficiency Score);
    `admission_ratio`: let in, of all offered; promises kept a second. None while there is nothing
    to tell it from. `alarm`: enough are over to say that too few promises are kept."""

    compliance_ratio: float | None
    efficiency_ratio: float | None
    admission_ratio: float | None
    goodput_per_s: float | None
    alarm: bool


@value
class Accuracy:
    """Of the last few hundred predictions. Errors are relative to the truth; `bias_ratio` is the
    predicted time of all of them over the true one, less one: above 0 predictions are too long.
    `covered` is the part that stayed within each of `QUANTILES`: as many as its name says if it
    is right."""

    predictions: int
    median_error_ratio: float
    p90_error_ratio: float
    bias_ratio: float
    covered: tuple[float, ...]


class Measures:
    """Of one pool."""

    def __init__(self) -> None:
        self.counts = [0] * KINDS
        # What a tenant's own promises came to, by its name. Names are configured ones.
        self.by_tenant: dict[str, list[int]] = {}
        # Device time by tenant, shared evenly with what ran beside.
        self.device_s: dict[str, float] = {}
        self.refusals = Refusals(self)
        self.would_have = WouldHave()
        self._began_s = inf
        self._slices: deque[tuple[int, list[int]]] = deque(maxlen=SLICES + 1)
        self._slice: list[int] = []
        self._slice_ends_s = -inf
        # (expected seconds, true seconds, whether within each of QUANTILES)
        self._predictions: deque[tuple[float, float, tuple[bool, ...]]] = deque(
            maxlen=MOST_PREDICTIONS
        )

    def count(self, what: Count, now: float, times: int = 1) -> None:
        """One more, or so many."""
        self.counts[what] += times
        if now >= self._slice_ends_s:
            number = int(now // SLICE_S)
            self._began_s = min(self._began_s, now)
            self._slices.append((number, [0] * KINDS))
            self._slice, self._slice_ends_s = self._slices[-1][1], (number + 1) * SLICE_S
        self._slice[what] += times

    def worked(self, tenant: str, device_s: float) -> None:
        """A request of `tenant` took so many seconds of devices."""
        self.device_s[tenant] = self.device_s.get(tenant, 0.0) + device_s

    def ended(self, what: Count, tenant: str, now: float) -> None:
        """A request of `tenant` is over."""
        self.count(what, now)
        counts = self.by_tenant.get(tenant)
        if counts is None:
            counts = self.by_tenant[tenant] = [0] * KINDS
        counts[what] += 1

    def keep_tenants(self, tenants: Container[str]) -> None:
        """Forget all tenants but these."""
        self.by_tenant = {n: counts for n, counts in self.by_tenant.items() if n in tenants}
        self.device_s = {n: seconds for n, seconds in self.device_s.items() if n in tenants}
        self.would_have.keep_tenants(tenants)

    def standing(self, now: float, window_s: float) -> Standing:
        """How the pool has done over the last `window_s`, at most ten minutes, and the slice
        that has begun."""
        oldest = int(now // SLICE_S) - round(window_s / SLICE_S)
        seen = [0] * KINDS
        for number, counts in self._slices:
            if number >= oldest:
                for what, times in enumerate(counts):
                    seen[what] += times
        seconds = now - max(self._began_s, oldest * SLICE_S)
        judged = seen[Count.KEPT] + seen[Count.BROKEN]
        over = judged + seen[Count.FAILED]
        efficiency = _ratio(seen[Count.KEPT], over)
        let_in = seen[Count.ADMITTED] + seen[Count.DEMOTED]
        return Standing(
            compliance_ratio=_ratio(seen[Count.KEPT], judged),
            efficiency_ratio=efficiency,
            admission_ratio=_ratio(let_in, let_in + seen[Count.REFUSED]),
            goodput_per_s=seen[Count.KEPT] / seconds if seconds >= SLICE_S else None,
            alarm=efficiency is not None and over >= ALARM_AFTER and efficiency < ALARM_BELOW,
        )

    # -- predictions ----------------------------------------------------------------------

    def predicted(self, expected_s: float, within_s: tuple[float, ...], true_s: float) -> None:
        """A prediction is compared with what came; `within_s` are the predicted `QUANTILES`. All
        above 0."""
        within = tuple([true_s <= seconds for seconds in within_s])
        self._predictions.append((expected_s, true_s, within))

    def accuracy(self, most: int = MOST_PREDICTIONS) -> Accuracy | None:
        """How good the last predictions have been, at most so many; None before there were any."""
        seen = list(islice(reversed(self._predictions), most))
        if not seen:
            return None
        errors = sorted(abs(expected_s - true_s) / true_s for expected_s, true_s, _ in seen)
        true_s = sum(true_s for _, true_s, _ in seen)
        return Accuracy(
            predictions=len(seen),
            median_error_ratio=errors[len(errors) // 2],
            p90_error_ratio=errors[int(0.9 * len(errors))],
            bias_ratio=sum(expected_s for expected_s, _, _ in seen) / true_s - 1.0,
            covered=tuple(
                sum(within[at] for _, _, within in seen) / len(seen) for at in range(len(QUANTILES))
            ),
        )


class Refusals:
    """Tells refusals that were premature: the tenant was within its share, and the pool stayed
    below its limit for the whole time that the request was predicted to run.

    The load of a pool reaches its limit only when something is let in or more is told of it, so
    that the moments at which `at_limit` is called are all that matters: one of them decides all
    refusals that wait. Each costs the logarithm of those that wait, once. `ends` is when the
    predicted lives end of those that would be premature so far, a heap.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self.ends: list[float] = []

    def __len__(self) -> int:
        return len(self.ends)

    def refused(self, now: float, life_s: float, within_share: bool, at_limit: bool) -> None:
        """A request was refused that would have run for `life_s`."""
        if at_limit:
            self.at_limit(now)
        if at_limit or not within_share:
            self._measures.count(Count.REFUSAL_JUDGED, now)
        elif len(self.ends) < MOST_REFUSALS:
            heappush(self.ends, now + life_s)
        else:
            self._measures.count(Count.REFUSAL_SKIPPED, now)

    def at_limit(self, now: float) -> None:
        """The pool is as full as it may get."""
        if self.ends:
            self.judge(now)
            self._measures.count(Count.REFUSAL_JUDGED, now, len(self.ends))
            self.ends.clear()

    def judge(self, now: float) -> None:
        """Judge the refusals whose predicted life is over at `now`."""
        ends = self.ends
        while ends and ends[0] <= now:
            heappop(ends)
            self._measures.count(Count.REFUSAL_JUDGED, now)
            self._measures.count(Count.REFUSAL_PREMATURE, now)


def is_tried(ratio: float, rng: Random) -> bool:
    """Whether a refusal is let in after all, to learn what would become of it.

    It shows whether refusals are needed where nothing else can: the part of those tried that keep
    their promise is the part that need not be refused, one at a time. There is no right value: some
    will always be kept, as chance has it. It costs what the refusal is there to save: the request
    may be late, and make others late that were promised to be in time. So it is off (0) unless
    asked for, and a sliver then: 0.01 is one refusal in a hundred.
    """
    return ratio > 0.0 and rng.random() < ratio


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
