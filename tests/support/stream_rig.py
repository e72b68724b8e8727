"""A feedback server, and agents that stream to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import BytesValue
from grpc import aio

from ext_authz.telemetry.sources.feedback.stream import METHOD, FeedbackServer, StreamSettings
from tests.support.feedback import HOME, OTHER, ManualClock, Reports
from tests.support.scrape_rig import until

LISTEN = "127.0.0.1:0"


class Rig:
    """A running server, what it emitted, and streams of agents to it."""

    def __init__(self, settings: StreamSettings) -> None:
        self.clock = ManualClock()
        self.reports = Reports()
        self.server = FeedbackServer(settings, [HOME, OTHER], self.clock)
        self.channels: list[Any] = []

    def agent(self, token: str | None = None) -> Any:
        # A channel of its own: agents of real life do not share a connection.
        channel: Any = aio.insecure_channel(
            f"127.0.0.1:{self.server.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.channels.append(channel)
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        return channel.stream_stream(METHOD)(metadata=metadata)

    async def next_report(self, call: Any, data: bytes) -> None:
        """Send `data` and wait until something was made of it."""
        before = len(self.reports.all)
        await send(call, data)
        await until(lambda: len(self.reports.all) > before)

    async def heard(self, running: float) -> None:
        await until(lambda: running in self.reports.running)


@asynccontextmanager
async def served(settings: StreamSettings) -> AsyncIterator[Rig]:
    rig = Rig(settings)
    running = asyncio.ensure_future(rig.server.run(rig.reports))
    try:
        await until(lambda: rig.server.port != 0 or running.done())
        yield rig
    finally:
        for channel in rig.channels:
            await channel.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await rig.server.close()


def frame(data: bytes) -> bytes:
    return BytesValue(value=data).SerializeToString()


async def send(call: Any, *messages: bytes) -> None:
    for data in messages:
        await call.write(frame(data))


async def answer(call: Any) -> dict[str, Any]:
    async with asyncio.timeout(5):
        read = BytesValue.FromString(await call.read()).value
    said: dict[str, Any] = json.loads(read)
    return said


async def ending(call: Any) -> grpc.StatusCode:
    """How the server ended a stream."""
    async with asyncio.timeout(5):
        code: grpc.StatusCode = await call.code()
    return code
