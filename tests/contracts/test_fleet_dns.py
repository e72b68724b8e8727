"""A pool that follows a name, with real lookups: from the zone to the endpoints of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ext_authz.clock import SystemClock
from ext_authz.fleet import Fleet, Listeners
from ext_authz.settings import DiscoverySettings, Settings
from ext_authz.telemetry.discovery.dns import DnsSettings
from tests.support.dns_server import DnsServer
from tests.support.finding import assumed
from tests.support.processes import eventually
from tests.support.settings import make_pool


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    loop = asyncio.get_running_loop()
    transport, made = await loop.create_datagram_endpoint(DnsServer, local_addr=("127.0.0.1", 0))
    yield made
    transport.close()


async def test_a_pool_follows_its_name(server: DnsServer) -> None:
    """Addresses that are added or taken away are endpoints within an interval; a server that
    falls silent, or answers with garbage, takes none away, and is followed again afterwards."""
    zone = ("models.test.", "A")
    server.zone = {zone: (1, ["10.0.0.1"])}
    lookup = DnsSettings(
        "models.test.", 80, nameservers=("127.0.0.1",), nameserver_port=server.port, timeout_s=0.2
    )
    pool = replace(make_pool("p"), discovery=DiscoverySettings(lookup, 0.1, 5))
    told: list[Settings] = []
    fleet = Fleet(assumed(pool), SystemClock(), Listeners(_ignore, _ignore, told.append))

    def endpoints() -> list[str]:
        return [e.address for e in fleet.settings.admission.pools["p"].endpoints]

    def failures() -> int:
        return int(str(fleet.discovered()["p"]["failures"]))

    fleet.start()
    try:
        await eventually(lambda: endpoints() == ["10.0.0.1:80"])
        server.zone = {zone: (1, ["10.0.0.1", "10.0.0.2"])}
        await eventually(lambda: endpoints() == ["10.0.0.1:80", "10.0.0.2:80"])
        await eventually(lambda: len(fleet.collector.snapshot.samples) == 2)
        for mode in ("silent", "garbage", "refused"):
            server.mode, before = mode, failures()
            await eventually(lambda before=before: failures() > before + 1)  # type: ignore[misc]
            assert endpoints() == ["10.0.0.1:80", "10.0.0.2:80"]
        server.mode, server.zone = "healthy", {zone: (1, ["10.0.0.2"])}
        await eventually(lambda: endpoints() == ["10.0.0.2:80"])
        assert fleet.settings is told[-1]
        assert len(told) == 3
    finally:
        await fleet.stop()


def _ignore(*_: object) -> None:
    """Nobody asks in this test."""
