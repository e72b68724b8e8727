"""The one place that reads a clock. Everything else is handed `now` (monotonic seconds)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as the shells see it; the pure rooms only ever get the numbers."""

    def now(self) -> float:
        """Monotonic seconds: never steps, has no meaning between processes."""

    def wall(self) -> float:
        """Unix seconds, for headers and logs only: it may step."""


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()
