"""Where the real Envoy sends a request, and which headers decide it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.edge import named, running_edge
from tests.support.stub_gate import allow, deny

pytestmark = pytest.mark.slow

FORGED = {
    "x-gpu-pool": "beta",
    "X-GPU-Endpoint": "127.0.0.1:1",
    "x-gpu-anything": "1",
    "x-envoy-auth-partial-body": "true",
    "x-envoy-auth-failure-mode-allowed": "true",
    "x-envoy-retry-on": "5xx",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-request-id": "chosen-by-the-client",
}


async def test_forged_headers_reach_nobody(tmp_path: Path) -> None:
    """Headers that only the gate or Envoy may set are gone before the gate and the server look."""
    async with running_edge(tmp_path) as edge:
        async with edge.client.post(edge.url, headers=FORGED) as reply:
            answer = await reply.json()
        (check,) = edge.gate.checks
    assert answer["name"] in {"a1", "a2"}
    for seen in (check.headers, answer["headers"]):
        assert not [name for name in seen if name.startswith(("x-gpu-", "x-envoy-retry"))]
        assert "x-envoy-upstream-rq-timeout-ms" not in seen
        assert seen["x-request-id"] != "chosen-by-the-client"
    assert "x-envoy-auth-partial-body" not in check.headers
    assert "x-envoy-auth-failure-mode-allowed" not in answer["headers"]


@pytest.mark.parametrize("forged", [None, "alpha", "beta", "alpha,beta"])
async def test_the_gate_alone_names_the_pool(tmp_path: Path, forged: str | None) -> None:
    """The pool the gate names is the one, whatever the client sent, and arrives as one value."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta", "x-gpu-admission": "demote"})
        headers = {"x-gpu-pool": forged} if forged else {}
        async with edge.client.post(edge.url, headers=headers) as reply:
            answer = await reply.json()
    assert answer["name"] == "b1"
    assert answer["headers"]["x-gpu-pool"] == "beta"
    assert answer["headers"]["x-gpu-admission"] == "demote"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_gate_names_the_endpoint(tmp_path: Path, host: str) -> None:
    """Each endpoint of a pool can be chosen, by address or by name; a gone one is replaced."""
    async with running_edge(tmp_path, host=host) as edge:
        seen: dict[str, set[str]] = {}
        gone = named(edge.upstreams["b1"], host)
        targets = {name: named(edge.upstreams[name], host) for name in ("a1", "a2")}
        for wanted, target in {**targets, "of another pool": gone, "junk": "x"}.items():
            edge.gate.answer = lambda _, to=target: allow(  # type: ignore[misc]  # default binds it
                {"x-gpu-pool": "alpha", "x-gpu-endpoint": to}
            )
            seen[wanted] = set()
            for _ in range(12):
                async with edge.client.post(edge.url) as reply:
                    seen[wanted].add((await reply.json())["name"])
    assert seen["a1"] == {"a1"}
    assert seen["a2"] == {"a2"}
    assert seen["of another pool"] <= {"a1", "a2"}
    assert seen["junk"] <= {"a1", "a2"}


async def test_the_gate_changes_only_its_own_headers(tmp_path: Path) -> None:
    """Whatever the gate answers, credentials and the path stay the client's; x-gpu-* go."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: allow(
            {"x-gpu-pool": "alpha", "authorization": "Bearer other", ":path": "/other"},
            remove=("x-gpu-pool", "x-keep"),
        )
        headers = {"authorization": "Bearer mine", "x-keep": "yes", "cookie": "secret=1"}
        async with edge.client.post(edge.url, headers=headers) as reply:
            answer = await reply.json()
        (check,) = edge.gate.checks
    assert answer["path"] == "/v1/chat/completions"
    assert answer["headers"]["authorization"] == "Bearer mine"
    assert answer["headers"]["x-keep"] == "yes"
    assert "x-gpu-pool" not in answer["headers"]
    assert "cookie" not in check.headers


async def test_the_gate_and_the_server_read_one_path(tmp_path: Path) -> None:
    """Doubled slashes and dot segments are gone before either of the two looks at the path."""
    async with running_edge(tmp_path) as edge:
        address = re.sub("^http://", "", edge.envoy.url)
        path = await _raw_get(address, "/v1//models/../chat/completions?x=a//b")
        (check,) = edge.gate.checks
    assert check.path == "/v1/chat/completions?x=a//b"
    assert path == check.path


async def test_a_preflight_is_the_gates_to_answer(tmp_path: Path) -> None:
    """OPTIONS without a key reaches the gate with what it needs to know a preflight by."""
    async with running_edge(tmp_path) as edge:
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        async with edge.client.options(edge.url, headers=headers) as reply:
            assert reply.status == 200
        (check,) = edge.gate.checks
    assert check.method == "OPTIONS"
    assert check.headers["access-control-request-method"] == "POST"
    assert "authorization" not in check.headers


async def test_websockets_pass_and_are_denied(tmp_path: Path) -> None:
    """An allowed upgrade carries messages both ways; a denied one is a plain 429."""
    async with running_edge(tmp_path) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta"})
        async with edge.client.ws_connect(f"{edge.envoy.url}/ws") as socket:
            await socket.send_str("hello")
            assert await socket.receive_str(timeout=5) == "hello"
        edge.gate.answer = lambda _: deny(429, {}, "busy")
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "sec-websocket-version": "13",
        }
        async with edge.client.get(f"{edge.envoy.url}/ws", headers=upgrade) as reply:
            assert (reply.status, await reply.text()) == (429, "busy")


async def test_health_asks_nobody(tmp_path: Path) -> None:
    """The edge's own health needs no gate, no key and no bucket."""
    async with running_edge(tmp_path) as edge:
        for _ in range(150):
            async with edge.client.get(f"{edge.envoy.url}/healthz") as reply:
                assert reply.status == 200
        assert edge.gate.checks == []


async def _raw_get(address: str, path: str) -> str:
    """GET a path exactly as written and return the path the server saw."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    found = re.search(r'"path": "([^"]*)"', text)
    assert found, text
    return found.group(1)
