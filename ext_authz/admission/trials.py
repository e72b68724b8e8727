"""Requests let in though they are predicted to be late: only they show that a prediction is wrong.

PURE. What is refused teaches nothing, so that a few bad lessons at a load that is never reached
again would keep requests out for ever. Of the requests that keep their promise so many earn a
trial. A trial that is late doubles the price of the next, one in time halves it: where predictions
are right trials are next to none.
"""

from __future__ import annotations

# Requests in time that a trial costs: at first, at least, at most.
PRICE, LEAST, MOST = 8.0, 2.0, 512.0


class Trials:
    """Of one endpoint."""

    __slots__ = ("_earned", "_price")

    def __init__(self) -> None:
        self._price = PRICE
        self._earned = 0.0

    @property
    def due(self) -> bool:
        """Whether a request is let in that would be refused for its promise."""
        return self._earned >= self._price

    def begun(self) -> None:
        """One is let in."""
        self._earned = 0.0

    def judged(self, kept: bool, trial: bool) -> None:
        """A request is over, in time or not; `trial`: it was one."""
        if trial:
            self._price = max(LEAST, 0.5 * self._price) if kept else min(MOST, 2.0 * self._price)
        self._earned += kept
