"""A fleet in virtual time whose discoveries say what a test makes them say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from ext_authz.errors import TelemetryError
from ext_authz.fleet import Fleet, Listeners
from ext_authz.settings import DiscoverySettings, Pool, Settings, TelemetrySettings
from ext_authz.snapshot import EndpointSample
from ext_authz.telemetry.sources.static import AssumeSettings
from tests.support.collecting import VirtualTime
from tests.support.settings import make_pool, make_settings


class Told:
    """A discovery that tells what `tell` is given. Made from settings, as the real ones are."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.name = f"told/{settings.lookup}"
        self.failures = 0
        self.fault: Exception | None = None
        self.runs = 0
        self.closed = 0
        self.on_change: Callable[[tuple[str, ...]], None] | None = None

    async def run(self, on_change: Callable[[tuple[str, ...]], None]) -> None:
        self.runs += 1
        if self.fault is not None:
            raise self.fault
        self.on_change = on_change
        await asyncio.Event().wait()

    def tell(self, *addresses: str) -> None:
        assert self.on_change is not None
        self.on_change(tuple(f"http://{address}" for address in addresses))

    async def close(self) -> None:
        self.closed += 1


def finding(name: str, lookup: str, *addresses: str, slots: int = 4) -> Pool:
    """A pool with a discovery called `lookup`, and the given endpoints beside."""
    pool = make_pool(name, *addresses, slots=slots)
    return replace(pool, discovery=DiscoverySettings(lookup, 1.0, slots))


def assumed(*pools: Pool, sources: Iterable[object] = (AssumeSettings(),)) -> Settings:
    """Settings with these pools, of whose endpoints something is known as soon as they run."""
    return replace(make_settings(pools), telemetry=TelemetrySettings(tuple(sources)))


class Watched:
    """A fleet, what its listeners were told, and the time it runs in."""

    def __init__(self, settings: Settings) -> None:
        self.time = VirtualTime()
        self.samples: list[EndpointSample] = []
        self.changes: list[Settings] = []
        self.failures: list[tuple[str, TelemetryError]] = []
        listeners = Listeners(
            lambda _, sample: self.samples.append(sample),
            lambda name, error: self.failures.append((name, error)),
            self.changes.append,
        )
        self.fleet = Fleet(settings, self.time, listeners, sleep=self.time.sleep)

    def addresses(self, pool: str) -> list[str]:
        """The endpoints of a pool, as they are now."""
        return [e.address for e in self.fleet.settings.admission.pools[pool].endpoints]

    def reload(self, settings: Settings) -> None:
        """Take over a new configuration, as the server does."""
        self.fleet.adopt(self.fleet.plan(settings))
