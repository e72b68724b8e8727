"""How waiting at the gate ended, and how long it took.

PURE.
"""

from __future__ import annotations

from enum import StrEnum

from ext_authz.histogram import Histogram

# Upper bounds, seconds: about a factor of two around the usual limit of 0.2, and up to the longest.
WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)


class TicketResult(StrEnum):
    """How a ticket's waiting ended: labels of `hold_seconds`."""

    DISPATCHED = "dispatched"
    # Its time was over; another took its place, or waiting became useless; its caller left.
    LATE = "late"
    EVICTED = "evicted"
    LEFT = "left"


class Waits:
    """By pool and result. Pools are configured ones, and those that were while we ran."""

    def __init__(self) -> None:
        self.by_end: dict[tuple[str, TicketResult], Histogram] = {}

    def ended(self, pool: str, result: TicketResult, seconds: float) -> None:
        """A ticket of `pool` has waited so long."""
        seen = self.by_end.get((pool, result))
        if seen is None:
            seen = self.by_end[pool, result] = Histogram(WAIT_BUCKETS_S)
        seen.add(seconds)
