"""Virtual time, and sources and listeners for a collector that runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report


class VirtualTime:
    """A clock whose sleepers wake in order when time is moved, so that no test waits."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self.count = 0

    def now(self) -> float:
        return self.time_s

    def wall(self) -> float:
        return self.time_s

    async def sleep(self, delay_s: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self.count += 1
        self.sleepers.append((self.time_s + delay_s, self.count, future))
        await future

    async def advance(self, by_s: float) -> None:
        end_s = self.time_s + by_s
        await self.settle()
        while due := [s for s in self.sleepers if s[0] <= end_s and not s[2].done()]:
            first = min(due)
            self.sleepers.remove(first)
            self.time_s = max(self.time_s, first[0])
            first[2].set_result(None)
            await self.settle()
        self.time_s = end_s

    async def settle(self) -> None:
        # Enough turns of the loop for every task that can run to reach its next sleep.
        for _ in range(20):
            await asyncio.sleep(0)


class FakeSource:
    """A source that does what its `answer` does, and tells when it was asked."""

    def __init__(self, name: str, clock: VirtualTime, interval_s: float = 1.0) -> None:
        self.name = name
        self.interval_s = interval_s
        self.missing: frozenset[str] = frozenset()
        self.dropped: Mapping[str, int] = {}
        self.clock = clock
        self.polled_at: list[float] = []
        self.error: Exception | None = None
        self.stuck: asyncio.Event | None = None
        self.closed = 0
        self.cancelled = 0

    async def poll(self, now: float) -> Report:
        self.polled_at.append(now)
        if self.stuck is not None:
            try:
                await self.stuck.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise self.error
        sample = EndpointSample(
            self.name, now, running=float(len(self.polled_at)), source=self.name
        )
        return Report((sample,), missing=self.missing, dropped=self.dropped)

    async def close(self) -> None:
        self.closed += 1


def placed(sources: Iterable[FakeSource]) -> dict[str, str | None]:
    """The endpoints that fake sources speak of, on devices of their own."""
    return {source.name: None for source in sources}


class Heard:
    """What the listeners were told."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, EndpointSample]] = []
        self.failures: list[tuple[str, TelemetryError]] = []

    def sample(self, now: float, sample: EndpointSample) -> None:
        self.samples.append((now, sample))

    def failure(self, name: str, error: TelemetryError) -> None:
        self.failures.append((name, error))
