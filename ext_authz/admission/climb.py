"""How fast our own work in the KV cache of one endpoint grows.

PURE. What is let in fills its part of the cache only as it is put out, so that a climb shows on the
engine's gauge when it is too late. Time is in seconds where the rule it comes from has minutes.
"""

from __future__ import annotations

from collections import deque

from ext_authz.overload import MemoryRules

# It climbs while its mean over so long exceeds that over as long before by more than this part:
# twice as long after a climb has ended, none is seen any more.
CLIMB_S, CLIMB_RATIO = 2.0, 0.02


class Climb:
    """How fast our own work in the cache of one endpoint grows. Ratios are parts of the cache."""

    __slots__ = ("_seen", "_sum")

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def saw(self, ratio: float, rules: MemoryRules, now: float) -> float:
        """It is `ratio` now. By how much the guard is to be tightened."""
        seen = self._seen
        seen.append((now, ratio))
        self._sum += ratio
        while seen[0][0] < now - rules.usual_s:
            self._sum -= seen.popleft()[1]
        if now - seen[0][0] < rules.least_history_s:
            return 0.0
        recent, before = self._mean(0.0, CLIMB_S, now), self._mean(CLIMB_S, 2.0 * CLIMB_S, now)
        if recent <= (1.0 + CLIMB_RATIO) * before:
            return 0.0
        usual = max(0.0, self._sum / len(seen))
        rise = (self._mean(0.0, rules.recent_s, now) - usual) / max(usual, rules.least_usual_ratio)
        return rise if rise > rules.rise_ratio else 0.0

    def _mean(self, from_s: float, to_s: float, now: float) -> float:
        """Over what was seen from so long ago to so long ago; only that is looked at."""
        total, count = 0.0, 0
        for at_s, ratio in reversed(self._seen):
            if at_s <= now - to_s:
                break
            if at_s <= now - from_s:
                total += ratio
                count += 1
        return total / count if count else 0.0
