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

from math import exp, inf
from random import Random

from cachetools import LRUCache

from ext_authz.admission.view import Caller
from ext_authz.model import RetryHint, value

# The part of what a tenant is served that is left, at least, for those who come back: when fresh
# work takes all there is, a sixth of them (0.2 / 1.2) is refused once more.
LEAST_SPARE_RATIO = 0.2
# Over how long fresh work is averaged, and how often it is looked at.
FRESH_MEMORY_S, FRESH_LOOK_S = 10.0, 0.5
# Bounds of one piece of work, so that whatever is told stays finite.
LEAST_WORK, MOST_WORK = 1e-9, 1e12
# Lines that are remembered, and keys in each: the least recently refused goes first.
MOST_LINES, MOST_KEYS = 4096, 64


@value
class Prospect:
    """What a refused request waits for.

    `scope` names it among those of its tenant. Alone the request could be served in `wait_s`. It
    is `work` large, and `per_s` as much is served for the tenant each second. Where it is known
    what was let in, `served` is all of it since `since_s` (monotonic).
    """

    scope: str
    wait_s: float
    per_s: float
    work: float = 1.0
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
        most = (cap_s - wait_s) * line.per_s
        chance = self._rng.random()
        ahead = line.ahead(caller.key, work, most, chance if caller.returning else None)
        if ahead is None:
            jitter_s = chance * (cap_s - wait_s)
            return RetryHint(wait_s + jitter_s, jitter_s)
        at_s = min(wait_s + ahead / line.per_s, cap_s)
        jitter_s = chance * min(work / line.per_s, cap_s - at_s)
        return RetryHint(at_s + jitter_s, jitter_s)


class _Line:
    """Refused work of one tenant that waits for one thing.

    `head` is the work that the line has been served since it began, so that a place p is reached
    in (p - head) / per_s.
    """

    __slots__ = ("_at_s", "_fresh_per_s", "_keys", "_mark", "_tail", "head", "per_s")

    def __init__(self, prospect: Prospect, now: float) -> None:
        self.head = 0.0
        self.per_s = 0.0
        # Behind the first places of all keys.
        self._tail = 0.0
        self._at_s = now
        # By key, its first and its last place.
        self._keys: LRUCache[bytes, tuple[float, float]] = LRUCache(MOST_KEYS)
        lived_s = now - prospect.since_s
        self._fresh_per_s = prospect.served / lived_s if lived_s > FRESH_LOOK_S else 0.0
        # When fresh work was last looked at, all work served by then, and `head`.
        self._mark = (now, prospect.served, 0.0)

    def advance(self, prospect: Prospect, served_per_s: float, now: float) -> None:
        """Time has passed, and `served_per_s` is the tenant's from now on."""
        seconds = now - self._at_s
        if seconds > 0.0:
            self.head += seconds * self.per_s
            self._at_s = now
        self._look_at_fresh(prospect.served, now)
        self.per_s = max(LEAST_SPARE_RATIO * served_per_s, served_per_s - self._fresh_per_s)

    def ahead(self, key: bytes, work: float, most: float, returning: float | None) -> float | None:
        """The work before a place of `key`; None if it would be more than `most`.

        With a number (0..1) for `returning` it is a place that the key has already, if it has.
        """
        first, last = self._keys.get(key, (0.0, 0.0))
        if last <= self.head:
            first = last = max(self._tail, self.head) + work
            if last - self.head > most + work:
                return None
            self._tail = last
        elif returning is not None:
            nearest = max(first, min(self.head + work, last))
            return max(0.0, nearest + returning * (last - nearest) - work - self.head)
        else:
            last += work * self._standing()
            if last - self.head > most + work:
                return None
        self._keys[key] = (first, last)
        return max(0.0, last - work - self.head)

    def _standing(self) -> int:
        """How many keys have places that are not reached yet."""
        if len(self._keys) == 1:
            return 1
        return sum(last > self.head for _, last in self._keys.values())

    def _look_at_fresh(self, served: float, now: float) -> None:
        """Work that was let in and is more than the places that were reached came fresh."""
        at_s, served_by_then, head = self._mark
        seconds = now - at_s
        if seconds < FRESH_LOOK_S:
            return
        furthest = max((last for _, last in self._keys.values()), default=0.0)
        reached = max(0.0, min(self.head, furthest) - head)
        # Who counts may have begun anew.
        let_in = served - served_by_then if served >= served_by_then else served
        fresh_per_s = max(0.0, let_in - reached) / seconds
        keep = exp(-seconds / FRESH_MEMORY_S)
        self._fresh_per_s = fresh_per_s + keep * (self._fresh_per_s - fresh_per_s)
        self._mark = (now, served, self.head)


def _within(number: float, most: float) -> float:
    """`number` between 0 and `most`; written so that a NaN, which compares as false, is `most`."""
    return max(0.0, number) if number < most else most
