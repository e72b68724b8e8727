"""What can be seen from outside: the admin pages' contents, the gauges, and one log line when a
pool loses its telemetry and one when it has it back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

from ext_authz.admission import scoreboard
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.memory import card_growth_ratio
from ext_authz.admission.modes import JUDGED_OF
from ext_authz.clock import Clock
from ext_authz.config.compile import Loaded
from ext_authz.fleet import Fleet
from ext_authz.metrics import Labels, Metrics
from ext_authz.serving.gate import Gate
from ext_authz.settings import Pool
from ext_authz.snapshot import Freshness
from ext_authz.telemetry.describe import SourceState, describe

log = logging.getLogger(__name__)

UNUSABLE = frozenset({Freshness.STALE, Freshness.NEVER})


@dataclass(slots=True)
class _Watched:
    """What was last said of a pool's telemetry, and since when that may be judged; how often it
    had changed between predictions and gauges; whether it was said that Envoy goes its own way."""

    since_s: float
    lost_s: float | None = None
    switches: int = 0
    mismatched: bool = False


class Lookout:
    """Looks at the running parts; changes nothing.

    `loaded` is the configuration that runs, taken over at `loaded_at_s` (monotonic seconds).
    """

    def __init__(self, gate: Gate, fleet: Fleet, clock: Clock, loaded: Loaded) -> None:
        self.loaded = loaded
        self.loaded_at_s = clock.now()
        self._gate = gate
        self._fleet = fleet
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    # -- loudness -------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Say what has changed since the last look: once, not as long as it lasts."""
        pools = self._gate.settings.admission.pools
        self._watched = {n: w for n, w in self._watched.items() if n in pools}
        for name, pool in pools.items():
            watched = self._watched.setdefault(name, _Watched(now))
            self._tell_footing(name, watched)
            self._tell_mismatch(name, watched)
            if not self._is_lost(pool, now):
                if watched.lost_s is not None:
                    log.warning(
                        "pool %s: telemetry is back after %.1f s", name, now - watched.lost_s
                    )
                    watched.lost_s = None
            # A pool that is new has not lost what it cannot have yet.
            elif watched.lost_s is None and self._had_time(pool, watched, now):
                watched.lost_s = now
                log.error(
                    "pool %s: telemetry of all %d endpoints is lost, fallback_action %s decides",
                    name,
                    len(pool.endpoints),
                    self._gate.settings.admission.fallback,
                )

    def _tell_footing(self, name: str, watched: _Watched) -> None:
        """A hybrid pool begins or ceases to act on predictions."""
        pool = self._gate.controller.pools.by_name[name]
        footing = pool.trust.footing()
        if footing.switches <= watched.switches:
            # A reload that changed its mode has it begin anew.
            watched.switches = footing.switches
            return
        watched.switches = footing.switches
        seen = pool.measures.accuracy(JUDGED_OF)
        log.warning(
            "pool %s: %s (median error of recent ones %.0f %%)",
            name,
            "acts on predictions" if footing.predicts else "predictions are off, gauges decide",
            100.0 * (seen.median_error_ratio if seen else 0.0),
        )

    def _tell_mismatch(self, name: str, watched: _Watched) -> None:
        seen = self._gate.mismatches.of(name)
        if seen is None or seen.frequent is watched.mismatched:
            return
        watched.mismatched = seen.frequent
        if seen.frequent:
            log.warning(
                "pool %s: Envoy sends %.0f %% of requests to another endpoint than the gate names,"
                " the last one to %s instead of %s: both need the same endpoints",
                name,
                100.0 * seen.ratio,
                seen.served,
                seen.charged,
            )
        else:
            log.warning("pool %s: Envoy sends requests where the gate says again", name)

    def lost(self) -> tuple[str, ...]:
        """Pools without an endpoint whose telemetry can be acted on, in file order."""
        now = self._clock.now()
        pools = self._gate.settings.admission.pools
        return tuple(name for name, pool in pools.items() if self._is_lost(pool, now))

    def _is_lost(self, pool: Pool, now: float) -> bool:
        snapshot = self._fleet.collector.snapshot
        return all(
            snapshot.freshness(endpoint.address, now, pool.staleness) in UNUSABLE
            for endpoint in pool.endpoints
        )

    def _had_time(self, pool: Pool, watched: _Watched, now: float) -> bool:
        known = self._fleet.collector.snapshot.samples
        seen = any(endpoint.address in known for endpoint in pool.endpoints)
        return seen or now - watched.since_s >= pool.staleness.fresh_s + self._fleet.first_within_s

    # -- pages ----------------------------------------------------------------------------

    def telemetry(self) -> dict[str, Any]:
        """Every number with its age and source."""
        now, collector = self._clock.now(), self._fleet.collector
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

    def status(self) -> dict[str, Any]:
        """What runs and how it is."""
        now, collector = self._clock.now(), self._fleet.collector
        snapshot = collector.snapshot
        pools = {
            name: {
                "endpoints": {
                    e.address: snapshot.freshness(e.address, now, pool.staleness)
                    for e in pool.endpoints
                },
                "telemetry_lost": self._is_lost(pool, now),
                "waiting": self._gate.controller.holding.depth(name),
                "mismatches": self._mismatches(name),
                "measures": scoreboard.page(self._gate.controller.pools.by_name[name], now),
            }
            for name, pool in self._gate.settings.admission.pools.items()
        }
        return {
            "fingerprint": self._gate.settings.fingerprint,
            "pools": pools,
            "discovery": self._fleet.discovered(),
            "telemetry_worker": self._worker(),
            "missing_signals": {k: sorted(v) for k, v in collector.missing.items()},
            "enforcement": self._enforcement(),
            "in_flight": len(self._gate.controller.ledger),
            "warnings": [str(problem) for problem in self.loaded.warnings],
        }

    def _enforcement(self) -> dict[str, Any]:
        said = self._gate.settings.admission.enforcing
        return {
            "everywhere": said.everywhere,
            "policies": dict(said.rules),
            "pools": dict(said.pools),
            "tenants": dict(said.tenants),
        }

    def _mismatches(self, name: str) -> dict[str, Any]:
        """Requests that Envoy sent to another endpoint than the gate named."""
        seen = self._gate.mismatches.of(name)
        if seen is None:
            return {"ratio": 0.0}
        last = {"named": seen.charged, "served": seen.served}
        return {"ratio": round(seen.ratio, 4), "last": last}

    def _worker(self) -> dict[str, Any] | None:
        worker = self._fleet.worker
        return None if worker is None else {"pid": worker.pid, "ended": worker.ended}

    # -- metrics --------------------------------------------------------------------------

    def wire(self, metrics: Metrics) -> None:
        """Have the gauges read from what runs."""
        gate, clock, collector = self._gate, self._clock, self._fleet.collector
        by_endpoint: dict[str, Callable[[EndpointState], float | None]] = {
            "in_flight": lambda s: s.own,
            "foreign_load": lambda s: s.foreign,
            "slots": lambda s: s.spec.max_concurrency,
            "card_growth_ratio": card_growth_ratio,
            "admissible": lambda s: s.limit,
            "execution_seconds": lambda s: s.execution.value_s,
            "telemetry_age_seconds": self._age_s,
        }
        for name, value in by_endpoint.items():
            metrics.read_with(name, partial(self._each, value))
        metrics.read_with("reservations_expired", lambda: [((), gate.controller.expired_total)])
        holding = gate.controller.holding
        metrics.read_histograms_with("hold_seconds", holding.waits.by_end.items)
        metrics.read_with(
            "hold_queue",
            lambda: [((p,), float(holding.depth(p))) for p in gate.settings.admission.pools],
        )
        metrics.read_with("config_info", lambda: [((gate.settings.fingerprint,), 1.0)])
        metrics.read_with("config_age_seconds", lambda: [((), clock.now() - self.loaded_at_s)])
        metrics.read_with("telemetry_reports", self._reports)
        metrics.read_with("telemetry_lost", self._lost)
        metrics.read_with("telemetry_missing_signals", self._missing)
        metrics.read_with(
            "telemetry_dropped", lambda: [((k,), float(n)) for k, n in collector.dropped.items()]
        )
        metrics.read_with("telemetry_strangers", lambda: [((), float(collector.strangers))])
        for name, score in scoreboard.READERS.items():
            metrics.read_with(name, partial(self._scores, score))

    def _each(
        self, value: Callable[[EndpointState], float | None]
    ) -> Iterator[tuple[Labels, float]]:
        for pool, state in self._gate.controller.endpoint_states():
            if (number := value(state)) is not None:
                yield (pool, state.spec.address), float(number)

    def _scores(self, read: scoreboard.Reader) -> Iterator[tuple[Labels, float]]:
        return read(self._gate.controller.pools.by_name, self._clock.now())

    def _age_s(self, state: EndpointState) -> float | None:
        if state.sample is None or not isfinite(state.sample.at_s):
            return None
        return self._clock.now() - state.sample.at_s

    def _reports(self) -> Iterator[tuple[Labels, float]]:
        collector = self._fleet.collector
        for result, counts in (
            ("success", collector.successes),
            ("failure", collector.failures),
        ):
            for source, number in counts.items():
                yield (source, result), float(number)

    def _lost(self) -> Iterator[tuple[Labels, float]]:
        lost = self.lost()
        for name in self._gate.settings.admission.pools:
            yield (name,), float(name in lost)

    def _missing(self) -> Iterator[tuple[Labels, float]]:
        for source, signals in self._fleet.collector.missing.items():
            for signal in sorted(signals):
                yield (source, signal), 1.0
