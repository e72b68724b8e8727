"""The composition root: builds everything from one configuration and runs it until told to end.

The only place that names concrete adapters.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from ext_authz.clock import SystemClock
from ext_authz.config.compile import Loaded, load
from ext_authz.config.watch import ConfigWatcher
from ext_authz.errors import ConfigError, TelemetryError
from ext_authz.metrics import Labels, Metrics
from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.server import GrpcHost
from ext_authz.serving.wire import compile_messages
from ext_authz.settings import Settings
from ext_authz.snapshot import EndpointSample, Freshness
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.describe import SourceState, describe
from ext_authz.telemetry.registry import build_sources
from ext_authz.web.admin import AdminServer, Inside

log = logging.getLogger(__name__)

# How often leases are looked at while no request does it.
TICK_S = 0.25


def decision_ids() -> Iterator[str]:
    """Ids that no other process, and no earlier run of this one, gives out."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}-{number:x}" for number in count(1))


class App:
    """One running server."""

    def __init__(self, path: Path, loaded: Loaded, rng: Random) -> None:
        settings = loaded.settings
        self._clock = SystemClock()
        self._loaded = loaded
        self._metrics = Metrics()
        self._gate = Gate(settings, decision_ids(), rng, self._metrics, self._clock.now())
        wire = compile_messages()
        codec = Codec(wire, settings.admission.retry.cap_s)
        checks = CheckService(self._gate, codec, self._clock)
        sink = AccessLogSink(self._gate, codec, self._clock)
        self._codec = codec
        self._host = GrpcHost(settings.server, wire, checks.check, sink)
        self._collector = Collector(
            build_sources(settings.telemetry.sources, settings.admission.pools, self._clock),
            placements(settings),
            self._clock,
            self._on_sample,
            self._on_failure,
        )
        self._watcher = ConfigWatcher(path, self._on_config, self._on_config_error, initial=loaded)
        self._admin = AdminServer(
            Inside(
                self._metrics,
                self._gate.journal,
                self._clock,
                self._telemetry,
                self._not_ready,
                self._status,
            )
        )
        self._tasks: set[asyncio.Task[None]] = set()
        # What keeps us from being sent requests.
        self._unready: tuple[str, ...] = ("starting",)
        self._wire_metrics()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        server = self._gate.settings.server
        self._collector.start()
        admin_port = await self._admin.start(server.admin_listen)
        grpc_port = await self._host.start()
        self._unready = ()
        # What was built to start up lives as long as we do: a full collection that walks through
        # all of it (the message classes above all) would hold up every Check in flight.
        gc.collect()
        gc.freeze()
        log.info("serving gRPC on port %d, admin on port %d", grpc_port, admin_port)
        self._background(self._watcher.run())
        self._background(self._tick())
        await ended.wait()
        log.info("draining for at most %g s", server.drain_s)
        self._unready = ("draining",)
        await self._host.drain()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._collector.stop()
        await self._admin.stop()

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        while True:
            self._gate.controller.tick(self._clock.now())
            await asyncio.sleep(TICK_S)

    # -- telemetry ------------------------------------------------------------------------

    def _on_sample(self, _: float, sample: EndpointSample) -> None:
        self._gate.observe(sample)

    def _on_failure(self, source: str, error: TelemetryError) -> None:
        log.debug("%s: %s", source, error)

    # -- configuration --------------------------------------------------------------------

    def _on_config(self, loaded: Loaded) -> None:
        if loaded.unbuilt:
            raise ConfigError(loaded.unbuilt)
        before, after = self._gate.settings, loaded.settings
        self._gate.reconfigure(after, self._clock.now())
        self._loaded = loaded
        self._metrics.count("config_reloads", "loaded")
        log.info("configuration %s loaded", after.fingerprint[:12])
        if before.server != after.server:
            log.warning("changes under `server` take effect at the next start")
        if _scraped(before) != _scraped(after):
            sources = build_sources(after.telemetry.sources, after.admission.pools, self._clock)
            self._background(self._collector.reconfigure(sources, placements(after)))

    def _on_config_error(self, error: ConfigError | OSError) -> None:
        self._metrics.count("config_reloads", "refused")
        log.error("configuration refused, the last good one stays:\n%s", error)

    # -- looking inside -------------------------------------------------------------------

    def _not_ready(self) -> tuple[str, ...]:
        """What keeps new requests from being decided well. Lost telemetry is reported but does
        not take us out of service: `fallback_action` is the answer to that."""
        return self._unready

    def _telemetry(self) -> dict[str, Any]:
        now, collector = self._clock.now(), self._collector
        names = collector.successes.keys() | collector.failures.keys()
        sources = {
            name: SourceState(
                reports=collector.successes[name],
                failures=collector.failures[name],
                missing=tuple(sorted(collector.missing.get(name, ()))),
            )
            for name in sorted(names)
        }
        snapshot = collector.snapshot
        trends = {name: collector.trends.of(name, now) for name in snapshot.samples}
        return describe(snapshot, self._gate.settings.admission.pools, sources, trends, now)

    def _status(self) -> dict[str, Any]:
        now = self._clock.now()
        snapshot = self._collector.snapshot
        pools: dict[str, Any] = {}
        for name, pool in self._gate.settings.admission.pools.items():
            fresh = [snapshot.freshness(e.address, now, pool.staleness) for e in pool.endpoints]
            pools[name] = {
                "endpoints": {
                    e.address: state for e, state in zip(pool.endpoints, fresh, strict=True)
                },
                "telemetry_lost": Freshness.FRESH not in fresh,
            }
        return {
            "fingerprint": self._gate.settings.fingerprint,
            "pools": pools,
            "missing_signals": {k: sorted(v) for k, v in self._collector.missing.items()},
            "in_flight": len(self._gate.controller.ledger),
            "warnings": [str(problem) for problem in self._loaded.warnings],
        }

    def _wire_metrics(self) -> None:
        metrics, gate, clock = self._metrics, self._gate, self._clock

        def each(value: Any) -> Iterator[tuple[Labels, float]]:
            for pool, state in gate.controller.endpoint_states():
                if (number := value(state)) is not None:
                    yield (pool, state.spec.address), float(number)

        metrics.read_with("in_flight", lambda: each(lambda s: s.own))
        metrics.read_with("foreign_load", lambda: each(lambda s: s.foreign))
        metrics.read_with("slots", lambda: each(lambda s: s.spec.max_concurrency))
        metrics.read_with("execution_seconds", lambda: each(lambda s: s.execution.value_s))
        metrics.read_with(
            "telemetry_age_seconds",
            lambda: each(lambda s: None if s.sample is None else clock.now() - s.sample.at_s),
        )
        metrics.read_with("reservations_expired", lambda: [((), gate.controller.expired_total)])
        metrics.read_with("config_info", lambda: [((gate.settings.fingerprint,), 1.0)])
        metrics.read_with(
            "config_age_seconds",
            lambda: [((), clock.now() - (self._watcher.loaded_at_s or clock.now()))],
        )
        metrics.read_with("telemetry_reports", self._telemetry_reports)

    def _telemetry_reports(self) -> Iterator[tuple[Labels, float]]:
        for result, counts in (
            ("success", self._collector.successes),
            ("failure", self._collector.failures),
        ):
            for source, number in counts.items():
                yield (source, result), float(number)


def placements(settings: Settings) -> dict[str, str | None]:
    """Every endpoint with the device it was configured to be on, if it was."""
    endpoints = [e for pool in settings.admission.pools.values() for e in pool.endpoints]
    return {e.address: None if e.device == e.address else e.device for e in endpoints}


def _scraped(settings: Settings) -> tuple[object, ...]:
    """What the sources are made of: only if this changes are they made anew."""
    pools = settings.admission.pools.values()
    return (settings.telemetry, tuple((p.engine, p.endpoints) for p in pools))


def serve(path: Path) -> None:
    """Run a server from the configuration at `path`.

    Raises ConfigError if it cannot run, which includes asking for what is not built yet.
    """
    loaded = load(path)
    if loaded.unbuilt:
        raise ConfigError(loaded.unbuilt)
    for problem in loaded.warnings:
        log.warning("%s", problem)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(path, loaded))


async def _run(path: Path, loaded: Loaded) -> None:
    await App(path, loaded, Random()).run()  # noqa: S311  jitter, not secrets


def _loop_factory() -> Any:
    try:
        import uvloop  # the `fast` extra; the standard loop serves as well
    except ImportError:
        return None
    return uvloop.new_event_loop
