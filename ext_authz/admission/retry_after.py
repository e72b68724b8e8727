"""When a refused client should come back.

PURE. d = clamp(wait + jitter, wait, cap). `wait` is when the next piece of capacity is expected
for this caller. The jitter is drawn over the time in which the whole herd refused so far could
be served at the caller's drain rate, so that returning clients arrive at about that rate
instead of as a wall.
"""

from __future__ import annotations

from math import isnan
from random import Random

from ext_authz.model import RetryHint


class Herd:
    """How many refused requests of one caller are still expected back.

    It grows by one a refusal and drains at the rate capacity frees up; it is bounded by what
    can come back within the cap, so a client that hammers cannot push it further.
    """

    __slots__ = ("_size", "_updated_s")

    def __init__(self) -> None:
        self._size = 0.0
        self._updated_s = 0.0

    def add(self, now: float, drain_per_s: float, cap_s: float) -> float:
        """Count one more refusal; returns the size of the herd, this one included."""
        drained = max(0.0, now - self._updated_s) * drain_per_s
        self._size = min(max(0.0, self._size - drained) + 1.0, max(1.0, cap_s * drain_per_s))
        self._updated_s = now
        return self._size


def hint(wait_s: float, herd: float, drain_per_s: float, cap_s: float, rng: Random) -> RetryHint:
    """The hint for one refusal. `drain_per_s` is above 0; a wait that is no number, or has no
    end, is the cap, and a negative one is none."""
    wait_s = cap_s if isnan(wait_s) else min(max(0.0, wait_s), cap_s)
    spread_s = min(herd / drain_per_s, cap_s - wait_s)
    jitter_s = rng.random() * spread_s
    return RetryHint(after_s=wait_s + jitter_s, jitter_s=jitter_s)
