"""Answers every scrape with a page captured from a real engine, as cheaply as Python can: it
shares the client's core."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from tests.benchmarks.names import PAGE

_BLANK_LINE = b"\r\n\r\n"


class Pages(asyncio.Protocol):
    """One connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._unread = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        *requests, self._unread = (self._unread + data).split(_BLANK_LINE)
        for _ in requests:
            self._transport.write(self._answer)


async def serve(port: int, hosts: list[str]) -> None:
    page = PAGE.read_bytes()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(page)}\r\n\r\n"
    answer = head.encode() + page
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Pages(answer), hosts, port, backlog=1024)
    await server.serve_forever()


uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
