"""The admin pages, readiness, and changing the configuration under traffic."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.processes import eventually
from tests.support.stack import CHAT, KEYS, Reply, digest, engine_stack, send_signal

pytestmark = pytest.mark.slow


async def test_pages(tmp_path: Path) -> None:
    """Every page answers, and odd questions get an error of the client, not of the server."""
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        await stack.post()
        await stack.idle()
        assert await stack.admin("/healthz") == (200, "ok\n")
        assert await stack.admin("/readyz") == (200, "ready\n")
        status, metrics = await stack.admin("/metrics")
        assert status == 200
        assert 'ext_authz_decisions_total{pool="primary"' in metrics
        telemetry = json.loads((await stack.admin("/debug/telemetry"))[1])
        primary = telemetry["pools"]["primary"][up.primary.address]
        assert primary["state"] == "fresh"
        running = primary["signals"]["running"]
        assert (running["value"], running["source"]) == (0, "scrape")
        assert 0 <= running["age_s"] < 3
        assert telemetry["sources"][f"scrape/{up.primary.address}"]["reports"] > 0
        page = await stack.status()
        assert page["pools"]["primary"]["telemetry_lost"] is False
        assert len(page["fingerprint"]) == 64
        for odd in ("/", "/debug", "/debug/decisions?count=x", "/debug/decisions?count=0"):
            assert (await stack.admin(odd))[0] in {400, 404}
        for odd in ("-1", "1e3", "%00", "9" * 400, "000000001" + "9" * 5000, "\u0663", "1001"):
            assert (await stack.admin(f"/debug/decisions?count={odd}"))[0] == 400
        for odd in ("nobody", "%00", "x" * 4000, "%2e%2e", "a%2Fb"):
            assert (await stack.admin(f"/debug/explain/{odd}"))[0] == 404
        async with stack.client.post(f"{stack.admin_url}/metrics") as reply:
            assert reply.status == 405
        assert "Traceback" not in stack.gate.output()


async def test_not_ready_while_draining(tmp_path: Path) -> None:
    """From SIGTERM on readiness is false, while health still answers; then it ends with 0."""
    async with engine_stack(tmp_path, server={"drain": "3s"}) as up:
        stack = up.stack
        # A stream that its caller keeps open, so that draining takes as long as it may.

        async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert await watch.read() == b"\x08\x01"
            send_signal(stack.gate, signal.SIGTERM)
            assert await watch.read() == b"\x08\x02"
            assert await stack.admin("/readyz") == (503, "draining\n")
            assert (await stack.admin("/healthz"))[0] == 200
            watch.cancel()
        assert await asyncio.to_thread(stack.gate.wait, 6.0) == 0


async def test_reload_under_traffic(tmp_path: Path) -> None:
    """Weights and tenants change, a broken file changes nothing, and no request is lost."""
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        body = stack.config["admission_control"]
        replies: list[Reply] = []

        async def steady() -> None:
            while True:
                replies.append(await stack.post())
                await asyncio.sleep(0.02)

        load = asyncio.create_task(steady())
        up.economy.gate.clear()
        try:
            first = (await stack.status())["fingerprint"]
            body["tenants"][0]["weight"] = 3
            body["tenants"].append({"name": "new", "api_key_sha256": [digest("sk-new")]})
            stack.write_config()
            await eventually(lambda: _reloads(stack, "loaded", 1))
            second = (await stack.status())["fingerprint"]
            assert second != first
            # Exactly one configuration runs, and its hash and age are metrics (O-25).
            assert await stack.metric("config_info") == 1
            assert await stack.metric("config_info", fingerprint=second) == 1
            assert 0 <= await stack.metric("config_age_seconds") < 10
            assert (await stack.post(key="sk-new")).status == 200
            good = stack.path.read_text()
            stack.path.write_text(good.replace("weight: 3", "weight: -3"))
            await eventually(lambda: _reloads(stack, "refused", 1))
            assert (await stack.status())["fingerprint"] == second
            assert "last good one stays" in stack.gate.output()
            assert (await stack.post(key="sk-new")).status == 200
            body["tenants"].pop()
            stack.write_config()
            await eventually(lambda: _reloads(stack, "loaded", 2))
            assert (await stack.post(key="sk-new")).status == 401
            assert (await stack.post(key=KEYS["beta"])).status == 200
        finally:
            load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        assert len(replies) > 20
        assert Counter(reply.status for reply in replies) == {200: len(replies)}
        await stack.idle()
        # The series of a tenant that is gone are gone.
        assert await stack.metric("decisions_total", tenant="new") == 0
        assert await stack.metric("decisions_total", tenant="acme") >= len(replies)


async def _reloads(stack: Any, result: str, wanted: int) -> bool:
    return bool(await stack.metric("config_reloads_total", result=result) >= wanted)


async def test_work_in_flight_survives_a_reload(tmp_path: Path) -> None:
    """What runs while the configuration changes is still counted, and settled, once."""
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        up.primary.gate.clear()
        tasks = [asyncio.create_task(stack.post()) for _ in range(3)]
        await eventually(lambda: up.primary.active == 3)
        stack.config["admission_control"]["pools"][0]["max_concurrency"] = 3
        stack.write_config()
        await eventually(lambda: _reloads(stack, "loaded", 1))
        assert await stack.in_flight() == 3
        # No slot is left in the pool as it is now.
        demoted = json.loads((await stack.post(CHAT)).text)
        assert demoted["name"] == "economy"
        up.primary.gate.set()
        assert [reply.status for reply in await asyncio.gather(*tasks)] == [200] * 3
        await stack.idle()
        assert await stack.metric("access_log_entries_total", result="settled") == 4
        assert await stack.metric("in_flight", pool="primary") == 0
