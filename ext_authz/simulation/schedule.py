"""Virtual time: what is to happen, in the order of when.

PURE. Nothing waits: time is wherever the next event is.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class Schedule:
    """Events in order of time; those of one time in the order in which they were set. `now` is
    seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._events: list[tuple[float, int, Action]] = []

    def at(self, at_s: float, action: Action) -> None:
        """Do something at `at_s`; what is past is done next, and time does not run back for it."""
        heappush(self._events, (at_s, next(self._numbers), action))

    def run(self, until_s: float) -> None:
        """Play all events up to `until_s`."""
        events = self._events
        while events and events[0][0] <= until_s:
            at_s, _, action = heappop(events)
            self.now = max(self.now, at_s)
            action()
        self.now = max(self.now, until_s)
