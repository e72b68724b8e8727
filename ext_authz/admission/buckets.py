"""Token buckets on monotonic time: the explicit rates of a tenant.

PURE. Taking never goes below zero, nothing goes above the burst, and an out-of-order `now` creates
nothing. Looking and taking are apart, so that several limits can be charged all or none. What work
turns out to be settles what was taken for it: less comes back, more is owed, up to a whole burst.
"""

from __future__ import annotations


class TokenBucket:
    """`rate_per_s` units come back each second, up to `burst` units."""

    __slots__ = ("_level", "_updated_s", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now: float) -> None:
        """A full bucket."""
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._level = burst
        self._updated_s = now

    def level(self, now: float) -> float:
        """Units that may be taken at `now`."""
        return max(0.0, self._signed(now))

    def _signed(self, now: float) -> float:
        """The same, below zero while something is owed."""
        elapsed_s = now - self._updated_s
        if elapsed_s > 0.0:
            level = self._level + elapsed_s * self.rate_per_s
            self._level = level if level < self.burst else self.burst
            self._updated_s = now
        return self._level

    def charge_for(self, cost: float) -> float:
        """What a piece of work of `cost` is charged: never more than the burst.

        Work larger than the whole bucket would otherwise be refused for ever; it waits for a
        full bucket and empties it.
        """
        return min(cost, self.burst)

    def wait_s(self, cost: float, now: float) -> float:
        """Seconds until `cost` can be charged; 0 when it can be now."""
        # Written out: every request asks each of its limits, at one `now`.
        level = self._level if now == self._updated_s else self._signed(now)
        missing = (cost if cost < self.burst else self.burst) - level
        return missing / self.rate_per_s if missing > 0.0 else 0.0

    def take(self, cost: float, now: float) -> None:
        """Charge `cost`, for which `wait_s` was 0 at this `now`."""
        level = self._level if now == self._updated_s else self._signed(now)
        level -= cost if cost < self.burst else self.burst
        self._level = level if level > 0.0 else 0.0

    def settle(self, taken: float, counted: float, now: float) -> None:
        """Work for which `taken` was charged turned out to be `counted`."""
        level = self._signed(now) + self.charge_for(taken) - self.charge_for(counted)
        self._level = min(max(level, -self.burst), self.burst)

    def reconfigure(self, rate_per_s: float, burst: float, now: float) -> None:
        """New numbers, same level: a reload neither refills nor drains."""
        level = self._signed(now)
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._level = max(min(level, burst), -burst)
