"""What a caller of the real Envoy is told when it is refused, by the gate or by Envoy itself."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import grpc
import pytest

from tests.support.edge import Edge, running_edge
from tests.support.envoy import start_envoy
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.settings import make_edge, make_pool, make_settings
from tests.support.stub_gate import allow, deny, fail
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"


async def _post(edge: Edge) -> tuple[int, dict[str, str], str]:
    async with edge.client.post(edge.url, data=b"{}") as reply:
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return reply.status, headers, await reply.text()


@pytest.mark.parametrize("failure_mode_allow", [False, True])
@pytest.mark.parametrize("status", [401, 413, 429, 503])
async def test_a_denial_arrives_as_the_gate_wrote_it(
    tmp_path: Path, status: int, failure_mode_allow: bool
) -> None:
    """Status, headers and body of a denial are untouched, in either failure mode."""
    body = '{"error":{"code":"over_share"}}'
    written = {"retry-after": "7", "retry-after-ms": "6500", "content-type": "application/json"}
    settings = make_edge(failure_mode_allow=failure_mode_allow)
    async with running_edge(tmp_path, settings) as edge:
        edge.gate.answer = lambda _: deny(status, written, body)
        got_status, headers, text = await _post(edge)
        assert all(upstream.served == 0 for upstream in edge.upstreams.values())
    assert (got_status, text) == (status, body)
    assert {name: headers[name] for name in written} == written


async def test_a_denial_without_body_stays_without(tmp_path: Path) -> None:
    """Envoy adds the Retry-After the gate forgot, and no body of its own."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: deny(429, {}, "")
        status, headers, text = await _post(edge)
    assert (status, headers["retry-after"], text) == (429, "1", "")


async def test_a_dead_server_is_a_readable_503(tmp_path: Path) -> None:
    """A server that refuses connections costs one request one 503, and no second attempt."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta"})
        await edge.upstreams["b1"].stop()
        status, headers, text = await _post(edge)
        stats = await edge.envoy.stats("cluster.pool_beta.upstream_rq_(total|retry)")
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(text)["error"]["code"] == "edge_unavailable"
    assert "refused" not in text
    assert stats.get("cluster.pool_beta.upstream_rq_retry") == 0


@pytest.mark.parametrize(
    ("written", "body"),
    [({"content-type": "application/json", "retry-after": "3"}, "{}"), ({}, "")],
)
async def test_a_fault_of_the_gate_obeys_the_failure_mode(
    tmp_path: Path, written: dict[str, str], body: str
) -> None:
    """An error answer is served as written, or given a readable body; or let pass."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: fail(503, written, body)
        status, headers, text = await _post(edge)
    assert status == 503
    assert headers["retry-after"] == written.get("retry-after", "1")
    assert json.loads(text) == {} if body else "edge_unavailable" in text
    async with running_edge(tmp_path, make_edge(failure_mode_allow=True)) as edge:
        edge.gate.answer = lambda _: fail(503, written, body)
        status, _, text = await _post(edge)
    assert status == 200
    assert json.loads(text)["headers"]["x-envoy-auth-failure-mode-allowed"] == "true"


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE])
async def test_what_a_draining_server_turns_away_is_asked_again(
    tmp_path: Path, code: grpc.StatusCode
) -> None:
    """A server that ends cancels the Checks it has not begun: nobody notices."""
    async with running_edge(tmp_path) as edge:
        edge.gate.turned_away = [code, code]
        status, _, _ = await _post(edge)
        assert not edge.gate.turned_away
    assert status == 200


async def test_no_gate_and_deny(tmp_path: Path) -> None:
    """Without a gate a closed edge says 503, when to come back, and why in JSON."""
    settings = make_settings([make_pool("p", "127.0.0.1:1")], grpc_listen=_nowhere())
    envoy = start_envoy(settings, tmp_path)
    with envoy.process:
        async with aiohttp.ClientSession() as client, client.post(f"{envoy.url}/v1/x") as reply:
            assert reply.status == 503
            assert reply.headers["retry-after"] == "1"
            assert reply.content_type == "application/json"
            assert (await reply.json())["error"]["code"] == "edge_unavailable"


