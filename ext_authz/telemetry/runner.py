"""Runs every source under supervision and passes on what it says.

Sources share nothing but the loop: a slow or failing one neither delays nor discards what the
others say. Polls are spread over the interval, so that a large fleet does not come all at once.
A source that speaks by itself is started again when it ends, after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.source import PollSource, Source, StreamSource

log = logging.getLogger(__name__)

MAX_BACKOFF_INTERVALS = 8
MAX_BACKOFF_S = 5.0
"""A failing source is asked less often, but at least this often (or once an interval)."""

FIRST_POLLS_WITHIN_S = 1.0
"""After a start every source is asked within this time, however long the interval is."""

STREAM_PAUSE_S = 0.2
"""Before a stream that ended is started again; doubled each time it says nothing."""

Sleep = Callable[[float], Awaitable[object]]


@dataclass(slots=True)
class _Watch:
    """What is remembered of one source while it runs. `origin_s` anchors its phase."""

    source: Source
    origin_s: float
    first_s: float
    task: asyncio.Task[None] | None = None
    failures_in_a_row: int = 0


class Runner:
    """Runs sources. `on_report` gets a source's name and what it said, and answers whether that
    could be used; `on_failure` the name and what went wrong. Neither may raise.

    Raises ValueError if two sources have the same name.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        clock: Clock,
        on_report: Callable[[str, Report], bool],
        on_failure: Callable[[str, TelemetryError], None],
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._sources = _by_name(sources)
        self._clock = clock
        self._on_report = on_report
        self._on_failure = on_failure
        self._sleep = sleep
        self._watches: dict[str, _Watch] = {}
        self._running = False

    def start(self) -> None:
        """Begin, in the running loop. A second start does nothing."""
        if not self._running:
            self._running = True
            self._watch_new()

    async def stop(self) -> None:
        """End every task and close every source."""
        self._running = False
        await self._unwatch(list(self._watches))
        await _close(self._sources.values())
        self._sources = {}

    async def reconfigure(self, sources: Iterable[Source]) -> None:
        """Run `sources` from now on; every other source is closed. One that stays is not
        disturbed at all."""
        wanted = _by_name(sources)
        gone = {name: s for name, s in self._sources.items() if wanted.get(name) is not s}
        self._sources = wanted
        await self._unwatch(gone)
        await _close(gone.values())
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
        watch.failures_in_a_row += 1
        self._on_failure(watch.source.name, error)

    def _heard(self, watch: _Watch, report: Report) -> None:
        used = self._on_report(watch.source.name, report)
        watch.failures_in_a_row = 0 if used else watch.failures_in_a_row + 1


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
