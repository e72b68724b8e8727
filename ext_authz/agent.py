"""The agent: runs beside a model server, measures it and its cards, and streams heartbeats."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
import re
import secrets
import signal
import socket
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ext_authz.clock import Clock, SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.settings import Endpoint
from ext_authz.snapshot import DeviceSample, EndpointSample, Report
from ext_authz.telemetry.pages.mappings import ENGINES, Signal
from ext_authz.telemetry.pages.rates import mean_execution_s
from ext_authz.telemetry.pages.reading import Reading
from ext_authz.telemetry.sources.feedback.fields import as_name
from ext_authz.telemetry.sources.feedback.send import MOST_INTERVAL_S, Beats, Sender, sender_for
from ext_authz.telemetry.sources.scrape import ScrapeSettings, ScrapeSource

if TYPE_CHECKING:
    from ext_authz.telemetry.source import PollSource

log = logging.getLogger(__name__)

RECENT_REQUESTS = 100
"""The mean execution time is over at least this many of the last requests, once there are."""

LEAST_INTERVAL_S = 0.01
SCRAPE_TIMEOUT_S = 1.0
MAX_PAGE_BYTES = 4 * 1024 * 1024
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 5.0
"""Pauses between two attempts to reach the gate double from the first to the second."""

STEADY_S = 5.0
"""After a connection that held this long the pauses begin anew."""

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s)")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What to measure and where to send it.

    `endpoint` is host:port as the gate's configuration names the model server; `scrape_url` where
    its metrics are from here; `device` the card it runs on, None where there is only one.
    """

    endpoint: str
    scrape_url: str
    engine: str
    interval_s: float = 0.05
    nvml: bool = False
    device: str | None = None


class RecentMean:
    """Mean execution seconds over the last `RECENT_REQUESTS` requests, or all since the start."""

    def __init__(self) -> None:
        # Only readings between which something finished, so that there are few.
        self._readings: deque[tuple[float, Reading]] = deque()

    def take(self, reading: Reading) -> float | None:
        """The mean as of `reading`; None while nothing has finished, or after a restart."""
        finished = _finished(reading)
        if self._readings and finished < self._readings[-1][0]:
            self._readings.clear()
        if not self._readings or finished > self._readings[-1][0]:
            self._readings.append((finished, reading))
        while len(self._readings) > 2 and finished - self._readings[1][0] >= RECENT_REQUESTS:
            self._readings.popleft()
        return mean_execution_s(self._readings[0][1], reading)


class _Scrape(ScrapeSource):
    """Shows the counters of the last page as well."""

    @property
    def reading(self) -> Reading | None:
        return self._before.reading if self._before is not None else None


class Agent:
    """Measures one model server and the cards of its host into `beats`."""

    def __init__(self, settings: AgentSettings, beats: Beats, clock: Clock) -> None:
        endpoint = Endpoint(settings.endpoint, settings.scrape_url, 1, settings.device or "")
        scraping = ScrapeSettings(settings.interval_s, SCRAPE_TIMEOUT_S, MAX_PAGE_BYTES)
        self._settings = settings
        self._beats = beats
        self._clock = clock
        self._scrape = _Scrape(endpoint, ENGINES[settings.engine], scraping)
        self._cards = _card_source() if settings.nvml else None
        self._recent = RecentMean()
        self._sample: EndpointSample | None = None
        self._devices: tuple[DeviceSample, ...] = ()

    async def measure(self) -> None:
        """Until cancelled. What cannot be measured ages; it does not become something else."""
        watching = [self._watch_server()]
        if self._cards is not None:
            watching.append(self._watch_cards(self._cards))
        async with asyncio.TaskGroup() as tasks:
            for one in watching:
                tasks.create_task(one)

    async def close(self) -> None:
        """Let go of connections and the driver."""
        await self._scrape.close()
        if self._cards is not None:
            await self._cards.close()

    async def _watch_server(self) -> None:
        failing = False
        while True:
            started_s = self._clock.now()
            try:
                sample = (await self._scrape.poll(started_s)).endpoints[0]
            except TelemetryError as error:
                if not failing:
                    log.warning("%s: no metrics: %s", self._settings.endpoint, error)
                failing = True
            else:
                failing = False
                reading = self._scrape.reading
                mean_s = self._recent.take(reading) if reading is not None else None
                self._sample = replace(sample, mean_execution_s=mean_s)
                self._tell()
            elapsed_s = self._clock.now() - started_s
            await asyncio.sleep(max(LEAST_INTERVAL_S, self._beats.pace_s - elapsed_s))

    async def _watch_cards(self, cards: PollSource) -> None:
        failing = False
        while True:
            try:
                self._devices = (await cards.poll(self._clock.now())).devices
            except TelemetryError as error:
                if not failing:
                    log.warning("no state of the cards: %s", error)
                failing = True
            else:
                failing = False
                self._tell()
            await asyncio.sleep(max(cards.interval_s, self._beats.pace_s))

    def _tell(self) -> None:
        endpoints: tuple[EndpointSample, ...] = ()
        if self._sample is not None:
            only = self._devices[0].device if len(self._devices) == 1 else None
            device = self._settings.device or self._sample.device or only
            endpoints = (replace(self._sample, device=device),)
        self._beats.put(Report(endpoints, self._devices))


