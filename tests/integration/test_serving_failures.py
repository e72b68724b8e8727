"""The server killed, frozen, replaced: what Envoy's clients see, and what is left over."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import eventually
from tests.support.stack import Engines, Reply, engine_stack, kill, send_signal

pytestmark = pytest.mark.slow


def _served(up: Engines) -> int:
    return up.primary.served + up.economy.served


def _holds(up: Engines) -> int:
    return up.primary.active + up.economy.active


async def test_killed_and_closed(tmp_path: Path) -> None:
    """Failing closed: without a server 503 and Retry-After, nothing passes; then it is back, and
    what still runs of the old server's work counts as somebody else's."""
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        up.primary.gate.clear()
        running = [asyncio.create_task(stack.post()) for _ in range(3)]
        await eventually(lambda: up.primary.active == 3)
        await kill(stack.gate)
        refused = await asyncio.gather(*(stack.post() for _ in range(20)))
        assert {reply.status for reply in refused} == {503}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert _holds(up) == 3
        await stack.start_gate()
        await stack.fresh()
        assert await stack.in_flight() == 0
        assert await stack.metric("foreign_load", pool="primary") == 3

        async def answered() -> bool:
            return (await stack.post()).status == 200

        # Three of four slots are taken by what the new server never admitted.
        up.economy.gate.clear()
        more = [asyncio.create_task(stack.post()) for _ in range(3)]
        await eventually(lambda: _holds(up) == 6, within_s=10)
        assert (up.primary.active, up.economy.active) == (4, 2)
        up.primary.gate.set()
        up.economy.gate.set()
        assert [reply.status for reply in await asyncio.gather(*running, *more)] == [200] * 6
        await eventually(answered, within_s=10)
        await stack.idle()


async def test_killed_and_open(tmp_path: Path) -> None:
    """Failing open: requests pass, but never more at once than the pools' slots."""
    async with engine_stack(tmp_path, edge={"failure_mode": "allow"}) as up:
        stack = up.stack
        await kill(stack.gate)
        up.primary.gate.clear()
        tasks = [asyncio.create_task(stack.post()) for _ in range(24)]
        await eventually(lambda: sum(task.done() for task in tasks) == 20, within_s=10)
        up.primary.gate.set()
        replies = await asyncio.gather(*tasks)
        assert Counter(reply.status for reply in replies) == {200: 4, 503: 20}
        assert up.primary.peak <= 4
        assert up.economy.peak <= 4
        passed = next(json.loads(reply.text) for reply in replies if reply.status == 200)
        assert passed["headers"]["x-envoy-auth-failure-mode-allowed"] == "true"
        await stack.start_gate()

        async def decided() -> bool:
            seen = json.loads((await stack.post()).text).get("headers", {})
            return "x-gpu-admission" in seen

        await eventually(decided, within_s=10)
        await stack.idle()


@pytest.mark.parametrize("failure_mode", ["deny", "allow"])
@pytest.mark.parametrize("frozen_s", [0.3, 0.5, 1.0])
async def test_frozen_and_thawed(tmp_path: Path, frozen_s: float, failure_mode: str) -> None:
    """A server that stops and goes on leaves no booking for requests that Envoy gave up on."""
    # The lease is long, so that it cannot be what ends a booking.
    changes: dict[str, Any] = {"edge": {"failure_mode": failure_mode}, "server": {"lease": "60s"}}
    async with engine_stack(tmp_path, **changes) as up:
        stack = up.stack
        await asyncio.gather(*(stack.post() for _ in range(4)))
        await stack.idle()
        before, decided = _served(up), await stack.metric("decisions_total")
        send_signal(stack.gate, signal.SIGSTOP)
        started = time.monotonic()
        try:
            tasks = [asyncio.create_task(stack.post()) for _ in range(12)]
            await asyncio.sleep(frozen_s)
        finally:
            send_signal(stack.gate, signal.SIGCONT)
        replies: list[Reply] = await asyncio.gather(*tasks)
        assert time.monotonic() - started < frozen_s + 5
        statuses = Counter(reply.status for reply in replies)
        await stack.idle(within_s=3.0)
        await stack.fresh()
        now_decided = await stack.metric("decisions_total") - decided
        let_in = sum(
            [await stack.metric("decisions_total", verdict=v) for v in ("admit", "demote")]
        )
        gave_up = 503 if failure_mode == "deny" else 200
        if frozen_s < 0.4:  # Envoy still waited
            assert now_decided == 12
            assert set(statuses) <= {200, 429}
            assert statuses[200] >= 1
        elif frozen_s > 0.8:
            assert set(statuses) <= {gave_up, 503}
            assert statuses[gave_up] >= 1
            assert let_in == 4
        # Just when Envoy gives up either may win, request by request.
        assert set(statuses) <= {200, 429, 503}
        assert _served(up) - before == statuses[200]
        assert await stack.metric("reservations_expired_total") == 0
        assert (await stack.post()).status == 200
        await stack.idle()


async def test_rolling_handover(tmp_path: Path) -> None:
    """A second server takes over the ports while the first drains: nobody notices."""
    async with engine_stack(tmp_path, server={"drain": "3s"}) as up:
        stack = up.stack
        old = stack.gate
        replies: list[Reply] = []
        tasks: list[asyncio.Task[None]] = []

        async def one() -> None:
            replies.append(await stack.post())

        async def steady() -> None:
            while True:
                tasks.append(asyncio.create_task(one()))
                await asyncio.sleep(0.02)

        load = asyncio.create_task(steady())
        try:
            await eventually(lambda: len(replies) > 20, within_s=10)
            await stack.start_gate()
            send_signal(old, signal.SIGTERM)
            assert await asyncio.to_thread(old.wait, 10.0) == 0
            seen = len(replies)
            await eventually(lambda: len(replies) > seen + 50, within_s=10)
        finally:
            load.cancel()
        await asyncio.gather(*tasks)
        assert Counter(reply.status for reply in replies) == {200: len(replies)}
        assert "Traceback" not in old.output()
        await stack.idle(within_s=4.0)
