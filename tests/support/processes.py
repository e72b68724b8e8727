"""Child processes, and waiting on a condition instead of on time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from loadtest.processes import Process, answers_200

__all__ = ["Process", "answers_200", "eventually"]


async def eventually(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], within_s: float = 5.0
) -> None:
    """Wait until `condition` holds, or fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"condition not met within {within_s} s")
        await asyncio.sleep(0.01)
