"""How fast our own work in the KV cache of one endpoint grows.

PURE. What is let in fills its part of the cache only as it is put out, so that a climb shows on the
engine's gauge when it is too late. Time is in seconds where the rule it comes from has minutes.
"""

from __future__ import annotations

from collections import deque
from math import inf

from ext_authz.overload import MemoryRules

# It climbs while its mean over so long exceeds that over as long before by more than this part:
# twice as long after a climb has ended, none is seen any more.
CLIMB_S, CLIMB_RATIO = 2.0, 0.02


class Climb:
    """How fast our own work in the cache of one endpoint grows. Ratios are parts of the cache."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def saw(self, ratio: float, rules: MemoryRules, now: float) -> float:
        """It is `ratio` now. By how much the guard is to be tightened."""
        seen = self._seen
        seen.append((now, ratio))
        while seen[0][0] < now - rules.usual_s:
            seen.popleft()
        if now - seen[0][0] < rules.least_history_s:
            return 0.0
        recent, before = self._mean(CLIMB_S, 0.0, now), self._mean(2.0 * CLIMB_S, CLIMB_S, now)
        if recent is None or before is None or recent <= (1.0 + CLIMB_RATIO) * before:
            return 0.0
        lately, usual = self._mean(rules.recent_s, 0.0, now), self._mean(inf, 0.0, now)
        if lately is None or usual is None:
            return 0.0
        rise = (lately - usual) / max(usual, rules.least_usual_ratio)
        return rise if rise > rules.rise_ratio else 0.0

    def _mean(self, from_s: float, to_s: float, now: float) -> float | None:
        """Over what was seen so long ago."""
        ratios = [ratio for at_s, ratio in self._seen if now - from_s < at_s <= now - to_s]
        return sum(ratios) / len(ratios) if ratios else None
