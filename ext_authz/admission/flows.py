"""One tenant's traffic of one request type in one pool: how much of the pool it wants.

PURE. What a flow wants is its mean and room to grow towards its recent peak, and more while it is
refused. Its work for each second that it holds a slot says how many slots its share is: who sends
heavier requests gets as much work done for its weight, in fewer slots.
"""

from __future__ import annotations

from math import exp, inf, sqrt

from ext_authz.admission.curve import Stake
from ext_authz.settings import PriorityClass

# How long a silent flow still counts among those that share, and still has room kept for it.
DIVISOR_S = 10.0
KEEP_ROOM_S = 2.0
# How long a refusal says that a flow wants more than it has. A backlog is refused all the time; one
# unlucky arrival must not keep a whole share idle for long.
PRESSURE_S = 1.0
# How long means and peaks are remembered.
PEAK_MEMORY_S = 10.0
# Requests over which the work of a second of a slot is a mean, and those that what is not known of
# a flow stands for: what is usual in the pool.
RATE_MEMORY = 128
RATE_PRIOR = 8.0
# Over so many requests what is usual in a pool is a mean, and by how much it must have moved to
# matter.
USUAL_MEMORY = 512
TURN_RATIO = 0.02
# No request is less, nor holds a slot for less: what is divided by must not be nothing.
LEAST_WORK, LEAST_HELD_S = 1.0, 1e-3
# For how long a slot is taken to be held before any was given back.
UNKNOWN_HELD_S = 1.0
# By how much the work of a second may differ from what is usual, and by how much estimates may be
# wrong for all requests of a flow, either way: one broken count must not shut a flow out.
MOST_HEAVY = 64.0
MOST_BIAS = 8.0

FlowKey = tuple[str, str]


class Ratio:
    """`part` for each `whole`, as a mean over the last requests: sums of both, so that each counts
    for its size."""

    __slots__ = ("_keep", "part", "requests", "whole")

    def __init__(self, memory: int) -> None:
        self._keep = 1.0 - 1.0 / memory
        self.part = 0.0
        self.whole = 0.0
        self.requests = 0.0

    def add(self, part: float, whole: float) -> None:
        """One more request."""
        keep = self._keep
        self.part = keep * self.part + part
        self.whole = keep * self.whole + whole
        self.requests = keep * self.requests + 1.0

    def value(self, usual: float, usual_whole: float) -> float:
        """The mean; until enough requests are known, what is `usual` stands for those missing."""
        missing = RATE_PRIOR - self.requests
        if missing <= 0.0:
            return self.part / self.whole if self.whole > 0.0 else usual
        whole = self.whole + missing * usual_whole
        return (self.part + missing * usual_whole * usual) / whole if whole > 0.0 else usual


