"""The composition root: builds everything from one configuration and runs it until told to end.

The only place that names concrete adapters.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Protocol

from ext_authz.clock import SystemClock
from ext_authz.config.compile import Loaded
from ext_authz.config.watch import ConfigWatcher
from ext_authz.errors import ConfigError, Problem, TelemetryError
from ext_authz.fleet import Fleet, Listeners
from ext_authz.journal_file import JournalFile
from ext_authz.lookout import Lookout
from ext_authz.metrics import Metrics
from ext_authz.process import build, loop_factory
from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.server import GrpcHost
from ext_authz.serving.tap import TapService
from ext_authz.serving.wire import Wire, compile_messages
from ext_authz.settings import ServerSettings, Settings
from ext_authz.snapshot import EndpointSample
from ext_authz.state.keeper import Keeper
from ext_authz.web.admin import AdminServer, Inside

log = logging.getLogger(__name__)

# How often leases are looked at while no request does it.
TICK_S = 0.25


class Host(Protocol):
    """What takes the calls in."""

    async def start(self) -> int:
        """Serve; the port. Raises OSError if the address cannot be had."""

    async def drain(self) -> None:
        """Finish what is running and let go."""


HostMaker = Callable[[ServerSettings, Wire, CheckService, AccessLogSink, TapService], Host]


def grpc_host(
    settings: ServerSettings,
    wire: Wire,
    checks: CheckService,
    sink: AccessLogSink,
    taps: TapService,
) -> Host:
    """The default."""
    return GrpcHost(settings, wire, checks, sink, taps)


def decision_ids() -> Iterator[str]:
    """Ids that no other process, and no earlier run of this one, gives out."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}-{number:x}" for number in count(1))


class App:
    """One running server."""

    def __init__(
        self, path: Path, loaded: Loaded, rng: Random, make_host: HostMaker = grpc_host
    ) -> None:
        self._clock = SystemClock()
        self._build = build()
        self._metrics = Metrics()
        self._fleet = self._make_fleet(loaded)
        settings = self._fleet.settings
        self._gate = Gate(settings, decision_ids(), rng, self._metrics, self._clock.now())
        self._gate.on_load_report = self._fleet.hear
        wire = compile_messages()
        codec = Codec(wire, settings.admission.retry.cap_s)
        checks = CheckService(self._gate, codec, self._clock)
        sink = AccessLogSink(self._gate, codec, self._clock)
        taps = TapService(self._gate, codec, self._clock)
        self._codec = codec
        self._host = make_host(settings.server, wire, checks, sink, taps)
        self._lookout = Lookout(self._gate, self._fleet, self._clock, loaded)
        self._lookout.wire(self._metrics)
        self._keeper = Keeper(
            lambda: self._gate.settings.learning,
            self._gate.learned,
            self._gate.recall,
            self._clock,
            self._metrics,
        )
        self._journal = JournalFile(
            lambda: self._gate.settings.journal,
            self._gate.recorder.take,
            self._clock,
            self._metrics,
        )
        self._watcher = ConfigWatcher(path, self._on_config, self._on_config_error, initial=loaded)
        self._admin = AdminServer(
            Inside(
                self._metrics,
                self._gate.journal,
                self._clock,
                self._lookout.telemetry,
                lambda: self._unready,
                self._lookout.lost,
                self._status,
            )
        )
        self._tasks: set[asyncio.Task[None]] = set()
        # What keeps us from being sent requests.
        self._unready: tuple[str, ...] = ("starting",)

    def _make_fleet(self, loaded: Loaded) -> Fleet:
        listeners = Listeners(self._on_sample, self._on_failure, self._on_endpoints)
        try:
            return Fleet(loaded.settings, self._clock, listeners, apart=True)
        except TelemetryError as error:
            raise place(loaded, error) from error

    async def run(self, ended: asyncio.Event) -> None:
        """Serve until `ended` is set, then drain."""
        server = self._gate.settings.server
        self._keeper.start()
        self._fleet.start()
        admin_port = await self._admin.start(server.admin_listen)
        grpc_port = await self._host.start()
        self._unready = ()
        # What was built to start up lives as long as we do: a full collection that walks through
        # all of it (the message classes above all) would hold up every Check in flight.
        gc.collect()
        gc.freeze()
        at = (grpc_port, admin_port, self._build)
        log.info("serving gRPC on port %d, admin on port %d: %s", *at)
        self._background(self._watcher.run())
        self._background(self._tick())
        await ended.wait()
        log.info("draining for at most %g s", server.drain_s)
        self._unready = ("draining",)
        self._gate.close(self._clock.now())
        await self._host.drain()
        await self._keeper.close()
        await self._journal.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fleet.stop()
        await self._admin.stop()

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        while True:
            now = self._clock.now()
            self._gate.tick(now)
            self._lookout.tick(now)
            self._keeper.tick(now)
            self._gate.look_after_records(now)
            self._journal.tick(now)
            await asyncio.sleep(TICK_S)

    def _status(self) -> dict[str, Any]:
        return {
            **self._lookout.status(),
            "build": self._build,
            "learned_state": self._keeper.status(),
            "journal": self._journal.status(),
        }

    # -- telemetry ------------------------------------------------------------------------

    def _on_sample(self, _: float, sample: EndpointSample) -> None:
        self._gate.observe(sample)

    def _on_endpoints(self, settings: Settings) -> None:
        self._gate.reconfigure(settings, self._clock.now())

    def _on_failure(self, source: str, error: TelemetryError) -> None:
        log.debug("%s: %s", source, error)

    # -- configuration --------------------------------------------------------------------

    def _on_config(self, loaded: Loaded) -> None:
        # All that may fail comes before anything is touched.
        try:
            plan = self._fleet.plan(loaded.settings)
        except TelemetryError as error:
            raise place(loaded, error) from error
        before = self._gate.settings
        now = self._clock.now()
        self._gate.reconfigure(plan.settings, now)
        self._fleet.adopt(plan)
        self._lookout.loaded, self._lookout.loaded_at_s = loaded, now
        self._metrics.count("config_reloads", "loaded")
        log.info("configuration %s loaded", plan.settings.fingerprint[:12])
        if before.server != plan.settings.server:
            log.warning("changes under `server` take effect at the next start")

    def _on_config_error(self, error: ConfigError | OSError) -> None:
        self._metrics.count("config_reloads", "refused")
        log.error("configuration refused, the last good one stays:\n%s", error)


def place(loaded: Loaded, error: TelemetryError) -> ConfigError:
    """What this machine lacks, as a problem of the configuration that asks for it."""
    field = "admission_control.metrics_sources"
    remedy = "install what is missing, or take it out of the configuration"
    return ConfigError((Problem(str(loaded.files[0]), 1, field, str(error), remedy),))


def serve(path: Path, loaded: Loaded) -> None:
    """Run a server from the configuration that was loaded from `path`, until SIGTERM or SIGINT.

    Raises ConfigError if it cannot run.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(path, loaded))


async def _run(path: Path, loaded: Loaded) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await App(path, loaded, Random()).run(ended)  # noqa: S311  jitter, not secrets
