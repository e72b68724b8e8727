"""A way to the metrics pages that can be cut: `python -m loadtest.demo.forward PORT=PORT ...`.

Forwards each local TCP port to another one, so that ending this process ends scraping for good
and leaves the model servers, and whoever else reads their pages, alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 16
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def start(port: int, target: int) -> asyncio.Server:
    """Forward `port` to `target` while the server runs."""
    return await asyncio.start_server(_forwarding(target), HOST, port)


def _forwarding(target: int) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            back, forth = await asyncio.open_connection(HOST, target)
            with contextlib.closing(forth):
                await asyncio.gather(_pump(reader, forth), _pump(back, writer))

    return serve


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until it ends, then the end."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def main(pairs: list[str]) -> None:
    """Forward until killed."""
    servers = []
    for pair in pairs:
        port, _, target = pair.partition("=")
        servers.append(await start(int(port), int(target)))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
