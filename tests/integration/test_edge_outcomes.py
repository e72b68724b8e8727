"""What is read of the real Envoy's entries: when requests ended, and how gRPC calls did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import grpc
import pytest

from ext_authz.serving.codec import Codec
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.settlement import ended_at_s
from tests.support.access_log_entries import WIRE
from tests.support.edge import running_edge
from tests.support.envoy import start_envoy
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.settings import make_edge, make_pool, make_settings
from tests.support.stub_gate import CheckResponse, SeenCheck, StubGate, allow

pytestmark = pytest.mark.slow
SERVICE = "inference.GRPCInferenceService"


def final_entry(gate: StubGate, decision_id: str) -> AccessLogEntry:
    """The last entry of this decision, as the gate reads it."""
    entry = Codec(WIRE).decode_entry(bytes(gate.decided(decision_id)[-1]))
    assert entry is not None
    assert entry.final
    return entry


async def test_the_end_is_known_however_late_it_is_told(tmp_path: Path) -> None:
    """A slow upload, a slow answer, a log that is flushed once a second: the end is found to
    within what a loaded machine needs to pass an answer on, while the entry comes later."""
    booked_s: dict[str, float] = {}
    ids = count(1)
    async with running_edge(tmp_path, make_edge(access_log_flush_s=1.0)) as edge:

        def answer(_: SeenCheck) -> CheckResponse:
            id_ = f"d-{next(ids)}"
            booked_s[id_] = time.monotonic()
            return allow({"x-gpu-pool": "beta"}, decision_id=id_)

        edge.gate.answer = answer

        async def upload() -> AsyncIterator[bytes]:
            yield b'{"model":'
            await asyncio.sleep(0.4)
            yield b'"m"}'

        edge.upstreams["b1"].gate.clear()
        asyncio.get_running_loop().call_later(0.7, edge.upstreams["b1"].gate.set)
        async with edge.client.post(edge.url, data=upload()) as reply:
            await reply.read()
        ended_s = time.monotonic()
        await eventually(lambda: bool(edge.gate.decided("d-1")))
        now = time.monotonic()
        entry = final_entry(edge.gate, "d-1")
    assert entry.sent_after_s is not None
    assert entry.sent_after_s >= 0.4
    found_s = ended_at_s(entry, booked_s["d-1"], now)
    assert found_s == pytest.approx(ended_s, abs=0.1)
    assert found_s < now


class Model:
    """A gRPC server whose calls end as their request says."""

    async def infer(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if request == b"full":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        if request == b"late":
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "late")
        return request

    async def stream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
            if request == b"break":
                await context.abort(grpc.StatusCode.INTERNAL, "broken")

    def server(self, address: str) -> grpc.aio.Server:
        server = grpc.aio.server()
        methods = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self.stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        server.add_insecure_port(address)
        return server


async def test_how_grpc_calls_ended(tmp_path: Path) -> None:
    """HTTP says 200 of all of them: the status is in the trailers, or among the headers where a
    call fails before it answers; a deadline that was over is a timeout."""
    address = f"127.0.0.1:{free_port()}"
    server = Model().server(address)
    await server.start()
    pool = replace(make_pool("triton", address), http2=True)
    ids = count(1)
    async with StubGate() as gate:
        gate.answer = lambda _: allow(
            {"x-gpu-pool": "triton", "x-gpu-endpoint": address}, decision_id=f"d-{next(ids)}"
        )
        envoy = start_envoy(make_settings((pool,), grpc_listen=gate.address), tmp_path)
        try:
            async with grpc.aio.insecure_channel(envoy.url.removeprefix("http://")) as channel:
                unary = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                assert await unary(b"fine", timeout=5) == b"fine"
                for fault in (b"full", b"late"):
                    with pytest.raises(grpc.aio.AioRpcError):
                        await unary(fault, timeout=5)
                call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(timeout=5)
                await call.write(b"break")
                with pytest.raises(grpc.aio.AioRpcError):
                    _ = [answer async for answer in call]
            await eventually(lambda: bool(gate.decided("d-4")))
        finally:
            envoy.process.stop()
        entries = [final_entry(gate, f"d-{number}") for number in range(1, 5)]
    await server.stop(None)
    assert [entry.status for entry in entries] == [200] * 4
    assert [entry.grpc_status for entry in entries] == [0, 8, 4, 13]
    assert [entry.timed_out for entry in entries] == [False, False, True, False]
