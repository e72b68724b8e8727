"""One request from the client through Envoy and the server to a model server and back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.processes import eventually
from tests.support.stack import CHAT, KEYS, Stack, digest, engine_stack

pytestmark = pytest.mark.slow


def _error(text: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(text)["error"]
    return body


async def test_admitted_then_settled_then_explained(tmp_path: Path) -> None:
    """An admitted request is routed, booked, settled once by the access log, and on record."""
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        up.primary.gate.clear()
        waiting = asyncio.create_task(stack.post())
        await eventually(lambda: up.primary.active == 1)
        assert await stack.in_flight() == 1
        assert await stack.metric("in_flight", pool="primary") == 1
        up.primary.gate.set()
        reply = await waiting
        seen = json.loads(reply.text)
        assert (reply.status, seen["name"]) == (200, "primary")
        assert seen["headers"]["x-gpu-pool"] == "primary"
        assert seen["headers"]["x-gpu-endpoint"] == up.primary.address
        assert seen["headers"]["x-gpu-admission"] == "admit"
        await stack.idle(within_s=1.0)
        assert await stack.metric("access_log_entries_total", result="settled") == 1
        assert await stack.metric("access_log_entries_total", result="unknown") == 0
        assert await stack.metric("endpoint_mismatches_total") == 0
        entry = json.loads((await stack.admin("/debug/decisions?count=1"))[1])[0]
        assert entry["decision"]["verdict"] == "admit"
        told = await asyncio.to_thread(_explain, stack, entry["request_id"])
        assert told.returncode == 0
        assert "tenant acme" in told.stdout
        assert f"sent to primary at {up.primary.address}" in told.stdout
        missing = await asyncio.to_thread(_explain, stack, "nobody-asked-this")
        assert missing.returncode == 1
        assert "no such decision" in missing.stderr


def _explain(stack: Stack, request_id: str) -> subprocess.CompletedProcess[str]:
    address = stack.admin_url.removeprefix("http://")
    command = [sys.executable, "-m", "ext_authz", "explain", request_id, "--admin", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


async def test_what_does_not_fit_is_demoted_then_refused(tmp_path: Path) -> None:
    """The fifth to eighth request go to the economy pool, the ninth is told when to return."""
    async with engine_stack(tmp_path) as up:
        up.primary.gate.clear()
        up.economy.gate.clear()
        tasks = []
        for number in range(8):
            tasks.append(asyncio.create_task(up.stack.post()))
            await eventually(lambda n=number: up.primary.active + up.economy.active == n + 1)
        assert (up.primary.active, up.economy.active) == (4, 4)
        refused = await up.stack.post()
        up.primary.gate.set()
        up.economy.gate.set()
        replies = await asyncio.gather(*tasks)
        await up.stack.idle()
    assert [reply.status for reply in replies] == [200] * 8
    demoted = [json.loads(r.text) for r in replies if json.loads(r.text)["name"] == "economy"]
    assert {d["headers"]["x-gpu-admission"] for d in demoted} == {"demote"}
    assert all(d["headers"]["x-gpu-reason"] for d in demoted)
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert int(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"])
    assert refused.headers["x-envoy-ratelimited"] == "true"
    assert refused.headers["content-type"] == "application/json"
    assert _error(refused.text)["code"] == refused.headers["x-gpu-reason"]


async def test_refusals_have_the_callers_shape(tmp_path: Path) -> None:
    """Unknown key, forbidden and unknown model, too large, over a rate: each as OpenAI has it."""
    tenants = [
        {"name": "acme", "api_key_sha256": [digest(KEYS["acme"])]},
        {
            "name": "beta",
            "api_key_sha256": [digest(KEYS["beta"])],
            "models": ["demo"],
            "limits": {"requests_per_second": 0.1, "burst": 1},
        },
    ]
    huge = {**CHAT, "max_tokens": 1_000_000}
    async with engine_stack(tmp_path, tenants=tenants) as up:
        stack = up.stack
        # First: over its rate a tenant is refused before anybody reads what it asks for.
        forbidden = await stack.post({**CHAT, "model": "other"}, key=KEYS["beta"])
        assert (await stack.post(key=KEYS["beta"])).status == 200
        replies = {
            401: await stack.post(key="sk-nobody-has-this"),
            403: forbidden,
            404: await stack.post({**CHAT, "model": "other"}),
            413: await stack.post(huge),
            429: await stack.post(key=KEYS["beta"]),
        }
        served = up.primary.served + up.economy.served
        await stack.idle()
    assert served == 1
    reasons = {status: _error(reply.text)["code"] for status, reply in replies.items()}
    assert reasons == {
        401: "unknown_key",
        403: "model_not_allowed",
        404: "unknown_model",
        413: "too_large",
        429: "request_rate",
    }
    for status, reply in replies.items():
        assert reply.status == status
        assert reply.headers["content-type"] == "application/json"
        assert ("retry-after" in reply.headers) == (status == 429)
        assert (reply.headers.get("x-should-retry") == "false") == (status != 429)
    assert replies[401].headers["www-authenticate"].startswith("Bearer")
    # One request in ten seconds: the hint is the truth, plus jitter.
    assert 9 <= int(replies[429].headers["retry-after"]) <= 60
    assert replies[429].headers["ratelimit-policy"] == '"requests";q=1;w=10'


async def test_a_refused_grpc_caller(tmp_path: Path) -> None:
    """A gRPC caller over its limit gets RESOURCE_EXHAUSTED and a push-back, not a 429."""
    tenants = [
        {
            "name": "acme",
            "api_key_sha256": [digest(KEYS["acme"])],
            "limits": {"requests_per_second": 0.1, "burst": 1},
        }
    ]
    async with engine_stack(tmp_path, tenants=tenants) as up:
        assert (await up.stack.post()).status == 200
        address = up.stack.envoy.url.removeprefix("http://")
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            metadata = (("authorization", f"Bearer {KEYS['acme']}"),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"x", metadata=metadata, timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await call(b"x", metadata=(("x-api-key", "sk-no"),), timeout=5)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(caught.value.trailing_metadata() or ())["grpc-retry-pushback-ms"]) > 1000
    assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
