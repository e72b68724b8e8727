"""Requests let in though they are predicted to be late: only they show that a prediction is wrong.

PURE. What is refused teaches nothing, so that a few bad lessons at a load that is never reached
again would keep requests out for ever. Of the requests that keep their promise so many earn a
trial. A trial that is late doubles the price of the next. One in time lowers it by as much as it
speaks against the prediction: what was bound to be late and was not halves it, what is in time four
times of five is no news. So where predictions are right trials become rare, the faster the more
likely they are to be late.
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

    def judged(self, kept: bool, risk: float | None) -> None:
        """A request is over, in time or not; `risk` is the chance to be late (0..1) that was
        predicted of it, if it was on trial."""
        if risk is not None:
            # Of right predictions r x 1 - (1 - r) x r^2 doublings a trial: never below nothing.
            price = self._price * (2.0 ** -(risk * risk) if kept else 2.0)
            self._price = min(max(price, LEAST), MOST)
        self._earned += kept
