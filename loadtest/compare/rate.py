"""What a server does at its best: answers a second with a number of requests open at any time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

# It is counted in times of `COUNTED_S`, the first of which begins after `WARM_S`. The first answers
# of a real server take longer than all others, some for much longer than that: until a time brings
# no more than `MORE` above the best before it, or so many times have passed.
WARM_S, COUNTED_S = 3.0, 6.0
MORE, MOST_TIMES = 1.05, 8


def best_rate(url: str, body: Mapping[str, Any], at_once: int) -> float:
    """Requests a second. Raises RuntimeError if one of them fails."""
    return asyncio.run(_best_rate(url, body, at_once))


async def _best_rate(url: str, body: Mapping[str, Any], at_once: int) -> float:
    counted = 0

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal counted
        while True:
            async with session.post(url, json=body) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{url}: {answer.status} {await answer.text()}")
                await answer.read()
            counted += 1

    async def watch() -> float:
        nonlocal counted
        await asyncio.sleep(WARM_S)
        best_rps = 0.0
        for _ in range(MOST_TIMES):
            counted, began_s = 0, time.monotonic()
            await asyncio.sleep(COUNTED_S)
            rps = counted / (time.monotonic() - began_s)
            if rps <= MORE * best_rps:
                return max(best_rps, rps)
            best_rps = rps
        return best_rps

    async with aiohttp.ClientSession() as session:
        asking = [asyncio.ensure_future(ask(session)) for _ in range(at_once)]
        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.wait([watching, *asking], return_when=asyncio.FIRST_COMPLETED)
            for one in asking:
                if one.done():
                    one.result()
            return await watching
        finally:
            for task in (watching, *asking):
                task.cancel()
            await asyncio.gather(watching, *asking, return_exceptions=True)