class Flow:
    """Owned by its `Shares`.

    `used` slots it holds, `mean` of them over the last seconds; `wanted` it would use if it could
    have them. `missed` requests were refused in the last second. `owed_s` are the slot-seconds by
    which it got less than its share while it pressed (below 0: more). `slope` is its weight in
    slots: by how many its share grows with the level. `let_in` requests have been admitted since
    `since_s`.
    """

    __slots__ = (
        "active_until_s",
        "armed_s",
        "at_s",
        "away",
        "booked",
        "booked_grow",
        "busy_s",
        "changed",
        "due",
        "gone",
        "growing",
        "key",
        "let_in",
        "mean",
        "missed",
        "missed_last",
        "owed_s",
        "peak",
        "priority",
        "rate",
        "refused_s",
        "room",
        "room_level",
        "seen_s",
        "short_s",
        "silent",
        "since_s",
        "slope",
        "truth",
        "used",
        "valued",
        "wanted",
        "weight",
    )

    def __init__(self, key: FlowKey, weight: float, priority: PriorityClass, now: float) -> None:
        self.key = key
        self.weight = weight
        self.priority = priority
        self.slope = weight
        self.since_s = now
        self.let_in = 0
        self.used = 0
        self.mean = 0.0
        self.peak = 0.0
        self.wanted = 0.0
        self.missed = 0.0
        self.missed_last = 0.0
        # Slots it will want when it is back, while it is silent.
        self.away = 0.0
        self.owed_s = 0.0
        # Slots kept for it beyond its share, for what it is owed.
        self.due = 0.0
        # Where the clock of what is in use stood when it was last looked at, see `Debts`.
        self.busy_s = 0.0
        # Estimated work by the seconds a slot was held for it; work as counted by work estimated.
        self.rate = Ratio(RATE_MEMORY)
        self.truth = Ratio(RATE_MEMORY)
        # Its slope holds up to this `Usual.turn`; -1: it is to be found anew.
        self.valued = -1.0
        self.seen_s = now
        self.at_s = now
        self.silent = False
        self.refused_s = -inf
        # When it was last refused for want of a slot, or for its share; set by who refuses it.
        self.short_s = -inf
        self.active_until_s = 0.0
        # When `Shares` is to look at it next.
        self.armed_s = inf
        # What `Levels` has in its books, and whether that is old.
        self.booked: tuple[PriorityClass, Stake] | None = None
        self.growing = 0.0
        self.booked_grow = (0.0, 0.0)
        self.changed = False
        self.gone = False
        # What is kept for it, and the level of its class for which that was found.
        self.room = 0.0
        self.room_level = inf

    def bias(self) -> float:
        """By what its requests turn out to be more work than was expected of them."""
        truth = self.truth
        if not truth.requests:
            return 1.0
        bias = truth.value(1.0, truth.whole / truth.requests)
        return min(max(bias, 1.0 / MOST_BIAS), MOST_BIAS)

    def counted(self, work: float, expected: float) -> None:
        """Of a request of which so much was expected it is known now what it came to."""
        if expected <= 0.0:
            return
        if not self.truth.requests:
            # What was expected before anything was counted is not corrected by what is from now on.
            self.rate = Ratio(RATE_MEMORY)
        self.truth.add(work, expected)
        self.valued = -1.0

    def is_pressing(self, now: float) -> bool:
        """Whether it was refused just now."""
        return now - self.refused_s < PRESSURE_S

    def advance(self, now: float) -> float:
        """Bring means and peaks up to `now`; the seconds since the last time. `used` must not have
        changed since, but be what it was all that time."""
        seconds = now - self.at_s
        if seconds <= 0.0:
            return 0.0
        self.at_s = now
        used = self.used
        keep = exp(-seconds / PEAK_MEMORY_S)
        self.mean = used + keep * (self.mean - used)
        peak = self.peak * keep
        self.peak = peak if peak > used else float(used)
        if self.missed:
            self.missed *= exp(-seconds / PRESSURE_S)
        return seconds

    def want(self, pooling: float, now: float) -> None:
        """Say what is wanted. Peaks of many flows do not come at once: `pooling` is the part of
        the sum of their growth that they reach together.

        What it may grow by is above its mean. Independent arrivals vary by the square root of their
        number, so the next peak may be that much above the last, and a burst that outruns what is
        given back that much above what is held. More is not kept: it would stand idle.
        """
        used, mean = float(self.used), self.mean
        self.growing = 0.0
        if self.silent:
            self.wanted = used if used > mean else mean
            return
        if now - self.refused_s < PRESSURE_S:
            # Its next request, and those that were turned away.
            self.wanted = used + 1.0 + self.missed
            return
        peak = self.peak
        spread = sqrt(peak) if peak > 1.0 else 1.0
        after_peak, held = peak + spread, used + 1.0 + 2.0 * spread
        most = after_peak if after_peak < held else held
        wanted = mean
        if most > mean:
            self.growing = growing = most - mean
            wanted += pooling * growing
        # One slot in use more than expected is one that another of many small flows leaves unused.
        self.wanted = wanted if wanted > used or used <= 1.0 else used

    def find_room(self, level: float) -> float:
        """Slots kept for it at this level of its class, beyond those it holds."""
        wanted, used = self.wanted, self.used
        if wanted <= used or level == inf:
            room = wanted - used
        else:
            own = self.slope * level
            own = own if own > 1.0 else 1.0
            own = own if own < wanted else wanted
            room = own - used if own > used else 0.0
        self.room, self.room_level = room, level
        return room


class Usual:
    """What is usual in a pool: work for each second of a slot, and how long requests hold one. At
    each `turn` that has become another."""

    __slots__ = ("_known", "_rate", "_unit", "_usual", "held_s", "turn")

    def __init__(self) -> None:
        self.held_s = 0.0
        self._rate = Ratio(USUAL_MEMORY)
        # Of the level. All flows must be measured by the same one, so it is what was usual first.
        self._unit = 0.0
        self._usual = 0.0
        self.turn = 0
        # What was usual at the last turn.
        self._known = 0.0

    def freed(self, used: float, seconds: float) -> float:
        """Of `used` slots those that are expected to come free within `seconds`."""
        return used * min(1.0, seconds / (self.held_s or UNKNOWN_HELD_S))

    def worked(self, flow: Flow, work: float, held_s: float) -> None:
        """A request of the flow did so much work and held its slot for `held_s`."""
        work = work if work > LEAST_WORK else LEAST_WORK
        held_s = held_s if held_s > LEAST_HELD_S else LEAST_HELD_S
        flow.rate.add(work, held_s)
        flow.valued = -1.0
        rate = self._rate
        rate.add(work, held_s)
        self._unit = self._unit or work / held_s
        self.held_s = rate.whole / rate.requests
        self._usual = usual = rate.part / rate.whole
        if not -TURN_RATIO * usual <= usual - self._known <= TURN_RATIO * usual:
            # What is not known of a flow follows what is usual.
            self._known = usual
            self.turn += 1

    def slope(self, flow: Flow) -> float:
        """The flow's weight in slots: by its work, as far as that is known."""
        # What is not known of it follows what is usual.
        flow.valued = self.turn if flow.rate.requests < RATE_PRIOR else inf
        if not self._unit:
            return flow.weight
        # Comparisons, not min and max: it is asked whenever a flow changes.
        usual = self._usual
        per_s = flow.rate.value(usual, self.held_s)
        if flow.truth.requests:
            per_s *= flow.bias()
        least, most = usual / MOST_HEAVY, usual * MOST_HEAVY
        if per_s < least:
            per_s = least
        elif per_s > most:
            per_s = most
        return flow.weight * self._unit / per_s
