"""The safety margin that is taken off every promise: tuned by how many promises were broken.

PURE. The rule is the field's: a tenth more when over 1 % were broken, a twentieth less when under
0.1 %, between 10 and 80 ms where 150 ms are promised, and in that proportion for other promises.
What counts is what the rates are, not how a handful fell: the margin moves only when the count so
far says with confidence that the true rate lies beyond, by the Poisson law of rare events. In
between, and while nothing is judged, it stays where it is.
"""

from __future__ import annotations

from math import exp

RAISE_OVER, LOWER_UNDER = 0.01, 0.001
RAISE, LOWER = 1.1, 0.95
# Of the promise: 10 and 80 ms of 150.
LOW_RATIO, HIGH_RATIO = 10.0 / 150.0, 80.0 / 150.0
# How unlikely the count must be if the rate were not beyond: one in a hundred for a raise, of
# which many are asked about in a window; one in twenty for the one question at its end.
DOUBT_RAISE, DOUBT_LOWER = 0.01, 0.05
# Requests of a window: with none broken, the fewest that say "under 0.1 %" at that doubt (ln 20 /
# 0.001).
WINDOW = 3000


class MarginTuner:
    """The margin of one pool, in seconds. `promise_s` is the usual promise there, None if there is
    none, and then the margin stays as configured."""

    __slots__ = ("_broken", "_high_s", "_judged", "_low_s", "value_s")

    def __init__(self, configured_s: float, promise_s: float | None) -> None:
        self.value_s = configured_s
        self._judged = 0
        self._broken = 0
        if promise_s is None:
            self._low_s = self._high_s = configured_s
        else:
            # What is configured is allowed whatever the proportion says.
            self._low_s = min(configured_s, LOW_RATIO * promise_s)
            self._high_s = max(configured_s, HIGH_RATIO * promise_s)

    def judged(self, kept: bool) -> None:
        """A request that was let in because its promise was predicted to hold kept it, or not."""
        self._judged += 1
        if not kept:
            self._broken += 1
            if at_least(self._broken, RAISE_OVER * self._judged) < DOUBT_RAISE:
                self._move(RAISE)
                return
        if self._judged >= WINDOW:
            if 1.0 - at_least(self._broken + 1, LOWER_UNDER * self._judged) < DOUBT_LOWER:
                self._move(LOWER)
            else:
                self._judged = self._broken = 0

    def _move(self, factor: float) -> None:
        self.value_s = min(max(self.value_s * factor, self._low_s), self._high_s)
        self._judged = self._broken = 0


def at_least(count: int, mean: float) -> float:
    """The chance of `count` events or more where `mean` are expected (Poisson)."""
    if mean <= 0.0:
        return 1.0 if count <= 0 else 0.0
    if mean > 600.0:
        # exp would underflow; so many are never asked about in a window.
        return 1.0 if count <= mean else 0.0
    term = below = exp(-mean)
    if count <= 0:
        return 1.0
    for number in range(1, count):
        term *= mean / number
        below += term
    return max(0.0, 1.0 - below)
