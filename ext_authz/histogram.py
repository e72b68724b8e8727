"""Numbers counted by size, as Prometheus has them.

PURE.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """Counts of numbers up to each of `bounds`, which ascend, and beyond; their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, number: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number

    def buckets(self) -> list[tuple[str, int]]:
        """How many are at most as large as each bound, the last of which is infinite."""
        names = (*map(str, self.bounds), "+Inf")
        return list(zip(names, accumulate(self.counts), strict=True))
