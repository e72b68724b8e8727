"""What a collector needs of anything that can tell the state of endpoints or devices.

A source either answers when it is asked (a page, a query, a driver) or speaks by itself (a
stream). It holds its own bounds, and its blocking calls stay off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ext_authz.snapshot import Report


@runtime_checkable
class PollSource(Protocol):
    """Is asked at its interval, one poll at a time."""

    @property
    def name(self) -> str:
        """Unique among all sources: kind and subject, such as `scrape/10.0.0.1:8000`."""

    @property
    def interval_s(self) -> float:
        """Seconds between two polls while all is well."""

    async def poll(self, now: float) -> Report:
        """What is known at `now` (monotonic seconds, when the poll began). Raises
        TelemetryError."""

    async def close(self) -> None:
        """Let go of connections. A closed source is not polled again."""


@runtime_checkable
class StreamSource(Protocol):
    """Speaks whenever it has something to say."""

    @property
    def name(self) -> str:
        """Unique among all sources."""

    async def run(self, emit: Callable[[Report], None]) -> None:
        """Speak until cancelled. Raises TelemetryError when it cannot go on; it is then run
        again after a pause."""

    async def close(self) -> None:
        """Let go of connections. A closed source is not run again."""


Source = PollSource | StreamSource
