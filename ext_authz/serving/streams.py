"""Calls that never end by themselves, and have to when the host drains."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Streams:
    """The streams of one host."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def until_drained(self, work: Coroutine[Any, Any, _Result]) -> _Result | None:
        """What `work` gives, None if it had to end before."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            # Waited for, not awaited: a handler that raises CancelledError ends without a
            # status, and its stream would stay open and swallow entries until the drain is over.
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._running.discard(task)
        return None if task.cancelled() else task.result()

    def drain(self) -> None:
        """End them all, with a status that says it was no fault."""
        for task in self._running:
            task.cancel()
