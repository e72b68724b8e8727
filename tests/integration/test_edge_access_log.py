"""What the real Envoy tells the gate about requests that it admitted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.edge import running_edge
from tests.support.processes import eventually
from tests.support.settings import make_edge
from tests.support.stub_gate import AccessLogType, HttpAccessLogEntry, allow, deny

pytestmark = pytest.mark.slow


async def test_an_outcome_arrives_within_a_second(tmp_path: Path) -> None:
    """One entry: decision id, status, who served it, what the server said of its load."""
    async with running_edge(tmp_path) as edge:
        target = edge.upstreams["a2"].address
        answer = allow({"x-gpu-pool": "alpha", "x-gpu-endpoint": target}, decision_id="d-1")
        edge.gate.answer = lambda _: answer
        async with edge.client.get(f"{edge.envoy.url}/load") as reply:
            assert reply.status == 200
        await eventually(lambda: bool(edge.gate.decided("d-1")), within_s=1.0)
        (entry,) = edge.gate.decided("d-1")
    assert entry.response is not None
    assert entry.response.response_code == 200
    assert entry.response.response_headers["endpoint-load-metrics"] == "JSON {}"
    common = entry.common_properties
    assert common is not None
    assert common.access_log_type is AccessLogType.DownstreamEnd
    assert common.upstream_cluster == "pool_alpha"
    assert common.upstream_remote_address is not None
    address = common.upstream_remote_address.socket_address
    assert address is not None
    assert f"{address.address}:{address.port_value}" == target


async def test_a_long_request_is_reported_on_the_way(tmp_path: Path) -> None:
    """Periodic entries carry the decision id while a request runs; one last entry ends them."""
    async with running_edge(tmp_path, make_edge(access_log_periodic_s=0.2)) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta"}, decision_id="d-2")
        edge.upstreams["b1"].gate.clear()
        request = asyncio.create_task(edge.client.get(edge.url).__aenter__())
        await eventually(lambda: len(edge.gate.decided("d-2")) >= 2)
        edge.upstreams["b1"].gate.set()
        (await request).close()
        await eventually(lambda: _types(edge.gate.decided("d-2"))[-1] == _END)
        types = _types(edge.gate.decided("d-2"))
    assert set(types[:-1]) == {AccessLogType.DownstreamPeriodic}


async def test_a_client_that_leaves_is_reported(tmp_path: Path) -> None:
    """A request whose caller hung up ends in the log at once, though the server never answered."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta"}, decision_id="d-4")
        upstream = edge.upstreams["b1"]
        upstream.gate.clear()
        request = asyncio.create_task(edge.client.get(edge.url).__aenter__())
        await eventually(lambda: upstream.active == 1)
        request.cancel()
        await eventually(lambda: bool(edge.gate.decided("d-4")), within_s=1.0)
        (entry,) = edge.gate.decided("d-4")
        assert upstream.served == 0
    assert entry.response is not None
    assert entry.response.response_code_details == "downstream_remote_disconnect"
    assert entry.common_properties is not None
    assert entry.common_properties.response_flags is not None
    assert entry.common_properties.response_flags.downstream_connection_termination


async def test_refusals_and_keys_stay_out_of_the_log(tmp_path: Path) -> None:
    """Only admitted requests are reported, and no entry carries the caller's key."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda check: (
            deny(429, {}, "") if check.path == "/refused" else allow(decision_id="d-3")
        )
        for path in ("/refused", "/admitted"):
            headers = {"authorization": "Bearer sk-7f3a-1", "x-api-key": "sk-7f3a-2"}
            async with edge.client.get(f"{edge.envoy.url}{path}", headers=headers) as reply:
                await reply.read()
        await eventually(lambda: bool(edge.gate.decided("d-3")))
        assert len(edge.gate.entries) == 1
        assert b"sk-7f3a" not in edge.gate.log_bytes


_END = AccessLogType.DownstreamEnd


def _types(entries: list[HttpAccessLogEntry]) -> list[AccessLogType]:
    commons = [entry.common_properties for entry in entries]
    return [common.access_log_type for common in commons if common is not None]
