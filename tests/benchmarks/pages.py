"""Answers every scrape with a page captured from a real engine."""

from __future__ import annotations

import asyncio
import sys

from tests.benchmarks.names import ROOT

PAGE = ROOT / "tests" / "data" / "metrics" / "vllm-0.32.0-cpu-loaded.txt"


async def serve(port: int, hosts: list[str]) -> None:
    page = PAGE.read_bytes()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(page)}\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(head.encode() + page)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, hosts, port)
    await server.serve_forever()


asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))
