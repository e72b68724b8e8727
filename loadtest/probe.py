"""Reads streams chunk by chunk as they come, beside a load generator that cannot:
`python -m loadtest.probe --target http://127.0.0.1:8080 --rate 1 --seconds 25`.

A backend of the load test says in the last event of a stream when its first token left. k6 believes
it; this checks it: for each stream how much later a client really had the first piece of text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import aiohttp

_TOLD = re.compile(rb'"first_token_unix_ms": ?([0-9.]+)')
# What has a piece of text in it; the first event of some engines has only a role.
_TEXT = re.compile(rb'"content": ?"[^"]|"text": ?"[^"]')
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream that was read. Times are Unix seconds: when it was sent, when its first text was
    there, and when that left by its own account (None where none is given)."""

    sent_unix_s: float
    first_unix_s: float
    told_unix_s: float | None

    @property
    def ttft_s(self) -> float:
        """What the client waited for its first text."""
        return self.first_unix_s - self.sent_unix_s

    @property
    def off_s(self) -> float | None:
        """How much later than told the first text was there."""
        return None if self.told_unix_s is None else self.first_unix_s - self.told_unix_s


@dataclass(frozen=True, slots=True)
class Target:
    """Where streams are asked for, and what."""

    url: str
    key: str
    model: str = "demo"
    prompt_tokens: int = 200
    cap_tokens: int = 128


def first_told(chunks: Iterable[tuple[float, bytes]], sent_unix_s: float) -> Stream | None:
    """What chunks, each with the time it came, tell of a stream; None without any text. A chunk may
    end anywhere, so that what counts is all that has come by then."""
    body, first = b"", None
    for at_s, chunk in chunks:
        body += chunk
        if first is None and _TEXT.search(body):
            first = at_s
    if first is None:
        return None
    told = _TOLD.findall(body)
    return Stream(sent_unix_s, first, float(told[-1]) / 1000.0 if told else None)


async def read_one(session: aiohttp.ClientSession, target: Target) -> Stream | None:
    """One stream; None if it was refused, failed, or had no text."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": "word" * target.prompt_tokens}],
        "max_tokens": target.cap_tokens,
        "stream": True,
    }
    sent_s = time.time()
    try:
        async with session.post(
            f"{target.url}/v1/chat/completions", json=body, headers={"x-api-key": target.key}
        ) as answer:
            if answer.status != 200:
                return None
            chunks = [(time.time(), chunk) async for chunk in answer.content.iter_any()]
    except (aiohttp.ClientError, TimeoutError):
        return None
    return first_told(chunks, sent_s)


async def probe(target: Target, rate_rps: float, seconds: float, seed: int) -> list[Stream]:
    """Poisson arrivals for some time; all streams that came to their end."""
    chance, tasks = random.Random(seed), []
    ends_s = time.monotonic() + seconds
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session:
        while True:
            wait_s = chance.expovariate(rate_rps)
            if time.monotonic() + wait_s >= ends_s:
                break
            await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(read_one(session, target)))
        streams = await asyncio.gather(*tasks)
    return [stream for stream in streams if stream is not None]


def main(argv: list[str] | None = None) -> int:
    """One line of JSON for each stream."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.probe", description=__doc__)
    parser.add_argument("--target", required=True, help="URL of the Envoy")
    parser.add_argument("--key", default="", help="API key")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rate", type=float, default=1.0, help="streams a second")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    target = Target(given.target.rstrip("/"), given.key, given.model)
    for stream in asyncio.run(probe(target, given.rate, given.seconds, given.seed)):
        print(json.dumps({**asdict(stream), "ttft_s": stream.ttft_s, "off_s": stream.off_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
