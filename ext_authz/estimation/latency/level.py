"""How fast an endpoint is just now, against what its pool has learned.

PURE. One factor, near 1: drift, a reloaded model, a noisy neighbour. It moves in seconds where the
shape moves in minutes, and only as far as the evidence is significant: a factor that follows noise
costs more than it brings.
"""

from __future__ import annotations

from math import exp, log, sqrt

# A lesson moves the level by this part once there are enough of them.
STEP = 0.05
WARM = 5.0
# One lesson says at most this much (natural logarithm), so that no outlier is believed alone.
CLIP = 1.0
# Standard errors by which a change must exceed noise to be followed. Where requests queue, one
# error lasts for as long as the queue does, so that many lessons say the same thing.
SURE, SURE_QUEUED = 1.0, 3.0


class Level:
    """The factor that minimises the relative error of recent requests: mean of the ratio
    predicted / true over the mean of its square."""

    __slots__ = ("_count", "_ratio", "_square", "_sure", "factor")

    def __init__(self, sure: float = SURE) -> None:
        self._sure = sure
        self._count = 0
        self._ratio = 1.0
        self._square = 1.0
        self.factor = 1.0

    def learn(self, seconds: float, expected_s: float) -> None:
        """A request took `seconds` where the shape alone said `expected_s`; both above 0."""
        ratio = exp(-max(-CLIP, min(CLIP, log(seconds / expected_s))))
        self._count += 1
        step = max(STEP, 1.0 / (self._count + WARM))
        self._ratio += step * (ratio - self._ratio)
        self._square += step * (ratio * ratio - self._square)
        factor = self._ratio / self._square
        spread = max(1e-4, 1.0 - self._ratio * self._ratio / self._square)
        error = sqrt(spread * step / (2.0 - step) / self._square) / factor
        moved = log(factor)
        believed = max(0.0, abs(moved) - self._sure * error)
        self.factor = exp(believed if moved > 0.0 else -believed)


class Pace:
    """The levels of one endpoint: of the time to the first token, of the time after it, and of
    both together; each apart for requests that found a free slot and those that queued."""

    __slots__ = ("first", "rest", "whole")

    def __init__(self) -> None:
        self.first = (Level(SURE), Level(SURE_QUEUED))
        self.rest = (Level(SURE), Level(SURE_QUEUED))
        self.whole = (Level(SURE), Level(SURE_QUEUED))