async def keep_sending(sender: Sender, beats: Beats, clock: Clock, chance: random.Random) -> None:
    """Send until cancelled, connecting again after pauses that grow and differ."""
    failures = 0
    while True:
        started_s = clock.now()
        try:
            await sender.session(beats)
        except TelemetryError as error:
            if clock.now() - started_s >= STEADY_S:
                failures = 0
            if failures == 0:
                log.warning("not connected: %s", error)
            pause_s = min(MOST_PAUSE_S, LEAST_PAUSE_S * 2 ** min(failures, 10))
            failures += 1
            await asyncio.sleep(pause_s * chance.uniform(0.5, 1.0))


async def run(settings: AgentSettings, sender: Sender, name: str) -> None:
    """Measure and send until SIGTERM or SIGINT."""
    clock = SystemClock()
    beats = Beats(clock, name, secrets.token_hex(8), settings.interval_s)
    agent = Agent(settings, beats, clock)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work: list[Awaitable[object]] = [
        agent.measure(),
        keep_sending(sender, beats, clock, random.Random()),  # noqa: S311  # spreads load only
    ]
    tasks = [asyncio.ensure_future(one) for one in work]
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    faults = [task.exception() for task in tasks if task.done()]
    for task in (*tasks, stopping):
        task.cancel()
    await asyncio.gather(*tasks, stopping, return_exceptions=True)
    await agent.close()
    for fault in faults:
        if fault is not None:
            raise fault


def add_agent_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `agent` to the command line."""
    agent = commands.add_parser("agent", help="stream the state of a model server to gates")
    add = agent.add_argument
    add("--endpoint", type=_address, required=True, metavar="HOST:PORT", help="as gates know it")
    add("--scrape", type=_http_url, required=True, metavar="URL", help="its metrics, from here")
    add("--engine", choices=sorted(ENGINES), default="vllm")
    add("--send", type=_sender_url, required=True, metavar="URL", help="grpc://HOST:PORT, nats://…")
    add("--interval", type=_interval_s, default=0.05, metavar="TIME", help="such as 50ms")
    add("--nvml", action="store_true", help="tell the state of this host's NVIDIA cards as well")
    add("--device", type=_named, metavar="UUID", help="the card the server runs on")
    add("--name", type=_named, metavar="NAME", help="default: this host and the endpoint")
    add("--token-file", type=Path, metavar="FILE")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    agent.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = AgentSettings(
        endpoint=arguments.endpoint,
        scrape_url=arguments.scrape,
        engine=arguments.engine,
        interval_s=arguments.interval,
        nvml=arguments.nvml,
        device=arguments.device,
    )
    name = arguments.name or f"{socket.gethostname()}/{arguments.endpoint}"[:256]
    asyncio.run(run(settings, sender_for(arguments.send, arguments.token_file), name))
    return 0


def _card_source() -> PollSource:
    from ext_authz.telemetry.sources.nvml.source import NvmlSettings, NvmlSource

    return NvmlSource(NvmlSettings(host=socket.gethostname()))


def _finished(reading: Reading) -> float:
    """Requests finished since the engine's start."""
    pairs = reading.means.get(Signal.EXECUTION) or reading.means.get(Signal.WHOLE) or {}
    return math.fsum(pair.count for pair in pairs.values())


def _interval_s(text: str) -> float:
    match = _DURATION.fullmatch(text)
    interval_s = float(match[1]) * (0.001 if match[2] == "ms" else 1.0) if match else 0.0
    if not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
        raise argparse.ArgumentTypeError("not a time from 10ms to 60s, such as 50ms")
    return interval_s


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text) or int(text.rpartition(":")[2]) > 65535:
        raise argparse.ArgumentTypeError("not HOST:PORT")
    return text.lower()


def _http_url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in {"http", "https"} or not rest or any(c.isspace() for c in text):
        raise argparse.ArgumentTypeError("not an http:// or https:// URL")
    return text


def _named(text: str) -> str:
    if as_name(text) is None:
        raise argparse.ArgumentTypeError("not a name: 1 to 256 printable characters")
    return text


def _sender_url(text: str) -> str:
    try:
        sender_for(text, None)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