async def test_a_gate_too_slow_is_a_gate_gone(tmp_path: Path) -> None:
    """The check timeout ends a check, and the caller gets the same 503 as without a gate."""
    async with running_edge(tmp_path, make_edge(check_timeout_s=0.1)) as edge:
        never = asyncio.Event()

        async def wait(_: object) -> object:
            await never.wait()
            return allow()

        edge.gate.answer = wait  # type: ignore[assignment]  # never gets as far as an answer
        status, headers, text = await _post(edge)
        never.set()
    assert (status, headers["retry-after"]) == (503, "1")
    assert "edge_unavailable" in text


async def test_no_gate_and_allow_keeps_the_backstop(tmp_path: Path) -> None:
    """Failing open says so to the server, and never runs more at once than the pool's slots."""
    async with Upstream() as upstream:
        upstream.gate.clear()
        pools = [make_pool("p", upstream.address, slots=3)]
        edge = make_edge(failure_mode_allow=True)
        envoy = start_envoy(make_settings(pools, edge=edge, grpc_listen=_nowhere()), tmp_path)
        with envoy.process:
            async with aiohttp.ClientSession() as client:
                tasks = [asyncio.create_task(_send(client, envoy.url)) for _ in range(20)]
                await eventually(lambda: sum(task.done() for task in tasks) == 17)
                tasks += [asyncio.create_task(_send(client, envoy.url)) for _ in range(5)]
                await eventually(lambda: sum(task.done() for task in tasks) == 22)
                upstream.gate.set()
                answers = await asyncio.gather(*tasks)
                # The room is given back.
                late = await _send(client, envoy.url)
    assert upstream.peak == 3
    assert Counter(status for status, _, _ in answers) == {200: 3, 503: 22}
    assert all(headers["retry-after"] == "1" for status, headers, _ in answers if status == 503)
    assert all("edge_unavailable" in text for status, _, text in answers if status == 503)
    assert late[0] == 200
    assert json.loads(late[2])["headers"]["x-envoy-auth-failure-mode-allowed"] == "true"


async def _send(client: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, str], str]:
    async with client.post(f"{url}/v1/x") as reply:
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return reply.status, headers, await reply.text()


async def test_a_throttled_grpc_caller(tmp_path: Path) -> None:
    """The gate's own gRPC status and push-back win over what Envoy makes of a 429."""
    async with running_edge(tmp_path) as edge:
        written = {"grpc-status": "8", "grpc-retry-pushback-ms": "700", "retry-after": "1"}
        edge.gate.answer = lambda _: deny(429, written, "busy")
        error = await _grpc_error(edge, "k")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "('grpc-retry-pushback-ms', '700')" in repr(error.trailing_metadata())


async def test_a_grpc_caller_over_the_edge_bucket(tmp_path: Path) -> None:
    """Envoy's own bucket refuses a gRPC caller with a status that meshes do not retry."""
    settings = make_edge(requests_per_second=0.01, burst=1)
    async with running_edge(tmp_path, settings) as edge:
        edge.gate.answer = lambda _: deny(403, {"grpc-status": "7"}, "")
        first, second = await _grpc_error(edge, "k"), await _grpc_error(edge, "k")
    assert first.code() is grpc.StatusCode.PERMISSION_DENIED
    assert second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "{" not in (second.details() or "")


async def _grpc_error(edge: Edge, key: str) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(edge.envoy.url.removeprefix("http://")) as channel:
        method = channel.unary_unary(GRPC_PATH, None, None)
        call = method(b"x", metadata=(("x-api-key", key),), timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    return caught.value


def _nowhere() -> str:
    return f"127.0.0.1:{free_port()}"
