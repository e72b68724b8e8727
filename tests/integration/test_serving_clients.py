"""Clients that leave: whatever was booked for them is free again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.processes import eventually
from tests.support.stack import CHAT, KEYS, Stack, engine_stack, send_signal

pytestmark = pytest.mark.slow

# So long that it cannot be what ends a booking.
LONG_LEASE: dict[str, Any] = {"server": {"lease": "60s"}}


async def _post_alone(stack: Stack) -> None:
    """A request on a connection of its own, which closes with it."""
    headers = {"authorization": f"Bearer {KEYS['acme']}"}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{stack.envoy.url}/v1/chat/completions", json=CHAT, headers=headers) as answer,
    ):
        await answer.read()


async def _leave(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_left_during_the_response(tmp_path: Path) -> None:
    """A client that goes while the model works frees its slot, by the access log."""
    async with engine_stack(tmp_path, **LONG_LEASE) as up:
        up.primary.gate.clear()
        tasks = [asyncio.create_task(_post_alone(up.stack)) for _ in range(3)]
        await eventually(lambda: up.primary.active == 3)
        assert await up.stack.in_flight() == 3
        for task in tasks:
            await _leave(task)
        await up.stack.idle(within_s=2.0)
        assert await up.stack.metric("access_log_entries_total", result="settled") == 3
        assert await up.stack.metric("reservations_expired_total") == 0


async def test_left_during_the_check(tmp_path: Path) -> None:
    """A client that goes while the gate thinks leaves no booking, whichever came first."""
    async with engine_stack(tmp_path, **LONG_LEASE) as up:
        stack = up.stack
        for _ in range(3):
            send_signal(stack.gate, signal.SIGSTOP)
            try:
                tasks = [asyncio.create_task(_post_alone(stack)) for _ in range(4)]
                asked = await stack.envoy.stats("cluster.ext_authz.upstream_rq_active$")
                await eventually(lambda: _active(stack, 4))
                assert asked.keys() == {"cluster.ext_authz.upstream_rq_active"}
                for task in tasks:
                    await _leave(task)
            finally:
                send_signal(stack.gate, signal.SIGCONT)
            await stack.idle(within_s=2.0)
        assert up.primary.served == 0
        await stack.post()
        await stack.idle()
        assert await stack.metric("reservations_expired_total") == 0


async def _active(stack: Stack, wanted: int) -> bool:
    stats = await stack.envoy.stats("cluster.ext_authz.upstream_rq_active$")
    return stats["cluster.ext_authz.upstream_rq_active"] == wanted


async def test_a_booking_whose_end_is_never_told(tmp_path: Path) -> None:
    """Envoy dies with requests in flight: their leases end, and are counted."""
    async with engine_stack(tmp_path) as up:
        stack = up.stack
        up.primary.gate.clear()
        tasks = [asyncio.create_task(_post_alone(stack)) for _ in range(3)]
        await eventually(lambda: up.primary.active == 3)
        send_signal(stack.envoy.process, signal.SIGKILL)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await stack.in_flight() == 3
        await stack.idle(within_s=5.0)
        assert await stack.metric("reservations_expired_total") == 3
