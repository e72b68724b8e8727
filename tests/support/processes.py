"""Child processes, and waiting on a condition instead of on time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from loadtest.processes import Process, answers_200

__all__ = ["Process", "answers_200", "eventually", "python_path"]


def python_path() -> str:
    """Of a child that runs this repository's code, wherever the tests were started: behind what
    was set here, which may hold a compiled build of the package."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))


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
