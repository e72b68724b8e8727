"""When each refused request should come back: a refusal is an appointment.

PURE. What a tenant was refused for want of one thing (its share of a pool, one of its limits)
stands in one line. A place in the line is counted in work, and the work ahead of it is served at
the pace that is left beside the tenant's fresh work. So successive refusals get successive times,
those who obey return as a level stream instead of a wall, and what frees sooner than it looked
brings all places nearer.

The line is shared by the tenant's keys in turn: what a key is told depends on how many others
stand there, and not on how often they knock. The places of a key stand one behind the other, as
many clients may use it. One that says itself that it has asked before, and is early, keeps a
place that its key has and gets none in addition.

d = clamp(wait + time of the place + jitter, 0, cap). The jitter is drawn over the time that one
piece of work takes; with a line that reaches the cap, over all of it.
"""

from __future__ import annotations

from math import exp, inf, sqrt
from random import Random

from cachetools import LRUCache

from ext_authz.admission.view import Caller
from ext_authz.model import RetryHint, value

# The part of what a tenant is served that is left, at least, for those who come back: when fresh
# work takes all there is, a sixth of them (0.2 / 1.2) is refused once more.
LEAST_SPARE_RATIO = 0.2
# And no more than this is told: some requests take longer than the mean, and who comes then would
# be refused once more.
MOST_SPARE_RATIO = 0.95
# Over how long fresh work is averaged; it is looked at once a second. If one of the last two looks
# saw less, that counts: a burst is over at once.
FRESH_MEMORY_S = 10.0
# Bounds of one piece of work, so that whatever is told stays finite.
LEAST_WORK, MOST_WORK = 1e-9, 1e12
# So many seconds are looked through for one that is not full.
MOST_SECONDS = 64
# Lines that are remembered, and keys in each: the least recently refused goes first.
MOST_LINES, MOST_KEYS = 4096, 64


@value
class Prospect:
    """What a refused request waits for.

    `scope` names it among those of its tenant. Alone the request could be served in `wait_s`. It
    is `work` large, and `per_s` as much is served for the tenant each second. Where fresh work
    matters, `at_once` requests of the tenant are served at the same time, and `served` were let
    in since `since_s` (monotonic).
    """

    scope: str
    wait_s: float
    per_s: float
    work: float = 1.0
    at_once: float = 0.0
    served: float = 0.0
    since_s: float = inf


