"""What telemetry costs: one page against prometheus_client's parser, and a fleet of endpoints.

The fleet is `ENDPOINTS` addresses that answer with a captured vLLM page, each scraped every
`INTERVAL_S` by the shipped collector; the figure is this process's CPU per second of wall time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from resource import RUSAGE_SELF, getrusage
from statistics import median

import aiohttp
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from ext_authz.clock import SystemClock
from ext_authz.settings import Endpoint
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.exposition import parse_page
from ext_authz.telemetry.mappings import VLLM
from ext_authz.telemetry.reading import read
from ext_authz.telemetry.scrape import ScrapeSettings, ScrapeSource
from loadtest.processes import free_port
from tests.benchmarks.names import ROOT

PAGE = ROOT / "tests" / "data" / "metrics" / "vllm-0.32.0-cpu-loaded.txt"

ENDPOINTS, INTERVAL_S, SETTLE_S, SPAN_S = 100, 0.1, 2.0, 8.0
ROUNDS, PAGES_A_ROUND = 7, 20


def parse_ratio() -> dict[str, float]:
    """Milliseconds to read one page, ours and prometheus_client's, and their ratio."""
    page = PAGE.read_bytes()
    text = page.decode()
    ours_s, theirs_s = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(PAGES_A_ROUND):
            read(VLLM, parse_page(page, VLLM.names))
        ours_s.append((time.perf_counter() - started) / PAGES_A_ROUND)
        started = time.perf_counter()
        for _ in range(PAGES_A_ROUND):
            list(text_string_to_metric_families(text))
        theirs_s.append((time.perf_counter() - started) / PAGES_A_ROUND)
    ours, theirs = median(ours_s), median(theirs_s)
    return {
        "page_ms": round(1e3 * ours, 3),
        "page_prometheus_client_ms": round(1e3 * theirs, 3),
        "page_ratio": round(ours / theirs, 4),
    }


def fleet_cores() -> float:
    """CPU seconds a second for the whole fleet."""
    port = free_port()
    hosts = [f"127.0.{1 + n // 250}.{1 + n % 250}" for n in range(ENDPOINTS)]
    command = [sys.executable, "-m", "tests.benchmarks.pages", str(port), *hosts]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return round(runner.run(_collect([f"{host}:{port}" for host in hosts])), 3)
    finally:
        server.terminate()
        server.wait()


async def _collect(addresses: list[str]) -> float:
    settings = ScrapeSettings(INTERVAL_S, timeout_s=INTERVAL_S, max_page_bytes=1 << 22)
    sources = [ScrapeSource(Endpoint(a, f"http://{a}", 8, a), VLLM, settings) for a in addresses]
    await _up(addresses[-1])
    placed: dict[str, str | None] = dict.fromkeys(addresses)
    collector = Collector(sources, placed, SystemClock(), lambda *_: None, lambda *_: None)
    collector.start()
    await asyncio.sleep(SETTLE_S)
    before, polls = getrusage(RUSAGE_SELF), sum(collector.successes.values())
    started = time.monotonic()
    await asyncio.sleep(SPAN_S)
    span_s = time.monotonic() - started
    after, done = getrusage(RUSAGE_SELF), sum(collector.successes.values()) - polls
    await collector.stop()
    wanted = ENDPOINTS * span_s / INTERVAL_S
    if done < 0.9 * wanted:
        failed = collector.failures.total()
        raise RuntimeError(f"only {done} of {wanted:.0f} polls, {failed} failed")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s / span_s


async def _up(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(500):
            try:
                async with session.get(f"http://{address}/metrics") as reply:
                    await reply.read()
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
    raise TimeoutError("the page server did not start")
