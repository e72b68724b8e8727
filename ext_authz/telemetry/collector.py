"""Runs every source under supervision and keeps the merged snapshot.

Sources share nothing but the loop: a slow or failing one neither delays nor discards what the
others say. Polls are spread over the interval, so that a large fleet does not come all at once.
A source that speaks by itself is started again when it ends, after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report, Snapshot
from ext_authz.telemetry.merge import Merger
from ext_authz.telemetry.source import PollSource, Source, StreamSource
from ext_authz.telemetry.window import Trends

log = logging.getLogger(__name__)

MAX_BACKOFF_INTERVALS = 8
MAX_BACKOFF_S = 5.0
"""A failing source is asked less often, but at least this often (or once an interval)."""

FIRST_POLLS_WITHIN_S = 1.0
"""After a start every source is asked within this time, however long the interval is."""

STREAM_PAUSE_S = 0.2
"""Before a stream that ended is started again; doubled each time it says nothing."""


@dataclass(slots=True)
class _Watch:
    """What is remembered of one source while it runs. `origin_s` anchors its phase."""

    source: Source
    origin_s: float
    first_s: float
    task: asyncio.Task[None] | None = None
    failures_in_a_row: int = 0
    missing: frozenset[str] = frozenset()
    listener_broken: bool = False


class Collector:
    """Runs sources and swaps an immutable `snapshot` with each report.

    `endpoints` are the configured addresses and the devices they were put on. `on_sample` gets
    the time at which a report arrived (monotonic seconds) and each merged sample that it
    changed; `on_failure` the source's name and what went wrong. What they raise is logged and
    counted in `listener_errors`, and ends nothing. `successes` and `failures` count by source,
    `dropped` unusable samples by reason; all only grow while their source runs.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        endpoints: Mapping[str, str | None],
        clock: Clock,
        on_sample: Callable[[float, EndpointSample], None],
        on_failure: Callable[[str, TelemetryError], None],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._sources = _by_name(sources)
        self._merger = Merger(endpoints)
        self._clock = clock
        self._on_sample = on_sample
        self._on_failure = on_failure
        self._sleep = sleep
        self._watches: dict[str, _Watch] = {}
        self._running = False
        self.successes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.listener_errors = 0
        self.trends = Trends()

    @property
    def snapshot(self) -> Snapshot:
        """What is known of each endpoint and device, however old: each number bears its date."""
        return self._merger.snapshot

    @property
    def strangers(self) -> int:
        """Samples of endpoints that are not configured."""
        return self._merger.strangers

    @property
    def missing(self) -> dict[str, frozenset[str]]:
        """Signals each source should show and does not; sources without such are left out."""
        return {name: watch.missing for name, watch in self._watches.items() if watch.missing}

    def start(self) -> None:
        """Begin, in the running loop. A second start does nothing."""
        if not self._running:
            self._running = True
            self._watch_new()

    async def stop(self) -> None:
        """End every task and close every source. The snapshot stays and ages."""
        self._running = False
        await self._unwatch(list(self._watches))
        await _close(self._sources.values())
        self._sources = {}

    async def reconfigure(
        self, sources: Iterable[Source], endpoints: Mapping[str, str | None]
    ) -> None:
        """Run `sources` for `endpoints` from now on; every other source is closed.

        Endpoints that stay keep their sample. A source object that stays is not disturbed at
        all; the samples of endpoints that go, and the counts of sources, are forgotten.
        """
        wanted = _by_name(sources)
        gone = {name: s for name, s in self._sources.items() if wanted.get(name) is not s}
        self._sources = wanted
        # Samples name their source, or only its kind.
        names = {part for name in wanted for part in (name, name.partition("/")[0])}
        self._merger.reconfigure(endpoints, names)
        self.trends.keep(endpoints)
        await self._unwatch(gone)
        await _close(gone.values())
        for counter in (self.successes, self.failures):
            for name in counter.keys() - self._sources.keys():
                del counter[name]
        if self._running:
            self._watch_new()

    def _watch_new(self) -> None:
        now = self._clock.now()
        for index, (name, source) in enumerate(self._sources.items()):
            if name in self._watches:
                continue
            share = index / len(self._sources)
            if isinstance(source, PollSource):
                interval_s = source.interval_s
                watch = _Watch(
                    source,
                    origin_s=now + share * interval_s,
                    first_s=now + share * min(interval_s, FIRST_POLLS_WITHIN_S),
                )
                work = self._poll_on(watch, source)
            else:
                watch = _Watch(source, now, now)
                work = self._listen_on(watch, source)
            watch.task = asyncio.create_task(work, name=f"telemetry {name}")
            self._watches[name] = watch

    async def _unwatch(self, names: Iterable[str]) -> None:
        tasks = [
            watch.task
            for watch in (self._watches.pop(name, None) for name in names)
            if watch is not None and watch.task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll_on(self, watch: _Watch, source: PollSource) -> None:
        await self._sleep(max(0.0, watch.first_s - self._clock.now()))
        while True:
            started_s = self._clock.now()
            await self._poll(watch, source, started_s)
            due_s = next_poll_s(
                watch.origin_s, source.interval_s, started_s, watch.failures_in_a_row
            )
            now = self._clock.now()
            if due_s <= now:
                # That turn has passed: the next one of the same phase.
                due_s = next_poll_s(watch.origin_s, source.interval_s, now, 0)
            await self._sleep(due_s - now)

    async def _poll(self, watch: _Watch, source: PollSource, now: float) -> None:
        try:
            report = await source.poll(now)
        except TelemetryError as error:
            self._failed(watch, error)
        except Exception as error:
            self._failed(watch, self._fault(watch, error))
        else:
            self._heard(watch, report)

    async def _listen_on(self, watch: _Watch, source: StreamSource) -> None:
        while True:
            try:
                await source.run(lambda report: self._heard(watch, report))
                self._failed(watch, TelemetryError("the stream ended"))
            except TelemetryError as error:
                self._failed(watch, error)
            except Exception as error:
                self._failed(watch, self._fault(watch, error))
            pause_s = STREAM_PAUSE_S * 2.0 ** min(watch.failures_in_a_row - 1, 10)
            await self._sleep(min(pause_s, MAX_BACKOFF_S))

    def _fault(self, watch: _Watch, error: Exception) -> TelemetryError:
        """A fault of ours in one source must not end what keeps the others alive."""
        if watch.failures_in_a_row == 0:
            log.error("%s: fault in a source", watch.source.name, exc_info=error)
        return TelemetryError(f"fault in a source: {type(error).__name__}")

    def _failed(self, watch: _Watch, error: TelemetryError) -> None:
        name = watch.source.name
        self.failures[name] += 1
        watch.failures_in_a_row += 1
        if watch.failures_in_a_row == 1:
            log.warning("%s: no telemetry: %s", name, error)
        self._tell(watch, lambda: self._on_failure(name, error))

    def _heard(self, watch: _Watch, report: Report) -> None:
        """Take `report` in. That we cannot is a fault of ours, and ends neither the polls nor
        whoever speaks."""
        try:
            samples = self._merger.take(report)
            for sample in samples:
                self.trends.take(sample)
        except Exception as error:
            self._failed(watch, self._fault(watch, error))
            return
        self._succeeded(watch, report)
        arrived_s = self._clock.now()
        told = [self._tell(watch, partial(self._on_sample, arrived_s, one)) for one in samples]
        if told and all(told):
            watch.listener_broken = False

    def _succeeded(self, watch: _Watch, report: Report) -> None:
        name = watch.source.name
        self.successes[name] += 1
        self.dropped.update(report.dropped)
        if watch.failures_in_a_row:
            log.info("%s: telemetry again, after %d failures", name, watch.failures_in_a_row)
            watch.failures_in_a_row = 0
        if report.missing != watch.missing:
            if report.missing:
                log.warning("%s: signals not found: %s", name, ", ".join(sorted(report.missing)))
            else:
                log.info("%s: all signals found", name)
            watch.missing = report.missing

    def _tell(self, watch: _Watch, call: Callable[[], None]) -> bool:
        """Whether the listener took it. That it does not is logged once until it takes all of a
        report again: one report may be about many endpoints, and many come a second."""
        try:
            call()
        except Exception:
            self.listener_errors += 1
            if not watch.listener_broken:
                log.exception("%s: a listener failed", watch.source.name)
            watch.listener_broken = True
            return False
        return True


def next_poll_s(origin_s: float, interval_s: float, started_s: float, failures: int) -> float:
    """When to poll again after a poll that began at `started_s`, the last `failures` in vain.

    A multiple of the interval after `origin_s`, so that endpoints keep apart: the next one while
    all is well, twice as far with each failure, up to `MAX_BACKOFF_INTERVALS` and
    `MAX_BACKOFF_S`. Monotonic seconds; always later than `started_s`.
    """
    backoff_s = interval_s * min(2.0 ** min(failures, 10), MAX_BACKOFF_INTERVALS)
    pause_s = max(interval_s, min(backoff_s, MAX_BACKOFF_S))
    # A timer may fire a little early: that turn still counts as begun.
    turn = math.floor((started_s + pause_s - origin_s) / interval_s + 0.01)
    due_s = origin_s + turn * interval_s
    return due_s if due_s > started_s + 0.01 * interval_s else due_s + interval_s


def _by_name(sources: Iterable[Source]) -> dict[str, Source]:
    """Sources by name. Raises ValueError if two have the same one."""
    named: dict[str, Source] = {}
    for source in sources:
        if named.setdefault(source.name, source) is not source:
            raise ValueError(f"two sources named {source.name}")
    return named


async def _close(sources: Iterable[Source]) -> None:
    for error in await asyncio.gather(*(s.close() for s in sources), return_exceptions=True):
        if isinstance(error, Exception):
            log.error("a telemetry source did not close: %s", type(error).__name__)
