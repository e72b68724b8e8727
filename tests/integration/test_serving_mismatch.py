"""An endpoint that the gate knows and Envoy does not: Envoy sends its requests to another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.engine import Engine
from tests.support.processes import eventually
from tests.support.stack import make_config, running_stack

pytestmark = pytest.mark.slow


async def test_what_envoy_sends_elsewhere_is_served_settled_and_told(tmp_path: Path) -> None:
    """The gate learns of a second server by a reload that Envoy does not get: nobody is turned
    away for it, nothing stays booked, and it is counted, shown and warned of once."""
    async with AsyncExitStack() as exits:
        first, second = [await exits.enter_async_context(Engine(n)) for n in ("first", "second")]
        config = make_config([first.address])
        pool = config["admission_control"]["pools"][0]
        # So many that what is over and not told yet is in nobody's way.
        pool["max_concurrency"] = 100
        stack = await exits.enter_async_context(running_stack(tmp_path, config))
        pool["endpoints"].append(f"http://{second.address}")
        stack.write_config()

        async def reloaded() -> bool:
            endpoints = (await stack.status())["pools"]["primary"]["endpoints"]
            return endpoints == {first.address: "fresh", second.address: "fresh"}

        await eventually(reloaded, within_s=10.0)
        for _ in range(60):
            replies = await asyncio.gather(*(stack.post() for _ in range(2)))
            assert {reply.status for reply in replies} == {200}, replies
        await stack.idle()
        assert second.served == 0
        elsewhere = await stack.metric("endpoint_mismatches_total", pool="primary")
        assert 0 < elsewhere <= 120
        told = (await stack.status())["pools"]["primary"]["mismatches"]
        assert told["last"] == {"named": second.address, "served": first.address}
        assert told["ratio"] > 0.05
        await eventually(lambda: "Envoy sends" in stack.gate.output())
        assert stack.gate.output().count("Envoy sends") == 1
