"""What the gate sees of a real server, and clients that keep it busy."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from itertools import pairwise
from math import isfinite
from statistics import median

import aiohttp

from ext_authz.clock import SystemClock
from ext_authz.settings import Endpoint
from ext_authz.snapshot import EndpointSample, Freshness, Staleness
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.pages.mappings import EngineMapping
from ext_authz.telemetry.sources.scrape import ScrapeSettings, ScrapeSource
from tests.real.servers import ModelServer
from tests.support.collecting import Heard

SETTINGS = ScrapeSettings(interval_s=0.1, timeout_s=2.0, max_page_bytes=1_000_000)
STALE_AFTER_S = 1.0

Ask = Callable[[aiohttp.ClientSession], Awaitable[int]]
"""Sends one request and reads all of the answer; its status."""


@dataclass(slots=True)
class Done:
    """What clients saw: answers by status, and the seconds that each 200 took."""

    statuses: Counter[int] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    lost: int = 0

    @property
    def mean_s(self) -> float:
        return sum(self.took_s) / len(self.took_s)


def source(server: ModelServer, mapping: EngineMapping) -> ScrapeSource:
    """The source of `server`'s own page."""
    endpoint = Endpoint(server.address, server.url, 8, "card", metrics_url=server.metrics_url)
    return ScrapeSource(endpoint, mapping, SETTINGS)


async def drive(ask: Ask, clients: int, for_s: float) -> Done:
    """Clients that each ask again as soon as they have their answer, or lose it, for `for_s`."""
    done = Done()
    ends_s = time.monotonic() + for_s

    async def client(session: aiohttp.ClientSession) -> None:
        while (began_s := time.monotonic()) < ends_s:
            try:
                status = await ask(session)
            except aiohttp.ClientError:
                done.lost += 1
                await asyncio.sleep(0.05)
                continue
            done.statuses[status] += 1
            if status == 200:
                done.took_s.append(time.monotonic() - began_s)
            else:
                await asyncio.sleep(0.05)

    connector = aiohttp.TCPConnector(limit=clients)
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return done


class Watched:
    """A collector that scrapes one server, and every sample it gave."""

    def __init__(self, server: ModelServer, mapping: EngineMapping) -> None:
        self._address = server.address
        self._heard = Heard()
        self._clock = SystemClock()
        self.collector = Collector(
            [source(server, mapping)],
            {server.address: None},
            self._clock,
            self._heard.sample,
            self._heard.failure,
        )

    @property
    def samples(self) -> list[EndpointSample]:
        return [sample for _, sample in self._heard.samples]

    @property
    def failures(self) -> list[str]:
        return [str(error) for _, error in self._heard.failures]

    @property
    def latest(self) -> EndpointSample:
        return self.collector.snapshot.samples[self._address]

    def freshness(self) -> Freshness:
        """Whether the gate would act on what it knows."""
        return self.collector.snapshot.freshness(
            self._address, self._clock.now(), Staleness(STALE_AFTER_S)
        )

    async def more(self, count: int) -> list[EndpointSample]:
        """The next samples, as soon as they are there."""
        seen = len(self.samples)
        await until(lambda: len(self.samples) >= seen + count)
        return self.samples[seen:]

    def values(self, name: str) -> list[float]:
        """What is known of a field, sample by sample."""
        values = [getattr(sample, name) for sample in self.samples]
        return [value for value in values if value is not None]

    def total(self, name: str) -> float:
        """What a rate comes to over the whole time in which it is known."""
        samples = self.samples
        return sum(
            (getattr(now, name) or 0.0) * (now.at_s - before.at_s)
            for before, now in pairwise(samples)
        )

    def mean(self, name: str) -> float:
        """The mean of a mean over all requests that finished, while both are known."""
        samples = self.samples
        weighted: list[tuple[float, float]] = [
            (value, (now.requests_per_s or 0.0) * (now.at_s - before.at_s))
            for before, now in pairwise(samples)
            if (value := getattr(now, name)) is not None
        ]
        return sum(v * weight for v, weight in weighted) / sum(weight for _, weight in weighted)

    def figures(self, *names: str) -> dict[str, str]:
        """Lowest, middle and highest of fields, for the log."""
        known = {name: self.values(name) for name in names}
        return {
            name: f"{min(v):.4g}/{median(v):.4g}/{max(v):.4g}" for name, v in known.items() if v
        }


@asynccontextmanager
async def watched(server: ModelServer, mapping: EngineMapping) -> AsyncIterator[Watched]:
    """A started collector before `server`, two samples old; stopped afterwards."""
    seen = Watched(server, mapping)
    seen.collector.start()
    try:
        await seen.more(2)
        yield seen
    finally:
        await seen.collector.stop()


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait until `condition` holds; raises TimeoutError if it takes too long."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # the condition is whatever a test looks at
            await asyncio.sleep(0.01)


def impossible(sample: EndpointSample) -> dict[str, float]:
    """Numbers of `sample` that no server can have."""
    values = {f.name: getattr(sample, f.name) for f in fields(sample)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, float) and (value < 0 or not isfinite(value))
    }
