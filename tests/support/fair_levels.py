"""What each flow is to get, found the slowest way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Wish:
    """One flow: slots for each unit of the level, slots wanted, slots held."""

    slope: float
    wanted: float
    held: int = 0

    def got_at(self, level: float) -> float:
        """Never more than it wants, nor less than one slot if it wants that much."""
        return min(self.wanted, max(1.0, self.slope * level))


def used_at(level: float, wishes: Sequence[Wish]) -> float:
    """Slots that all get together."""
    return sum(wish.got_at(level) for wish in wishes)


def slow_level(capacity: float, wishes: Sequence[Wish]) -> float:
    """Bisection: the level at which the flows use up `capacity`; infinite if they cannot, 0 if the
    single slots are too many already."""
    if sum(wish.wanted for wish in wishes) <= capacity:
        return inf
    if used_at(0.0, wishes) >= capacity:
        return 0.0
    low, high = 0.0, 1.0
    while used_at(high, wishes) < capacity:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if used_at(middle, wishes) < capacity else (low, middle)
    return high
