"""What a server does at its best: answers a second with a number of requests open at any time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

# The first answers of a real server take longer than all others.
WARM_S, COUNTED_S = 3.0, 6.0


def best_rate(url: str, body: Mapping[str, Any], at_once: int) -> float:
    """Requests a second. Raises RuntimeError if one of them fails."""
    return asyncio.run(_best_rate(url, body, at_once))


async def _best_rate(url: str, body: Mapping[str, Any], at_once: int) -> float:
    begins_s = time.monotonic() + WARM_S
    ends_s = begins_s + COUNTED_S
    counted = 0

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal counted
        while (now := time.monotonic()) < ends_s:
            async with session.post(url, json=body) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{url}: {answer.status} {await answer.text()}")
                await answer.read()
            counted += begins_s <= now < ends_s

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(ask(session) for _ in range(at_once)))
    return counted / COUNTED_S
