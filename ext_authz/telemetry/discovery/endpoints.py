"""Finds endpoints that come and go, and keeps the last known ones for a while when it cannot."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError

log = logging.getLogger(__name__)

MAX_ENDPOINTS = 1024
"""Endpoints of one pool. An answer with more is refused, since it is hardly what was meant."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?|\[[0-9A-Fa-f:.]{2,45}\]")

OnChange = Callable[[tuple[str, ...]], None]
Sleep = Callable[[float], Awaitable[object]]


class Discovery(Protocol):
    """Tells where the endpoints of one pool are."""

    @property
    def name(self) -> str:
        """Kind and subject, such as `dns/models.example`, for logs and metrics."""

    @property
    def failures(self) -> int:
        """Questions that were asked in vain so far."""

    async def run(self, on_change: OnChange) -> None:
        """Call `on_change` with the URLs of all endpoints, sorted, once they are known and
        whenever they are others; until cancelled. What goes wrong outside is no exception: the
        last known endpoints stay for a bounded time, and then there are none."""

    async def close(self) -> None:
        """Let go of connections."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup found: URLs, and for how long that may be believed (None: nobody said)."""

    urls: tuple[str, ...]
    ttl_s: float | None = None


class Lookup(Protocol):
    """One way to ask where endpoints are, again and again."""

    @property
    def name(self) -> str:
        """See `Discovery.name`."""

    async def look(self) -> Found:
        """Ask once, within own bounds of time and size. Raises TelemetryError."""

    async def close(self) -> None:
        """See `Discovery.close`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to ask and how long to believe.

    `interval_s` is between two questions; a time to live shortens or lengthens it within
    `min_interval_s` (above 0) and `max_interval_s`. `keep_s` is for how long endpoints stay after
    they were last found.
    """

    interval_s: float = 15.0
    min_interval_s: float = 1.0
    max_interval_s: float = 60.0
    keep_s: float = 300.0

    def wait_s(self, ttl_s: float | None) -> float:
        """Until the next question after an answer."""
        wanted_s = self.interval_s if ttl_s is None else ttl_s
        return min(self.max_interval_s, max(self.min_interval_s, wanted_s))


class LastKnown:
    """The endpoints last found, told when they change and forgotten after `keep_s` in vain."""

    def __init__(self, keep_s: float, on_change: OnChange) -> None:
        self._keep_s = keep_s
        self._on_change = on_change
        self._urls: tuple[str, ...] | None = None
        self._found_s = 0.0

    def found(self, urls: Iterable[str], now: float) -> None:
        """Take over an answer got at `now` (monotonic seconds). TelemetryError if too large."""
        ordered = tuple(sorted(set(urls)))
        if len(ordered) > MAX_ENDPOINTS:
            raise TelemetryError(f"more than {MAX_ENDPOINTS} endpoints")
        self._found_s = now
        self._tell(ordered)

    def confirmed(self, now: float) -> None:
        """What is known still holds at `now`."""
        self._found_s = now

    def failed(self, now: float) -> None:
        """Nothing could be found out at `now`."""
        if self._urls and now - self._found_s > self._keep_s:
            self._tell(())

    def _tell(self, urls: tuple[str, ...]) -> None:
        if urls != self._urls:
            self._urls = urls
            self._on_change(urls)


class PolledDiscovery:
    """Endpoints found by asking `lookup` again and again. `failures` counts questions in vain."""

    def __init__(
        self, lookup: Lookup, pace: Pace, clock: Clock, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._lookup = lookup
        self._pace = pace
        self._clock = clock
        self._sleep = sleep
        self.failures = 0

    @property
    def name(self) -> str:
        """See `Discovery.name`."""
        return self._lookup.name

    async def run(self, on_change: OnChange) -> None:
        """See `Discovery.run`."""
        known = LastKnown(self._pace.keep_s, on_change)
        in_a_row = 0
        while True:
            ttl_s = None
            try:
                answer = await self._lookup.look()
                known.found(answer.urls, self._clock.now())
            except TelemetryError as error:
                known.failed(self._clock.now())
                self.failures += 1
                in_a_row += 1
                if in_a_row == 1:
                    log.warning("discovery %s: no answer: %s", self.name, error)
            else:
                ttl_s = answer.ttl_s
                if in_a_row:
                    log.info("discovery %s: answers again, %d failed", self.name, in_a_row)
                in_a_row = 0
            await self._sleep(self._pace.wait_s(ttl_s))

    async def close(self) -> None:
        """See `Discovery.close`."""
        await self._lookup.close()


def url_of(scheme: str, host: str, port: int) -> str:
    """The URL of an endpoint. Raises ValueError for what is no host or no port."""
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    if scheme not in {"http", "https"} or not _HOST.fullmatch(bracketed) or not 0 < port < 65536:
        raise ValueError("not an endpoint")
    return f"{scheme}://{bracketed.rstrip('.')}:{port}"