class Appointments:
    """The lines of all tenants. What is told is random by `rng`, and never over the cap."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._lines: LRUCache[tuple[str, str], _Line] = LRUCache(MOST_LINES)

    def book(
        self, tenant: str, caller: Caller, prospect: Prospect, cap_s: float, now: float
    ) -> RetryHint:
        """When a request that was refused at `now` should come back, at most `cap_s` later.

        A wait that is no number, or has no end, is the cap.
        """
        wait_s = _within(prospect.wait_s, cap_s)
        work = max(_within(prospect.work, MOST_WORK), LEAST_WORK)
        # Slower than this nothing would be served within the cap.
        slowest = work / cap_s
        per_s = min(prospect.per_s, MOST_WORK) if prospect.per_s > slowest else slowest
        line = self._lines.get((tenant, prospect.scope))
        if line is None:
            line = self._lines[tenant, prospect.scope] = _Line(prospect, now)
        line.advance(prospect, per_s, now)
        chance = self._rng.random()
        kept = line.kept(caller.key, work, chance) if caller.returning else None
        ahead = line.next(caller.key, work, (cap_s - wait_s) * line.per_s) if kept is None else kept
        if ahead is None:
            at_s, jitter_s = wait_s, chance * (cap_s - wait_s)
        else:
            at_s = min(wait_s + ahead / line.per_s, cap_s)
            if kept is None:
                at_s = line.room_s(now, at_s, cap_s)
            jitter_s = chance * min(work / line.per_s, cap_s - at_s)
        if kept is None:
            line.told(now + at_s + jitter_s, work)
        return RetryHint(at_s + jitter_s, jitter_s)


class _Line:
    """Refused work of one tenant that waits for one thing.

    `head` is the work that the line has been served since it began, so that a place p is reached
    in (p - head) / per_s.
    """

    __slots__ = (
        "_at_s",
        "_due",
        "_fresh_per_s",
        "_keys",
        "_looks_per_s",
        "_mark",
        "_refused",
        "_tail",
        "head",
        "per_s",
    )

    def __init__(self, prospect: Prospect, now: float) -> None:
        self.head = 0.0
        self.per_s = 0.0
        # Behind the first places of all keys.
        self._tail = 0.0
        self._at_s = now
        # By key, its first and its last place.
        self._keys: LRUCache[bytes, tuple[float, float]] = LRUCache(MOST_KEYS)
        lived_s = now - prospect.since_s
        # Fresh work: on average, and at the last two looks.
        self._fresh_per_s = prospect.served / lived_s if lived_s >= 1.0 else 0.0
        self._looks_per_s = (self._fresh_per_s, self._fresh_per_s)
        # What was told to come back, by the second; since the last look, what was refused; of that
        # look, the second and what was served by then.
        self._due: dict[int, float] = {}
        self._refused = 0.0
        self._mark = (int(now), prospect.served)

    def advance(self, prospect: Prospect, served_per_s: float, now: float) -> None:
        """Time has passed, and `served_per_s` is the tenant's from now on."""
        seconds = now - self._at_s
        if seconds > 0.0:
            self.head += seconds * self.per_s
            self._at_s = now
        self.per_s = served_per_s
        if int(now) > self._mark[0]:
            self._look_at_fresh(prospect.served, int(now))
        if prospect.at_once > 0.0:
            self.per_s *= self._spare_ratio(served_per_s, prospect.at_once)

    def next(self, key: bytes, work: float, most: float) -> float | None:
        """The work before a new place of `key`; None, and no place, if it would be more than
        `most`."""
        self._refused += work
        first, last = self._keys.get(key, (0.0, 0.0))
        stands = last > self.head
        last = (last if stands else max(self._tail, self.head)) + work * self._turns(stands)
        if last - self.head > most + work:
            return None
        if not stands:
            self._tail = first = last
        self._keys[key] = (first, last)
        return max(0.0, last - work - self.head)

    def kept(self, key: bytes, work: float, chance: float) -> float | None:
        """The work before a place that `key` has already, by `chance` (0..1) one of its places;
        None if it has none."""
        first, last = self._keys.get(key, (0.0, 0.0))
        if last <= self.head:
            return None
        self._refused += work
        nearest = max(first, min(self.head + work, last))
        return max(0.0, nearest + chance * (last - nearest) - work - self.head)

    def room_s(self, now: float, wait_s: float, cap_s: float) -> float:
        """The first time from `wait_s` on for which no more has been told than is served. When the
        pace has changed, places that were told before are elsewhere than it looks; with several
        keys they keep their turns all the same."""
        if len(self._keys) > 1:
            return wait_s
        first = int(now + wait_s)
        last = min(int(now + cap_s), first + MOST_SECONDS)
        second = first
        while second < last and self._due.get(second, 0.0) >= self.per_s:
            second += 1
        return wait_s if second == first else min(second - now, cap_s)

    def told(self, at_s: float, work: float) -> None:
        """Work was told to come back at `at_s`."""
        self._due[int(at_s)] = self._due.get(int(at_s), 0.0) + work

    def _turns(self, stands: bool) -> int:
        """After how many places that of a key comes: behind its own as many keys as there are."""
        if not stands or len(self._keys) == 1:
            return 1
        return sum(last > self.head for _, last in self._keys.values())

    def _spare_ratio(self, served_per_s: float, at_once: float) -> float:
        """The part that fresh work leaves. So many as are served at once vary by their square root
        when they come independently."""
        busy = min(self._fresh_per_s, *self._looks_per_s) / served_per_s * at_once
        spare_ratio = 1.0 - (busy + sqrt(busy)) / at_once
        return min(max(LEAST_SPARE_RATIO, spare_ratio), MOST_SPARE_RATIO)

    def _look_at_fresh(self, served: float, second: int) -> None:
        """What came, let in or refused, and was not told to come then is fresh."""
        last, served_by_then = self._mark
        seconds = second - last
        told = sum(self._due.pop(at) for at in list(self._due) if at < second)
        # Who counts what is served may have begun anew.
        let_in = served - served_by_then if served >= served_by_then else served
        seen_per_s = max(0.0, let_in + self._refused - told) / seconds
        keep = exp(-seconds / FRESH_MEMORY_S)
        self._fresh_per_s = seen_per_s + keep * (self._fresh_per_s - seen_per_s)
        self._looks_per_s = (self._looks_per_s[1], seen_per_s)
        self._mark = (second, served)
        self._refused = 0.0


def _within(number: float, most: float) -> float:
    """`number` between 0 and `most`; written so that a NaN, which compares as false, is `most`."""
    return max(0.0, number) if number < most else most
