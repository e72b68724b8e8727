"""What no honest caller sends, to the running server and through the real Envoy."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION
from tests.support.processes import eventually
from tests.support.service import WIRE, chat
from tests.support.stack import CHAT, KEYS, Engines, engine_stack

pytestmark = pytest.mark.slow

CHECK = f"/{AUTHORIZATION}/Check"


async def _send(channel: grpc.aio.Channel, path: str, request: bytes) -> Any:
    """The decoded answer, or the code of the failure. Bounded by the deadline."""
    try:
        answer = await channel.unary_unary(path)(request, timeout=5)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return WIRE.check_response.FromString(answer)


async def _unharmed(up: Engines) -> None:
    """The server still decides, nothing is booked, and no bug shows in what it wrote."""
    assert (await up.stack.post()).status == 200
    await up.stack.idle()
    told = up.stack.gate.output()
    assert "Traceback" not in told
    # That a pool's telemetry is lost is said aloud, and is no bug.
    errors = [line for line in told.splitlines() if "ERROR" in line]
    assert [line for line in errors if "ext_authz.lookout" not in line] == []


async def test_garbage_on_the_grpc_port(tmp_path: Path) -> None:
    """Garbage, cuts, excess and wrong methods get a refusal or a gRPC error, never a pass."""
    good = chat(key=KEYS["acme"])
    chance = random.Random(1)
    garbage = [b"", b"\x00", b"\xff" * 7, b"\x0a\xff\xff\xff\xff\x0f", chance.randbytes(1000)]
    garbage += [good[:size] for size in range(1, len(good), 40)]
    async with engine_stack(tmp_path) as up:
        async with grpc.aio.insecure_channel(up.stack.grpc_address) as channel:
            for request in garbage:
                answer = await _send(channel, CHECK, request)
                assert answer.status.code != 0
                assert answer.denied_response.status.code in {400, 401}
            huge = b"x" * (9 << 20)
            assert await _send(channel, CHECK, huge) is grpc.StatusCode.RESOURCE_EXHAUSTED
            for path in (f"/{AUTHORIZATION}/Chuck", "/a.B/C", "/"):
                assert await _send(channel, path, good) is grpc.StatusCode.UNIMPLEMENTED
            logs = channel.stream_unary(f"/{ACCESS_LOG}/StreamAccessLogs")
            junk = (b"\xff\xff", b"", chance.randbytes(500), good)
            assert await logs(iter(junk), timeout=5) == b""
            assert await up.stack.metric("access_log_entries_total", result="malformed") >= 2
            # The same bytes whole are a pass: the refusals above were about what was wrong.
            assert (await _send(channel, CHECK, good)).WhichOneof("http_response") == "ok_response"
            assert await up.stack.in_flight() == 1
        await up.stack.idle(within_s=4.0)
        await _unharmed(up)


async def test_other_protocols_on_the_grpc_port(tmp_path: Path) -> None:
    """HTTP/1, TLS and noise on the gRPC port neither hang nor disturb anybody."""
    async with engine_stack(tmp_path) as up:
        host, _, port = up.stack.grpc_address.rpartition(":")
        for bytes_in in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
            b"\x00" * 64,
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(bytes_in)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await _unharmed(up)


async def test_odd_requests_through_envoy(tmp_path: Path) -> None:
    """Bad JSON and odd header bytes get an answer in HTTP; the body is the server's to refuse."""
    bodies: list[object] = [
        b"", b"{", b'{"model": "demo"', b"\xff\xfe", b"null", b"[]", b"[" * 5000, b'{"model": 1}',
        {"model": "demo", "messages": "x", "max_tokens": "many"},
        {"model": "demo", "messages": [None], "max_tokens": -1},
        {"model": "demo", "messages": [], "n": 1e308},
        {"model": "d\x00emo\n", "messages": []},
        b'{"model": "demo", "max_tokens": 1' + b"0" * 5000 + b"}",
    ]  # fmt: skip
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        for body in bodies:
            reply = await stack.post(body)
            assert reply.status in {200, 403, 404, 413, 429}, body
            await stack.idle()
        for name, value in {
            "x_request_type": "r\u00e9al",
            "x_gpu_pool": "economy",
            "content_type": "\u00ff\u00fe",
            "inference_header_content_length": "-1",
            "x_forwarded_for": "not, an, address",
            "x_envoy_auth_partial_body": "true",
        }.items():
            reply = await stack.post(CHAT, **{name: value})
            assert reply.status in {200, 400, 429}, name
            await stack.idle()
        assert up.economy.served == 0
        await _unharmed(up)


async def test_a_bad_metrics_page(tmp_path: Path) -> None:
    """A page of nonsense, or an error, is no telemetry: the endpoint is lost, and that is all."""
    pages: list[tuple[str, int]] = [
        ("<html>\x00nope", 200),
        ("", 200),
        ("x 1\n", 500),
        ("vllm:num_requests_running 1\n" + "x" * (5 << 20), 200),
    ]
    async with engine_stack(tmp_path, metrics_source={"stale_after": "500ms"}) as up:
        stack = up.stack

        async def lost() -> bool:
            return bool((await stack.status())["pools"]["primary"]["telemetry_lost"])

        for page, status in pages:
            up.primary.page, up.primary.metrics_status = page, status
            await eventually(lost, within_s=10)
            # A medium priority is let in blind, under the cap of our own work.
            assert (await stack.post()).status == 200
            await stack.idle()
            up.primary.page, up.primary.metrics_status = None, 200
            await stack.fresh()
        await _unharmed(up)
