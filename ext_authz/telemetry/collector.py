"""Takes in what sources say: one merged snapshot, listeners told, and how every source is doing.

Sources run here, under supervision, or elsewhere, from where their words are handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report, Snapshot
from ext_authz.telemetry.merge import Merger
from ext_authz.telemetry.runner import Runner, Sleep
from ext_authz.telemetry.source import Source
from ext_authz.telemetry.window import Trends

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Health:
    """What is remembered of one source."""

    failures_in_a_row: int = 0
    missing: frozenset[str] = frozenset()
    listener_broken: bool = False


class Collector:
    """Swaps an immutable `snapshot` with each report.

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
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._runner = Runner(sources, clock, self.heard, self.failed, sleep=sleep)
        self._merger = Merger(endpoints)
        self._clock = clock
        self._on_sample = on_sample
        self._on_failure = on_failure
        self._health: dict[str, _Health] = {}
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
        return {name: health.missing for name, health in self._health.items() if health.missing}

    def start(self) -> None:
        """Begin, in the running loop. A second start does nothing."""
        self._runner.start()

    async def stop(self) -> None:
        """End every task and close every source. The snapshot stays and ages."""
        await self._runner.stop()

    async def reconfigure(
        self,
        sources: Iterable[Source],
        endpoints: Mapping[str, str | None],
        elsewhere: Set[str] = frozenset(),
    ) -> None:
        """Run `sources` for `endpoints` from now on; every other source is closed. Those named
        in `elsewhere` run somewhere else.

        Endpoints that stay keep their sample. A source object that stays is not disturbed at
        all; the samples of endpoints that go, and the counts of sources, are forgotten.
        """
        sources = tuple(sources)
        wanted = elsewhere | {source.name for source in sources}
        # Samples name their source, or only its kind.
        self._merger.reconfigure(endpoints, wanted | {n.partition("/")[0] for n in wanted})
        self.trends.keep(endpoints)
        await self._runner.reconfigure(sources)
        for counts in (self.successes, self.failures, self._health):
            for name in counts.keys() - wanted:
                del counts[name]

    def heard(self, name: str, report: Report, reports: int = 1) -> bool:
        """Take in what the source of this name said, the newest of `reports`; whether that could
        be done. That it could not is a fault of ours, and ends nothing."""
        health = self._health.setdefault(name, _Health())
        try:
            samples = self._merger.take(report)
            for sample in samples:
                self.trends.take(sample)
        except Exception as error:
            if health.failures_in_a_row == 0:
                log.error("%s: fault in a source", name, exc_info=error)
            self.failed(name, TelemetryError(f"fault in a source: {type(error).__name__}"))
            return False
        self.successes[name] += reports
        self._succeeded(name, health, report)
        arrived_s = self._clock.now()
        told = [
            self._tell(name, health, partial(self._on_sample, arrived_s, one)) for one in samples
        ]
        if told and all(told):
            health.listener_broken = False
        return True

    def failed(self, name: str, error: TelemetryError, failures: int = 1) -> None:
        """The source of this name failed, `failures` times since it last said something."""
        health = self._health.setdefault(name, _Health())
        self.failures[name] += failures
        if health.failures_in_a_row == 0:
            log.warning("%s: no telemetry: %s", name, error)
        health.failures_in_a_row += failures
        self._tell(name, health, lambda: self._on_failure(name, error))

    def _succeeded(self, name: str, health: _Health, report: Report) -> None:
        self.dropped.update(report.dropped)
        if health.failures_in_a_row:
            log.info("%s: telemetry again, after %d failures", name, health.failures_in_a_row)
            health.failures_in_a_row = 0
        if report.missing != health.missing:
            if report.missing:
                log.warning("%s: signals not found: %s", name, ", ".join(sorted(report.missing)))
            else:
                log.info("%s: all signals found", name)
            health.missing = report.missing

    def _tell(self, name: str, health: _Health, call: Callable[[], None]) -> bool:
        """Whether the listener took it. That it does not is logged once until it takes all of a
        report again: one report may be about many endpoints, and many come a second."""
        try:
            call()
        except Exception:
            self.listener_errors += 1
            if not health.listener_broken:
                log.exception("%s: a listener failed", name)
            health.listener_broken = True
            return False
        return True
