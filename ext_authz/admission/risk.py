"""How much risk to its promises a pool has taken on lately.

PURE. That a part of the promises may be broken is said of all of them together: one request that
is more at risk than that, among many that are less, is let in. What is predicted is held against
what became of it: where a tenth of the predicted promises were broken, a predicted risk is worth a
tenth.
"""

from __future__ import annotations

# The mean is over about so many requests; the part that one risky request takes of it is 1 / OVER.
OVER = 100
# Promises over which predicted and true breaches are compared, and how far apart they may be held.
COMPARED = 400
LEAST_WORTH, MOST_WORTH = 0.1, 4.0
# What will more likely be late than not makes others late too, whatever it would be alone: while a
# server is slower than the promise, all that came would be let in and pile up.
MOST_RISK = 0.5


class RiskBudget:
    """The mean predicted risk of what was let in, the latest counting most, and what a predicted
    risk was worth."""

    __slots__ = ("_broken", "_predicted", "mean", "worth")

    def __init__(self) -> None:
        self.mean = 0.0
        # True breaches for each that was predicted; one more of both stands for what is not known.
        self.worth = 1.0
        self._predicted = 0.0
        self._broken = 0.0

    def allows(self, risk: float, target_ratio: float) -> bool:
        """Whether the mean stays within `target_ratio` with one more of `risk` (0..1)."""
        mean = self.mean
        return self.worth * (mean + (risk - mean) / OVER) <= target_ratio

    def is_within(self, risk: float, target_ratio: float) -> bool:
        """Whether promises of that `risk` alone would be broken no more often than that: whatever
        was taken on before, such a request makes it less."""
        return self.worth * risk <= target_ratio

    def took(self, risk: float) -> None:
        """A request of `risk` was let in."""
        self.mean += (risk - self.mean) / OVER

    def judged(self, risk: float, broken: bool) -> None:
        """A promise that was predicted to be broken with the chance `risk` was kept, or not."""
        keep = 1.0 - 1.0 / COMPARED
        self._predicted = keep * self._predicted + risk
        self._broken = keep * self._broken + broken
        worth = max(LEAST_WORTH, (self._broken + 1.0) / (self._predicted + 1.0))
        self.worth = min(worth, MOST_WORTH)


def is_load_to_blame(risk: float, alone: float) -> bool:
    """Whether load makes a promise too unlikely to hold that might be broken `alone` as well, for
    the size of the request: it may double that risk, but never beyond `MOST_RISK`."""
    return risk > MOST_RISK or risk > 2.0 * alone
