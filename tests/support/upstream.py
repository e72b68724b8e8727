"""A stand-in model server: answers with what it was sent, and can be made to hold requests."""

from __future__ import annotations

import asyncio
from typing import Self

from aiohttp import web

from tests.support.ports import free_port


class Upstream:
    """An echo server. JSON answers carry `name`, `path`, `headers` (lower-case) and `bytes`.

    While `gate` is cleared every request waits inside, counted by `active`; `peak` is the most
    there ever were. A path that ends in `/ws` speaks websocket and echoes text. `/load` answers
    with an `endpoint-load-metrics` header.
    """

    def __init__(self, name: str = "upstream") -> None:
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self.gate = asyncio.Event()
        self.gate.set()
        self.active = 0
        self.peak = 0
        self.served = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        host, port = self.address.split(":")
        await web.TCPSite(self._runner, host, int(port)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Let go of what is held and refuse connections from now on. May be called twice."""
        self.gate.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/ws"):
            return await self._websocket(request)
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            body = await request.read()
            await self.gate.wait()
        finally:
            self.active -= 1
        self.served += 1
        seen = {
            "name": self.name,
            "path": request.raw_path,
            "headers": {key.lower(): value for key, value in request.headers.items()},
            "bytes": len(body),
        }
        extra = {"endpoint-load-metrics": "JSON {}"} if request.path == "/load" else None
        return web.json_response(seen, headers=extra)

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(str(message.data))
        return socket
