"""Endpoints that come and go while traffic flows, through the real Envoy."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.engine import Engine
from tests.support.processes import eventually
from tests.support.stack import Reply, Stack, make_config, running_stack

pytestmark = pytest.mark.slow


def write_targets(path: Path, *engines: Engine) -> None:
    """A list of targets, as Prometheus reads it, replaced as a whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps([{"targets": [engine.address for engine in engines]}]))
    partial.replace(path)


async def states(stack: Stack) -> dict[str, str]:
    """The endpoints of the pool, and whether they have telemetry."""
    endpoints: dict[str, str] = (await stack.status())["pools"]["primary"]["endpoints"]
    return endpoints


async def fresh(stack: Stack, *engines: Engine) -> None:
    """Wait until the pool has just these endpoints, with telemetry."""
    wanted = {engine.address: "fresh" for engine in engines}

    async def reached() -> bool:
        return await states(stack) == wanted

    await eventually(reached, within_s=5.0)


async def steady(stack: Stack, sent: list[asyncio.Task[Reply]]) -> None:
    """Requests one after the other, none of which waits for another."""
    while True:
        sent.append(asyncio.create_task(stack.post()))
        await asyncio.sleep(0.03)


async def test_a_target_file_gains_and_loses_an_endpoint(tmp_path: Path) -> None:
    """No request is lost on the way: a new endpoint takes its part, work on one that goes is
    settled when it ends, and a file that cannot be read changes nothing."""
    targets = tmp_path / "targets.json"
    async with AsyncExitStack() as exits:
        first, second = [await exits.enter_async_context(Engine(n)) for n in ("first", "second")]
        write_targets(targets, first)
        config = make_config([])
        pool = config["admission_control"]["pools"][0]
        del pool["endpoints"]
        # So many that a machine that stands still for a moment has no request refused.
        pool["max_concurrency"] = 200
        pool["discover"] = {"targets_file": "targets.json", "interval": "100ms"}
        stack = await exits.enter_async_context(running_stack(tmp_path, config))
        await fresh(stack, first)
        sent: list[asyncio.Task[Reply]] = []
        load = asyncio.create_task(steady(stack, sent))
        try:
            await eventually(lambda: first.served > 5)
            # Work that is still there when its endpoint has gone.
            first.gate.clear()
            await eventually(lambda: first.active > 0)
            write_targets(targets, first, second)
            await fresh(stack, first, second)
            await eventually(lambda: second.served > 5, within_s=15.0)
            on_first = first.active
            write_targets(targets, second)
            await fresh(stack, second)
            assert first.active == on_first
            assert await stack.in_flight() >= on_first
            served = second.served
            await eventually(lambda: second.served > served + 5)
            targets.write_text("[{")
            await eventually(lambda: "no answer: targets.json is not JSON" in stack.gate.output())
            assert await states(stack) == {second.address: "fresh"}
        finally:
            first.gate.set()
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            replies = await asyncio.gather(*sent)
        assert Counter(reply.status for reply in replies) == {200: len(sent)}
        await stack.idle()
        assert await stack.metric("endpoint_mismatches_total") == 0
        found = (await stack.status())["discovery"]["primary"]
        assert (found["endpoints"], found["by"]) == (1, f"file/{targets}")
        assert found["failures"] >= 1
