"""How far truth strays from a prediction: quantiles, and the chance to be late.

PURE. The last few hundred log ratios of truth over prediction, kept in order; their distribution
multiplies the prediction. That the near future strays as the recent past did is all that is
assumed. Where it does not (the engine slows down), the quantile asked for is shifted until as many
requests stay within it as were promised: adaptive conformal inference (Gibbs and Candès 2021,
"Adaptive Conformal Inference Under Distribution Shift", step gamma).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from math import ceil, exp, isfinite, log

KEPT = 200
GAMMA = 0.03
# How far the quantile may be shifted down and up. Beyond the largest ratio seen, each hundredth
# adds that many hundredths to the logarithm.
LEAST_SHIFT, MOST_SHIFT, BEYOND = -0.05, 0.3, 8.0
# A run of misses makes every request this much likelier to be late, and no more: it must not lock
# out the requests that would end it.
MOST_DOUBT = 0.05
# Calibrated for this quantile; others are shifted by as much.
TARGET = 0.95
# Before anything is known: log-normal, so that the p95 is 2.5 times the median.
PRIOR = tuple(0.6 * z for z in (-1.6, -1.0, -0.5, 0.0, 0.5, 1.0, 1.6))
# Lessons before the spread is known.
ENOUGH = 20
# After so many more the largest of them are looked at again.
SEEN_AGAIN = 8
# No ratio counts for more than this (natural logarithm).
MOST = 5.0


class Residuals:
    """Log ratios of one kind of request. `known`: the spread is more than a guess."""

    __slots__ = ("_due", "_ordered", "_p99", "_recent", "_shift", "known", "lessons")

    def __init__(self) -> None:
        self.lessons = 0
        self.known = False
        self._recent: deque[float] = deque(PRIOR)
        self._ordered: list[float] = list(PRIOR)
        self._shift = 0.0
        # Asked for at every request, and worked out once for all between two outcomes.
        self._due: float | None = None
        self._p99: float | None = None

    @property
    def due(self) -> float:
        """`factor` of `TARGET`."""
        if self._due is None:
            self._due = exp(self._stray(TARGET))
        return self._due

    @property
    def p99(self) -> float:
        """`spread` of 0.99, of a few lessons ago: leases alone are as long as that."""
        if self._p99 is None:
            self._p99 = self.spread(0.99)
        return self._p99

    def learn(self, seconds: float, predicted_s: float, counted: bool = False) -> None:
        """A request that was predicted to take `predicted_s` took `seconds`; both above 0.

        `counted`: `missed` has been called for it already.
        """
        stray = max(-MOST, min(MOST, log(seconds / predicted_s)))
        if not counted:
            self._calibrate(stray > self._stray(TARGET))
        self.lessons += 1
        self.known = self.lessons >= ENOUGH
        self._recent.append(stray)
        insort(self._ordered, stray)
        self._due = None
        if self.lessons % SEEN_AGAIN == 0 or self.lessons < KEPT:
            self._p99 = None
        # The guess goes when there is something better.
        while len(self._recent) > KEPT or (self.known and len(self._recent) > self.lessons):
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def passed_over(self, seconds: float, predicted_s: float) -> None:
        """As `learn`, of a request that is left out of the sample that is learned from: whether
        it stayed within `TARGET` counts all the same, for `missed` is told of every one."""
        self._calibrate(log(seconds / predicted_s) > self._stray(TARGET))

    def missed(self) -> None:
        """A request still runs that should have ended within `TARGET`: known before its end."""
        self._calibrate(True)

    def unmissed(self) -> None:
        """One of those that `missed` told of was never heard of again: it told nothing."""
        self._calibrate_by(-GAMMA * TARGET)

    def spread(self, quantile: float) -> float:
        """As `factor`, by the ratios alone."""
        ordered = self._ordered
        at = ceil(quantile * (len(ordered) + 1)) - 1
        return exp(ordered[min(max(at, 0), len(ordered) - 1)])

    def factor(self, quantile: float) -> float:
        """Times the prediction: the time that a `quantile` (0..1) of requests does not exceed."""
        return exp(self._stray(quantile))

    def _stray(self, quantile: float) -> float:
        """The logarithm of `factor`."""
        part = quantile + self._shift
        ordered = self._ordered
        if part > 1.0:
            return ordered[-1] + BEYOND * (part - 1.0)
        # Comparisons, not min and max: it is asked after every outcome.
        last = len(ordered) - 1
        at = ceil(part * (last + 2)) - 1
        return ordered[0 if at < 0 else at if at < last else last]

    def late(self, seconds: float, predicted_s: float) -> float:
        """The chance (0..1) that a request predicted at `predicted_s` takes longer than
        `seconds`, with the doubt that recent misses bring. While next to nothing is known of the
        spread, all or nothing."""
        if seconds <= 0.0:
            return 1.0
        if not self.known:
            return float(predicted_s > seconds)
        doubt, ordered = self._shift, self._ordered
        beyond = 1.0 - bisect_right(ordered, log(seconds / predicted_s)) / (len(ordered) + 1)
        chance = beyond + (doubt if doubt < MOST_DOUBT else MOST_DOUBT)
        if chance < 0.0:
            return 0.0
        return chance if chance < 1.0 else 1.0

    @property
    def doubt(self) -> float:
        """The least that `late` says of anything, for the misses of late."""
        return max(0.0, min(self._shift, MOST_DOUBT)) if self.known else 0.0

    @property
    def least(self) -> float:
        """What `late` says of something for which there is more time than any took."""
        if not self.known:
            return 0.0
        many, doubt = len(self._ordered), self._shift
        chance = 1.0 - many / (many + 1) + (doubt if doubt < MOST_DOUBT else MOST_DOUBT)
        return chance if chance > 0.0 else 0.0

    def beyond(self, seconds: float, predicted_s: float) -> float:
        """The part of recent requests that took longer than `seconds` where so much was predicted
        as `predicted_s` is here."""
        if seconds <= 0.0:
            return 1.0
        ordered = self._ordered
        return 1.0 - bisect_right(ordered, log(seconds / predicted_s)) / (len(ordered) + 1)

    def export(self) -> list[float]:
        """The ratios, oldest first."""
        return list(self._recent)

    def restore(self, saved: Iterable[float]) -> None:
        """Take up what `export` gave. Raises ValueError or TypeError for anything else, and leaves
        all as it was."""
        kept = [float(stray) for stray in saved][-KEPT:]
        if not kept or not all(isfinite(stray) and abs(stray) <= MOST for stray in kept):
            raise ValueError("not log ratios")
        self._recent = deque(kept)
        self._ordered = sorted(kept)
        self._due = self._p99 = None
        # The guess is written down while it is in use; it is no lesson.
        guessed = tuple(kept[: len(PRIOR)]) == PRIOR
        self.lessons = len(kept) - (len(PRIOR) if guessed else 0)
        self.known = self.lessons >= ENOUGH

    def _calibrate(self, missed: bool) -> None:
        self._calibrate_by(GAMMA * (missed - (1.0 - TARGET)))

    def _calibrate_by(self, step: float) -> None:
        shift = self._shift + step
        self._shift = max(LEAST_SHIFT, min(MOST_SHIFT, shift))
        self._due = None
