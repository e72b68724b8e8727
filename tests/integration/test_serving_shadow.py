"""A gate in shadow, from the client through Envoy and back: nothing is moved or refused but what is
said to be, and what would have been is held against what happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.processes import eventually
from tests.support.stack import engine_stack

pytestmark = pytest.mark.slow


async def test_shadow_lets_run_and_keeps_count(tmp_path: Path) -> None:
    """Of five requests the fifth would be demoted, runs where it was meant to, and is in time;
    keys are a rule of their own. A reload that enforces sends the next fifth elsewhere."""
    changes = {"enforcement": "shadow", "policies": {"keys": "enforce"}}
    async with engine_stack(tmp_path, **changes) as up:
        stack = up.stack
        assert (await stack.post(key="nobody")).status == 401
        up.primary.gate.clear()
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(stack.post()))
            await eventually(lambda n=number: up.primary.active == n + 1)
        assert up.economy.active == 0
        up.primary.gate.set()
        assert {(await task).status for task in tasks} == {200}
        await stack.idle()
        told = {"tenant": "acme", "pool": "primary", "would_be": "demote"}
        assert await stack.metric("decisions_total", verdict="admit", **told) == 1
        assert await stack.metric("would_have_total", result="premature", **told) == 1
        (row,) = (await stack.status())["pools"]["primary"]["measures"]["would_have"]
        assert (row["reason"], row["let_in"], row["right"]) == ("at_capacity", 1, 0)

        # Envoy was rendered for shadow: its breaker stays out of the way.
        stack.config["admission_control"]["pools"][0]["enforcement"] = "enforce"
        stack.write_config()

        async def reloaded() -> bool:
            return await stack.metric("config_reloads_total", result="loaded") == 1

        await eventually(reloaded)
        for engine in (up.primary, up.economy):
            engine.gate.clear()
        tasks = [asyncio.create_task(stack.post()) for _ in range(5)]
        await eventually(lambda: up.primary.active + up.economy.active == 5)
        assert (up.primary.active, up.economy.active) == (4, 1)
        for engine in (up.primary, up.economy):
            engine.gate.set()
        assert {(await task).status for task in tasks} == {200}
