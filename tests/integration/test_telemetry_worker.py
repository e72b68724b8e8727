"""The real second process: it reads pages, dies, hangs, and never outlives its gate."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.fleet import Fleet, Listeners
from ext_authz.settings import Settings
from ext_authz.snapshot import EndpointSample
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from ext_authz.telemetry.sources.static import AssumeSettings
from tests.support.engine import Engine
from tests.support.finding import assumed
from tests.support.processes import eventually
from tests.support.settings import make_pool
from tests.support.stack import Stack, make_config

pytestmark = pytest.mark.slow

START_S = 20.0
"""A busy machine takes long to start an interpreter."""


def alive(pid: int) -> bool:
    """Whether the process runs (or is stopped), and is not merely not yet reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


class Apart:
    """A fleet with its worker, and what it was told."""

    def __init__(self, settings: Settings) -> None:
        self.clock = SystemClock()
        self.samples: list[tuple[float, EndpointSample]] = []
        self.failures: list[tuple[str, str]] = []
        listeners = Listeners(self._sample, self._failure, lambda _: None)
        self.fleet = Fleet(settings, self.clock, listeners, apart=True)

    def _sample(self, at_s: float, sample: EndpointSample) -> None:
        self.samples.append((at_s, sample))

    def _failure(self, name: str, error: TelemetryError) -> None:
        self.failures.append((name, str(error)))

    @property
    def pid(self) -> int:
        assert self.fleet.worker is not None
        assert self.fleet.worker.pid is not None
        return self.fleet.worker.pid

    def running(self, engine: Engine) -> float | None:
        sample = self.fleet.collector.snapshot.samples.get(engine.address)
        return None if sample is None else sample.running

    async def shows(self, engine: Engine, running: float) -> None:
        engine.foreign = int(running)
        await eventually(lambda: self.running(engine) == running, within_s=START_S)

    def reload(self, settings: Settings) -> None:
        self.fleet.adopt(self.fleet.plan(settings))


def scraping(*engines: Engine, assume: bool = False) -> Settings:
    pool = make_pool("p", *(engine.address for engine in engines))
    sources: tuple[object, ...] = (ScrapeSettings(interval_s=0.05),)
    return assumed(pool, sources=(*sources, AssumeSettings(alone=False)) if assume else sources)


@asynccontextmanager
async def apart(settings: Settings) -> AsyncIterator[Apart]:
    made = Apart(settings)
    made.fleet.start()
    try:
        yield made
    finally:
        await made.fleet.stop()


async def test_pages_are_read_in_another_process() -> None:
    """What comes is dated by the same clock, counted by source, and says what is missing."""
    async with Engine() as engine, apart(scraping(engine)) as made:
        await made.shows(engine, 3.0)
        assert made.pid != os.getpid()
        assert all(0.0 <= at_s - sample.at_s < START_S for at_s, sample in made.samples)
        collector, name = made.fleet.collector, f"scrape/{engine.address}"
        assert collector.successes.keys() == {name}
        assert "execution_s" in collector.missing[name]
        assert "load" in collector.trends.of(engine.address, made.clock.now())
        engine.metrics_status = 503
        await eventually(lambda: collector.failures[name] > 1)
        assert made.failures[0] == (name, "HTTP status 503")
        engine.metrics_status = 200
        await made.shows(engine, 4.0)
        pid = made.pid
    assert not alive(pid)


async def test_endpoints_come_and_go() -> None:
    """A reload reaches the worker: what is new is asked, what is gone is not, and what stays is
    not asked anew from the start."""
    async with Engine("a") as first, Engine("b") as second, apart(scraping(first)) as made:
        await made.shows(first, 1.0)
        pid = made.pid
        made.reload(scraping(first, second))
        await made.shows(second, 2.0)
        made.reload(scraping(second))
        await eventually(lambda: made.running(first) is None)
        await made.shows(second, 5.0)
        asked = first.scrapes
        seen = second.scrapes
        await eventually(lambda: second.scrapes > seen + 5)
        assert first.scrapes <= asked + 1
        assert made.fleet.collector.successes.keys() == {f"scrape/{second.address}"}
        assert made.pid == pid


async def test_a_worker_that_dies_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Meanwhile what it told gets old, what is assumed stays, and it is said loudly."""
    async with Engine() as engine, apart(scraping(engine, assume=True)) as made:
        await made.shows(engine, 1.0)
        first = made.pid
        os.kill(first, signal.SIGKILL)
        worker = made.fleet.worker
        assert worker is not None
        await eventually(lambda: worker.ended == 1)
        before = made.fleet.collector.snapshot.samples[engine.address]
        assert (before.running, before.slots) == (1.0, 16.0)
        counted = made.fleet.collector.successes["static"]
        await eventually(lambda: made.fleet.collector.successes["static"] > counted)
        after = made.fleet.collector.snapshot.samples[engine.address]
        assert after.at_s - before.at_s <= 0.1
        await made.shows(engine, 2.0)
        assert made.pid != first
        assert not alive(first)
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "the telemetry worker ended (exit status -9)" in errors[0]


async def test_signals_meant_for_all_processes_do_not_end_it() -> None:
    """The gate drains first, and needs telemetry while it does."""
    async with Engine() as engine, apart(scraping(engine)) as made:
        await made.shows(engine, 1.0)
        pid = made.pid
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        await made.shows(engine, 2.0)
        assert made.pid == pid


async def test_one_that_is_stopped_ends_with_its_gate() -> None:
    """It does not see that its socket is closed, and is killed."""
    async with Engine() as engine, apart(scraping(engine)) as made:
        await made.shows(engine, 1.0)
        pid = made.pid
        os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)


async def test_a_gate_without_such_sources_has_none() -> None:
    """A second process costs memory: it is started when there is something to ask."""
    async with Engine() as engine:
        settings = scraping(engine)
        only = replace(settings, telemetry=replace(settings.telemetry, sources=(AssumeSettings(),)))
        async with apart(only) as made:
            await eventually(lambda: engine.address in made.fleet.collector.snapshot.samples)
            assert made.fleet.worker is not None
            assert made.fleet.worker.pid is None
            made.reload(settings)
            await made.shows(engine, 2.0)


@pytest.mark.parametrize("hanging", [False, True])
async def test_a_gate_that_is_killed_leaves_nothing_behind(tmp_path: Path, hanging: bool) -> None:
    """Not even a worker that hangs."""
    async with AsyncExitStack() as exits:
        engine = await exits.enter_async_context(Engine())
        client = await exits.enter_async_context(aiohttp.ClientSession())
        stack = Stack(tmp_path, make_config([engine.address]), client, exits)
        stack.write_config()
        gate = await stack.start_gate()
        await eventually(lambda: engine.scrapes > 0, within_s=START_S)
        pid = (await stack.status())["telemetry_worker"]["pid"]
        assert alive(pid)
        if hanging:
            os.kill(pid, signal.SIGSTOP)
        os.kill(gate.pid, signal.SIGKILL)
        await asyncio.to_thread(gate.wait)
        await eventually(lambda: not alive(pid))
