"""How much of a body the real Envoy shows the gate, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.edge import running_edge
from tests.support.processes import eventually
from tests.support.settings import make_edge

pytestmark = pytest.mark.slow

MAX = 65_536


@pytest.mark.parametrize(
    ("sent", "shown", "partial"),
    [
        (1, 1, "false"),
        (MAX - 1, MAX - 1, "false"),
        (MAX, MAX, "false"),
        (MAX + 1, MAX, "true"),
        (1_000_000, MAX, "true"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_the_beginning_of_a_body(
    tmp_path: Path, sent: int, shown: int, partial: str, chunked: bool
) -> None:
    """The gate sees at most the configured bytes, told whether that is all; the server sees all."""
    body = bytes(place * 7 % 256 for place in range(sent))

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    async with running_edge(tmp_path) as edge:
        data = chunks() if chunked else body
        async with edge.client.post(edge.url, data=data) as reply:
            assert (await reply.json())["bytes"] == sent
        (check,) = edge.gate.checks
    assert check.raw_body == body[:shown]
    assert check.headers["x-envoy-auth-partial-body"] == partial


async def test_no_body_when_none_is_wanted(tmp_path: Path) -> None:
    """With a limit of 0 the gate is asked without a body and the server still gets it."""
    async with running_edge(tmp_path, make_edge(max_body_bytes=0)) as edge:
        async with edge.client.post(edge.url, data=b"x" * 1000) as reply:
            assert (await reply.json())["bytes"] == 1000
        (check,) = edge.gate.checks
    assert check.raw_body == b""
    assert check.headers["content-length"] == "1000"


async def test_a_grpc_stream_is_checked_at_its_start(tmp_path: Path) -> None:
    """A stream that stays open is checked at once; a plain upload is checked when it ends."""
    goes_on = asyncio.Event()

    async def messages() -> AsyncIterator[bytes]:
        yield b"first"
        await goes_on.wait()

    async with running_edge(tmp_path, make_edge(check_timeout_s=5.0)) as edge:
        upload = asyncio.create_task(edge.client.post(edge.url, data=messages()).__aenter__())
        await asyncio.sleep(0.2)
        assert edge.gate.checks == []
        async with grpc.aio.insecure_channel(edge.envoy.url.removeprefix("http://")) as channel:
            path = "/inference.GRPCInferenceService/ModelStreamInfer"
            call = channel.stream_stream(path, None, None)(messages())
            await eventually(lambda: len(edge.gate.checks) == 1)
            assert edge.gate.checks[0].path.endswith("/ModelStreamInfer")
            assert edge.gate.checks[0].raw_body == b""
            call.cancel()
        goes_on.set()
        reply = await upload
        assert reply.status == 200
        reply.close()
        assert edge.gate.checks[1].raw_body == b"first"
