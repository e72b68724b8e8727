"""gRPC inference through the real Envoy to a server that speaks only HTTP/2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.support.envoy import start_envoy
from tests.support.ports import free_port
from tests.support.settings import make_edge, make_pool, make_settings
from tests.support.stub_gate import StubGate, allow

pytestmark = pytest.mark.slow
SERVICE = "inference.GRPCInferenceService"
SEEN_BYTES = 4096
LARGE = bytes(range(256)) * 800


async def _echo(request: bytes, _: object) -> bytes:
    return request


async def _echo_each(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def _server(address: str) -> grpc.aio.Server:
    server = grpc.aio.server()
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(_echo),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(_echo_each),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(address)
    return server


async def test_unary_and_streamed_inference_reach_an_http2_pool(tmp_path: Path) -> None:
    """O-18: a pool marked http2 serves unary calls, of which the gate is shown the message, and
    streams whose answers come before their end, of which it is shown none."""
    address = f"127.0.0.1:{free_port()}"
    server = _server(address)
    await server.start()
    pool = replace(make_pool("triton", address), http2=True)
    edge = make_edge(max_body_bytes=SEEN_BYTES)
    async with StubGate() as gate:
        gate.answer = lambda _: allow({"x-gpu-pool": "triton", "x-gpu-endpoint": address})
        envoy = start_envoy(make_settings((pool,), grpc_listen=gate.address, edge=edge), tmp_path)
        try:
            async with grpc.aio.insecure_channel(envoy.url.removeprefix("http://")) as channel:
                unary = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                assert await unary(b"tensor", timeout=5) == b"tensor"
                assert await unary(LARGE, timeout=5) == LARGE
                stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(timeout=5)
                await stream.write(b"one")
                assert await stream.read() == b"one"
                await stream.write(b"two")
                assert await stream.read() == b"two"
                await stream.done_writing()
        finally:
            envoy.process.stop()
    await server.stop(None)
    # Of a unary call there is the frame, or its beginning; of a stream there is nothing.
    frame = b"\x00" + len(LARGE).to_bytes(4, "big") + LARGE
    assert [(check.path, check.raw_body) for check in gate.checks] == [
        (f"/{SERVICE}/ModelInfer", b"\x00\x00\x00\x00\x06tensor"),
        (f"/{SERVICE}/ModelInfer", frame[:SEEN_BYTES]),
        (f"/{SERVICE}/ModelStreamInfer", b""),
    ]
