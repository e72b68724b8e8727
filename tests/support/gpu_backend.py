"""The GPU backend model on a socket, in the test's own loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
from aiohttp import web

from loadtest.backend.profiles import PROFILES, LlmProfile, Profile, StepCosts
from loadtest.backend.server import make_app
from loadtest.backend.service import Service

CHAT = {"messages": [{"role": "user", "content": "x" * 80}], "max_tokens": 20, "ignore_eos": True}
ROW = {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [0] * 8}]}
_primary = PROFILES["demo-primary"]
assert isinstance(_primary, LlmProfile)
# a millisecond a step, so that tests do not wait for what they do not test
FAST = replace(_primary, costs=StepCosts(1.0, 0.0, 0.0, 1.0, 0.0, 0.0))
# a minute a step: whoever is inside stays there
STUCK = replace(FAST, costs=StepCosts(60_000.0, 0.0, 0.0, 60_000.0, 0.0, 0.0), max_sequences=2)


@asynccontextmanager
async def running_backend(
    profile: Profile,
) -> AsyncIterator[tuple[aiohttp.ClientSession, Service]]:
    """A client of a backend that serves the models `m` and `alias` until the block ends."""
    service = Service(profile, seed=1, models=("m", "alias"))
    runner = web.AppRunner(make_app(service), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    timeout = aiohttp.ClientTimeout(total=20)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
            yield session, service
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the other side of a socket, five seconds at most."""
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.005)


async def inside(service: Service, count: int) -> None:
    """Wait until `count` requests are in flight."""
    await until(lambda: service.driver.in_flight == count)
