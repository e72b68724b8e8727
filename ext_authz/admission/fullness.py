"""How full a pool is: what its endpoints count for, and the load at which it was felt to be full
though it had slots.

PURE. Where the promise or memory is what bounds a pool, its slots are never used up, and shares of
them would bind nobody: who asks most often would get most. So what is shared out is no more than
the load beside which requests were refused for want of time, and no less than what one more would
have had time beside that was refused for its share.
"""

from __future__ import annotations

from math import exp, inf

from ext_authz.admission.endpoints import EndpointState

# How far one such refusal moves it, and how it grows in a second without one.
STEP = 0.3
GROWTH = 0.1
# After so long without one, nothing is left of it.
FORGET_S = 140.0


class Fullness:
    """Of one pool."""

    __slots__ = ("_at_s", "_load")

    def __init__(self) -> None:
        self._load = inf
        self._at_s = -inf

    def felt(self, load: float, slots: int, now: float) -> None:
        """A request that alone would be soon enough had no room beside `load`."""
        full = self.usable(slots, now)
        self._load = full + STEP * min(0.0, max(load, 1.0) - full)
        self._at_s = now

    @property
    def known(self) -> bool:
        """Whether any was felt yet."""
        return self._load < inf

    def had_room(self, load: float, slots: int, now: float) -> None:
        """A request that was refused for its share would have been soon enough beside `load`."""
        if load + 1.0 > self.usable(slots, now):
            full = self.usable(slots, now)
            self._load, self._at_s = full + STEP * (load + 1.0 - full), now

    def usable(self, slots: int, now: float) -> float:
        """How many of `slots` can be used."""
        seconds = max(0.0, now - self._at_s)
        if seconds > FORGET_S:
            return float(slots)
        return min(self._load * exp(GROWTH * seconds), float(slots))


def counted(load: float, endpoint: EndpointState) -> float:
    """What an endpoint with that `load` takes of its pool's slots: others may fill it, but not the
    endpoints beside it, however long their queue there is."""
    beyond = load - endpoint.limit
    if beyond <= 0.0:
        return load
    return load - min(beyond, endpoint.foreign)
