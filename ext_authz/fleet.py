"""Which endpoints there are, and what tells of them: discovery, sources and the collector.

A pool has the endpoints its configuration names and those its discovery has found. Whenever
either changes, sources are made for what is new, and what stays is not disturbed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.plan import Followed, Plan, placements, with_found
from ext_authz.settings import Settings
from ext_authz.snapshot import EndpointSample
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.registry import build_discovery, build_sources
from ext_authz.telemetry.runner import FIRST_POLLS_WITHIN_S
from ext_authz.telemetry.sources.orca.source import OrcaHeaders
from ext_authz.telemetry.worker.parent import STARTS_WITHIN_S, Worker

log = logging.getLogger(__name__)

RESTART_S = 5.0
"""Before a discovery that ended by a fault of ours is run again."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told: of a merged sample with the time it came, of a source that failed, and of
    settings whose endpoints have changed."""

    on_sample: Callable[[float, EndpointSample], None]
    on_failure: Callable[[str, TelemetryError], None]
    on_endpoints: Callable[[Settings], None]


@dataclass(slots=True)
class _Work:
    """What is left to do off the caller's path: the newest plan to run, discoveries to close."""

    plan: Plan | None = None
    ended: list[Followed] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Fleet:
    """Keeps the endpoints current and their telemetry running, with `apart` in a second process
    as far as that pays. Raises TelemetryError, which names the remedy, if `settings` ask for what
    cannot be had on this machine."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        listeners: Listeners,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        apart: bool = False,
    ) -> None:
        self._clock = clock
        self._listeners = listeners
        self._sleep = sleep
        self._work = _Work()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._plan = Plan(settings, settings, {}, (), OrcaHeaders(()), {})
        self._plan = self.plan(settings)
        self.collector = Collector(
            self._plan.here(apart),
            self._plan.placements,
            clock,
            listeners.on_sample,
            listeners.on_failure,
            sleep=sleep,
        )
        self.worker = (
            Worker(self.collector.heard, self.collector.failed, sleep=sleep) if apart else None
        )

    @property
    def first_within_s(self) -> float:
        """Seconds after a start, or after an endpoint came, within which each source has been
        asked for the first time."""
        return FIRST_POLLS_WITHIN_S + (0.0 if self.worker is None else STARTS_WITHIN_S)

    @property
    def settings(self) -> Settings:
        """The configuration with the endpoints that are known now."""
        return self._plan.settings

    def hear(self, endpoint: str, report: str, at_s: float) -> None:
        """Take in what `endpoint` said of its load in a response of `at_s` (monotonic seconds)."""
        self._plan.headers.offer(endpoint, report, at_s)

    def discovered(self) -> dict[str, dict[str, object]]:
        """By pool, how its discovery is doing: JSON-ready."""
        return {
            pool: {
                "by": one.discovery.name,
                "endpoints": None if one.urls is None else len(one.urls),
                "failures": one.discovery.failures,
            }
            for pool, one in self._plan.followed.items()
        }

    # -- changing -------------------------------------------------------------------------

    def plan(self, configured: Settings) -> Plan:
        """What `configured` needs, made of what runs already where nothing about it changes.
        Raises TelemetryError; either way nothing has been touched."""
        followed: dict[str, Followed] = {}
        for name, pool in configured.admission.pools.items():
            if pool.discovery is None:
                continue
            old = self._plan.followed.get(name)
            followed[name] = (
                old
                if old is not None and old.made_of == pool.discovery
                else Followed(pool.discovery, build_discovery(pool.discovery, self._clock))
            )
        return self._planned(configured, followed)

    def adopt(self, plan: Plan) -> None:
        """Run by `plan` from now on. Sources and discoveries that it leaves out are closed soon
        after; what they still say is not listened to."""
        before, self._plan = self._plan, plan
        for name, old in before.followed.items():
            if plan.followed.get(name) is not old:
                if old.task is not None:
                    old.task.cancel()
                self._work.ended.append(old)
        if self._running:
            self._follow_all()
        self._work.plan = plan
        self._work.woken.set()

    def _planned(self, configured: Settings, followed: Mapping[str, Followed]) -> Plan:
        found = {name: one.urls for name, one in followed.items() if one.urls is not None}
        settings = with_found(configured, found)
        pools = settings.admission.pools
        sources = build_sources(settings.telemetry.sources, pools, self._clock, self._plan.sources)
        placed = placements(settings)
        same = placed.keys() == self._plan.placements.keys()
        headers = self._plan.headers if same else OrcaHeaders(placed.keys())
        return Plan(configured, settings, followed, sources, headers, placed)

    def _found(self, pool: str, one: Followed, urls: tuple[str, ...]) -> None:
        if self._plan.followed.get(pool) is not one:
            return
        log.info("pool %s: %s finds %d endpoints", pool, one.discovery.name, len(urls))
        one.urls = urls
        try:
            plan = self._planned(self._plan.configured, self._plan.followed)
            self.adopt(plan)
            self._listeners.on_endpoints(plan.settings)
        except Exception:  # what discovery calls must not end it
            log.exception("pool %s: endpoints that were found could not be taken over", pool)

    # -- running --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, in the running loop."""
        self._running = True
        self.collector.start()
        if self.worker is not None:
            self.worker.want(self._plan.wanted, self._plan.asking)
            self.worker.start()
        self._follow_all()
        self._background(self._keep_up())

    async def stop(self) -> None:
        """End every task and close everything."""
        self._running = False
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ended = [*self._plan.followed.values(), *self._work.ended]
        await asyncio.gather(*(self._close(one) for one in ended))
        if self.worker is not None:
            await self.worker.stop()
        await self.collector.stop()

    def _background(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _follow_all(self) -> None:
        for name, one in self._plan.followed.items():
            if one.task is None:
                one.task = self._background(self._follow(name, one))

    async def _follow(self, pool: str, one: Followed) -> None:
        while True:
            try:
                await one.discovery.run(partial(self._found, pool, one))
            except Exception:  # a fault in one discovery must not end it for ever
                log.exception("pool %s: fault in %s", pool, one.discovery.name)
            await self._sleep(RESTART_S)

    async def _keep_up(self) -> None:
        """Bring the collector to the newest plan, one change at a time: what was superseded
        while another was being made is skipped."""
        work = self._work
        while True:
            await work.woken.wait()
            work.woken.clear()
            plan, work.plan = work.plan, None
            ended, work.ended = work.ended, []
            await asyncio.gather(*(self._close(one) for one in ended))
            if plan is None:
                continue
            try:
                await self._bring_to(plan)
            except Exception:  # later changes must still be taken over
                log.exception("telemetry could not be brought to the new configuration")

    async def _bring_to(self, plan: Plan) -> None:
        if self.worker is None:
            await self.collector.reconfigure(plan.here(apart=False), plan.placements)
            return
        asking = plan.asking
        await self.collector.reconfigure(plan.here(apart=True), plan.placements, asking)
        self.worker.want(plan.wanted, asking)

    async def _close(self, one: Followed) -> None:
        if one.task is not None:
            await asyncio.gather(one.task, return_exceptions=True)
        try:
            await one.discovery.close()
        except Exception as error:
            log.error("discovery %s did not close: %s", one.discovery.name, type(error).__name__)
