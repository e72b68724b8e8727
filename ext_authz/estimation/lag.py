"""How late the access log tells of ends: what is still open may have ended already.

PURE. Where Envoy flushes its log every 20 ms that hardly matters; where a mesh fixes the flush at
a second, each request looks to be in flight for half a second longer than it is.
"""

from __future__ import annotations

from bisect import bisect_left

# Upper bounds of the classes, each a quarter more than the one before: from a millisecond, below
# which nothing is decided, to more than a minute, beyond which every lease is about to end.
FIRST_S, STEP, CLASSES = 0.001, 1.25, 52
BOUNDS_S = tuple(FIRST_S * STEP**number for number in range(CLASSES))
# An observation counts half as much after as many further ones as these.
HALF_LIFE = 200
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_RESCALE_AT = 1e12


class ReportLag:
    """A histogram of lags that forgets, by number rather than by time: while nothing is told,
    nothing is learned that would make the old wrong. Fixed size."""

    def __init__(self) -> None:
        self._weights = [0.0] * (CLASSES + 1)
        self._total = 0.0
        self._sum_s = 0.0
        # Each newcomer weighs a little more than the last one, instead of all others less.
        self._next = 1.0

    def add(self, lag_s: float) -> None:
        """An end was told `lag_s` after it happened."""
        lag_s = max(0.0, lag_s)
        self._weights[bisect_left(BOUNDS_S, lag_s)] += self._next
        self._total += self._next
        self._sum_s += self._next * lag_s
        self._next *= _GROWTH
        if self._next > _RESCALE_AT:
            self._weights = [weight / _RESCALE_AT for weight in self._weights]
            self._total /= _RESCALE_AT
            self._sum_s /= _RESCALE_AT
            self._next /= _RESCALE_AT

    @property
    def mean_s(self) -> float | None:
        """The mean, None before anything was told."""
        return self._sum_s / self._total if self._total else None

    def quantile_s(self, part: float) -> float | None:
        """The lag that `part` (0 to 1) of the ends do not exceed, to within `STEP`; None before
        anything was told."""
        if not self._total:
            return None
        wanted, seen = part * self._total, 0.0
        for number, weight in enumerate(self._weights):
            if weight and seen + weight >= wanted:
                low_s, high_s = _edges_s(number)
                return low_s + (high_s - low_s) * max(0.0, wanted - seen) / weight
            seen += weight
        return BOUNDS_S[-1]


def _edges_s(number: int) -> tuple[float, float]:
    """Where a class begins and ends; the last one has no end and counts as a point."""
    low_s = BOUNDS_S[number - 1] if number else 0.0
    return low_s, BOUNDS_S[number] if number < CLASSES else low_s
