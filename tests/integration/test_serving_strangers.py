"""What callers without a key, and callers who play with theirs, can do to the others: nothing.

The real Envoy as rendered, the server, and engines driven by hand.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.engine import PAGE
from tests.support.processes import eventually
from tests.support.stack import KEYS, Stack, engine_stack

pytestmark = pytest.mark.slow

PREFLIGHT = (
    b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    b"origin: https://app.example\r\naccess-control-request-method: POST\r\n"
)


@asynccontextmanager
async def _sent(stack: Stack, request: bytes) -> AsyncIterator[StreamReader]:
    """A connection on which `request` was written and nothing more will be."""
    host, port = stack.envoy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        yield reader
    finally:
        writer.close()
        # The server may have reset it already.
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _status(reader: StreamReader) -> int:
    line = await asyncio.wait_for(reader.readline(), 5.0)
    return int(line.split()[1])


async def test_a_preflight_passes_and_holds_nothing(tmp_path: Path) -> None:
    """A real one reaches the server without a key and is not booked; nothing else does (O-15)."""
    post = PREFLIGHT.replace(b"OPTIONS", b"POST", 1)
    bare = b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    async with engine_stack(tmp_path) as up:
        for request, expected in ((PREFLIGHT, 200), (post, 401), (bare, 401)):
            async with _sent(up.stack, request + b"\r\n") as reader:
                assert await _status(reader) == expected
        assert (up.primary.served, await up.stack.in_flight()) == (1, 0)
        told = up.stack.metric("decisions_total", reason="preflight", tenant="unknown")
        assert await told == 1


async def test_preflights_can_be_forbidden(tmp_path: Path) -> None:
    """Where no browser calls, one is a request without a key."""
    async with (
        engine_stack(tmp_path, edge={"preflight": "deny"}) as up,
        _sent(up.stack, PREFLIGHT + b"\r\n") as reader,
    ):
        assert await _status(reader) == 401
        assert up.primary.served == 0


async def test_slow_preflights_take_nobodys_place(tmp_path: Path) -> None:
    """A server that does not answer them holds a few and no more; callers with a key get in."""
    async with engine_stack(tmp_path) as up, AsyncExitStack() as open_ones:
        up.primary.gate.clear()
        # An engine does not count a preflight among what it runs.
        up.primary.page = PAGE.format(running=0, waiting=0)
        held = [
            await open_ones.enter_async_context(_sent(up.stack, PREFLIGHT + b"\r\n"))
            for _ in range(12)
        ]
        turned_away = [asyncio.ensure_future(_status(reader)) for reader in held]
        await eventually(lambda: sum(one.done() for one in turned_away) == 8)
        posts = [asyncio.ensure_future(up.stack.post()) for _ in range(4)]
        await eventually(lambda: up.primary.active == 8)
        up.primary.gate.set()
        assert [(await one).status for one in posts] == [200] * 4
        assert sorted(await asyncio.gather(*turned_away)) == [200] * 4 + [503] * 8


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (b"content-length: 9000000\r\n\r\n" + b"x" * 70_000, 401),
        (b"transfer-encoding: chunked\r\n\r\n11170\r\n" + b"x" * 70_000, 401),
        (b"connection: upgrade\r\nupgrade: websocket\r\n\r\n", 401),
        # Refused in a header: gRPC knows no other HTTP status.
        (b"content-type: application/grpc\r\ncontent-length: 900\r\n\r\n", 200),
    ],
    ids=["long", "chunked", "upgrade", "grpc"],
)
async def test_a_preflight_with_a_body_takes_nobodys_place(
    tmp_path: Path, rest: bytes, expected: int
) -> None:
    """More unfinished ones than the pool has slots, and a caller with a key is served at once."""
    async with engine_stack(tmp_path) as up, AsyncExitStack() as open_ones:
        held = [
            await open_ones.enter_async_context(_sent(up.stack, PREFLIGHT + rest)) for _ in range(6)
        ]
        assert [await _status(reader) for reader in held] == [expected] * 6
        assert (await up.stack.post()).status == 200
        assert up.primary.served == 1


async def test_one_spelling_of_a_key_is_a_key(tmp_path: Path) -> None:
    """A blank that Envoy leaves in a key makes another bucket there, so it is another key here."""
    async with engine_stack(tmp_path) as up:
        for blank in ("\u00a0", "\u3000", "\u2003\u2003", "\u0085"):
            for place in (f"{blank}{KEYS['acme']}", f"{KEYS['acme']}{blank}"):
                assert (await up.stack.post(key=place)).status == 401
        assert (await up.stack.post()).status == 200
        assert up.primary.served == 1
