"""Requests that wait at the gate, and those that are asked for less, through the real Envoy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from tests.support.engine import Engine
from tests.support.processes import eventually
from tests.support.stack import Reply, Stack, make_config, running_stack

pytestmark = pytest.mark.slow

LIMIT_S = 1.5


@asynccontextmanager
async def full_stack(
    tmp_path: Path,
) -> AsyncIterator[tuple[Stack, Engine, list[asyncio.Task[Reply]]]]:
    """One pool of four slots that has learned how long requests take, each slot now taken until
    the engine's gate is set; one more request may wait."""
    hold = {"limit": f"{LIMIT_S}s", "max_waiting": 1}
    async with Engine("primary") as engine:
        config = make_config([engine.address], hold=hold)
        async with running_stack(tmp_path, config) as stack:
            try:
                for _ in range(3):
                    assert (await stack.post()).status == 200
                await stack.idle()
                engine.gate.clear()
                tasks = [asyncio.create_task(stack.post()) for _ in range(4)]
                await eventually(lambda: engine.active == 4)
                yield stack, engine, tasks
            finally:
                engine.gate.set()


async def waiting(stack: Stack) -> int:
    return int((await stack.status())["pools"]["primary"]["waiting"])


async def one_waits(stack: Stack) -> asyncio.Task[Reply]:
    """A fifth request, once it waits."""
    task = asyncio.create_task(stack.post())

    async def seen() -> bool:
        return await waiting(stack) == 1

    await eventually(seen)
    return task


async def test_one_is_held_and_served_and_one_too_many_is_refused_at_once(tmp_path: Path) -> None:
    """The held one has its 200 as soon as a slot is free, later than it came; who finds the queue
    full is told when to come back without waiting."""
    async with full_stack(tmp_path) as (stack, engine, tasks):
        held = await one_waits(stack)
        began_s = monotonic()
        refused = await stack.post()
        took_s = monotonic() - began_s
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert took_s < 0.5 * LIMIT_S
        assert not held.done()
        assert engine.active == 4
        engine.gate.set()
        replies = await asyncio.gather(held, *tasks)
        assert [reply.status for reply in replies] == [200] * 5
        assert engine.peak == 4
        await stack.idle()
        assert await waiting(stack) == 0
        assert await stack.metric("hold_seconds_count", pool="primary", result="dispatched") == 1
        waited_s = await stack.metric("hold_seconds_sum", pool="primary")
        assert 0.0 < waited_s < LIMIT_S
        assert await stack.metric("access_log_entries_total", result="settled") == 8
        told = json.loads((await stack.admin("/debug/decisions?count=10"))[1])
        (one,) = [each["decision"] for each in told if each["decision"]["held"]]
        assert one["verdict"] == "admit"
        assert one["held"]["seconds"] == pytest.approx(waited_s)


async def test_who_waits_in_vain_is_told_in_time_and_who_leaves_is_forgotten(
    tmp_path: Path,
) -> None:
    """The answer is ours, before Envoy's timeout; the place of one that left is free again."""
    async with full_stack(tmp_path) as (stack, engine, tasks):
        leaves = await one_waits(stack)
        leaves.cancel()

        async def gone() -> bool:
            return await waiting(stack) == 0

        await eventually(gone)
        began_s = monotonic()
        late = await (await one_waits(stack))
        took_s = monotonic() - began_s
        assert (late.status, late.headers["x-gpu-reason"]) == (429, "at_capacity")
        assert took_s >= LIMIT_S - 0.1
        assert engine.active == 4
        engine.gate.set()
        assert [reply.status for reply in await asyncio.gather(*tasks)] == [200] * 4
        await stack.idle()
        for result in ("left", "late"):
            assert await stack.metric("hold_seconds_count", pool="primary", result=result) == 1


async def test_the_server_is_asked_for_less(tmp_path: Path) -> None:
    """Of what is demoted, server and caller are told; nobody can say it in our place."""
    async with Engine("primary") as primary, Engine("economy") as economy:
        config = make_config([primary.address], [economy.address])
        config["admission_control"]["pools"][1]["degrade"] = {"max_tokens": 64}
        async with running_stack(tmp_path, config) as stack:
            primary.gate.clear()
            forged = {"x_gpu_max_tokens": "9999"}
            tasks = [asyncio.create_task(stack.post(**forged)) for _ in range(4)]
            await eventually(lambda: primary.active == 4)
            demoted = await stack.post(**forged)
            primary.gate.set()
            admitted = await asyncio.gather(*tasks)
            await stack.idle()
    seen = json.loads(demoted.text)
    assert (demoted.status, seen["name"]) == (200, "economy")
    assert seen["headers"]["x-gpu-max-tokens"] == "64"
    assert demoted.headers["x-gpu-max-tokens"] == "64"
    for reply in admitted:
        assert "x-gpu-max-tokens" not in json.loads(reply.text)["headers"]
        assert "x-gpu-max-tokens" not in reply.headers
