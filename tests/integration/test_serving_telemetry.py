"""Telemetry that stops, with the model of real engines behind Envoy."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.ports import free_port
from tests.support.processes import Process, eventually
from tests.support.stack import CHAT, KEYS, Stack, digest, make_config, send_signal

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Pair:
    """A stack before two servers in one pool."""

    stack: Stack
    ports: tuple[int, int]
    servers: tuple[Process, Process]

    async def state(self, which: int, wanted: str) -> bool:
        endpoints = (await self.stack.status())["pools"]["primary"]["endpoints"]
        return bool(endpoints[f"127.0.0.1:{self.ports[which]}"] == wanted)

    async def is_older(self, which: int, age_s: float) -> bool:
        endpoint = f"127.0.0.1:{self.ports[which]}"
        told_s = await self.stack.metric("telemetry_age_seconds", pool="primary", endpoint=endpoint)
        return told_s > age_s


@asynccontextmanager
async def running_pair(tmp_path: Path, **changes: Any) -> AsyncIterator[Pair]:
    ports = (free_port(), free_port())
    config = make_config([f"127.0.0.1:{port}" for port in ports], **changes)
    async with AsyncExitStack() as exits:
        client = await exits.enter_async_context(aiohttp.ClientSession())
        stack = Stack(tmp_path, config, client, exits)
        stack.write_config()
        first, second = [await stack.start_backend("demo-primary", port) for port in ports]
        await stack.start_gate()
        await stack.fresh()
        await stack.start_envoy()
        yield Pair(stack, ports, (first, second))


def _tenants() -> list[dict[str, object]]:
    return [
        {"name": "acme", "api_key_sha256": [digest(KEYS["acme"])], "types": ["high"]},
        {"name": "beta", "api_key_sha256": [digest(KEYS["beta"])], "types": ["low"]},
    ]


TYPES = {"types": {"high": {"priority_class": "high"}, "low": {"priority_class": "low"}}}
STALE = {"scrape_interval": "100ms", "stale_after": "500ms"}


async def test_one_server_stops_then_all(tmp_path: Path) -> None:
    """Traffic leaves a server that shows nothing; without any, the configured action decides."""
    changes: dict[str, Any] = {
        "fallback_action": "reject_low_priority",
        "metrics_source": STALE,
        "tenants": _tenants(),
        "scheduling": TYPES,
    }
    async with running_pair(tmp_path, **changes) as pair:
        stack = pair.stack
        both = await asyncio.gather(*(stack.post(CHAT) for _ in range(4)))
        assert {reply.status for reply in both} == {200}
        await stack.idle()
        send_signal(pair.servers[0], signal.SIGSTOP)
        try:
            await eventually(lambda: pair.state(0, "stale"), within_s=10)
            # That it served is believed as long as a page, and it may have after its last one.
            await eventually(lambda: pair.is_older(0, 1.0))
            for _ in range(6):
                assert (await stack.post(key=KEYS["beta"])).status == 200
            await stack.idle()
            ends = await _endpoints(stack, 6)
            assert ends == Counter({f"127.0.0.1:{pair.ports[1]}": 6})
        finally:
            send_signal(pair.servers[0], signal.SIGCONT)
        await eventually(lambda: pair.state(0, "fresh"), within_s=10)
        for port in pair.ports:
            url = f"http://127.0.0.1:{port}/control"
            async with stack.client.post(url, json={"metrics": "missing"}) as reply:
                assert reply.status == 200
        await eventually(lambda: pair.state(0, "stale"), within_s=10)
        await eventually(lambda: pair.state(1, "stale"), within_s=10)
        refused = await stack.post(key=KEYS["beta"])
        assert (refused.status, refused.headers["x-gpu-reason"]) == (503, "telemetry_lost")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await stack.post(key=KEYS["acme"])).status == 200
        assert await stack.metric("decisions_total", reason="telemetry_fallback") == 1
        # No reason to be taken out of service, but said aloud: once, however long it lasts.
        assert await stack.admin("/readyz") == (200, "ready; telemetry lost: primary\n")
        assert await stack.metric("telemetry_lost", pool="primary") == 1
        lost = "pool primary: telemetry of all 2 endpoints is lost, fallback_action reject_low"
        # The line comes with the next look at the pools, of which there are several a second.
        await eventually(lambda: stack.gate.output().count(lost) == 1)
        assert "telemetry is back" not in stack.gate.output()
        assert (await stack.status())["pools"]["primary"]["telemetry_lost"] is True
        await stack.idle()


async def _endpoints(stack: Stack, count: int) -> Counter[str]:
    async with stack.client.get(f"{stack.admin_url}/debug/decisions?count={count}") as reply:
        return Counter(entry["decision"]["endpoint"] for entry in await reply.json())


async def test_all_servers_killed(tmp_path: Path) -> None:
    """Dead servers: with reject_all nobody is sent to them, and all are told when to return."""
    changes: dict[str, Any] = {"fallback_action": "reject_all", "metrics_source": STALE}
    async with running_pair(tmp_path, **changes) as pair:
        for server in pair.servers:
            server.stop()
        await eventually(lambda: pair.state(0, "stale"), within_s=10)
        await eventually(lambda: pair.state(1, "stale"), within_s=10)
        replies = await asyncio.gather(*(pair.stack.post() for _ in range(5)))
        assert {(r.status, r.headers["x-gpu-reason"]) for r in replies} == {(503, "telemetry_lost")}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies)
        assert await pair.stack.in_flight() == 0


async def test_load_beyond_the_slots(tmp_path: Path) -> None:
    """Twice what the slots hold: what is let in is served, the rest is told to wait, no third way,
    and the engines never hold more than their slots."""
    async with running_pair(tmp_path) as pair:
        stack = pair.stack
        replies = await asyncio.gather(*(stack.post() for _ in range(16)))
        statuses = Counter(reply.status for reply in replies)
        await stack.idle(within_s=2.0)
        assert statuses == {200: 8, 429: 8}
        for port in pair.ports:
            async with stack.client.get(f"http://127.0.0.1:{port}/log") as reply:
                assert (await reply.json())["peak_in_flight"] <= 4
        assert await stack.metric("endpoint_mismatches_total") == 0
        assert await stack.metric("access_log_entries_total", result="settled") == 8
