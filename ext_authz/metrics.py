"""Every metric, in one table. Counting is plain integers; Prometheus types exist only while a
scrape is answered.

Labels are configured names, `Reason` and `Verdict`: nothing a client sends can make a series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ext_authz.estimation.kv import RISK_RATIO
from ext_authz.histogram import Histogram
from ext_authz.model import Decision

# Seconds spent in one Check, bytes in to bytes out.
CHECK_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)

Labels = tuple[str, ...]
Reading = Iterable[tuple[Labels, float]]
Histograms = Iterable[tuple[Labels, Histogram]]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: its name without the namespace, kind, labels and help text."""

    name: str
    kind: str
    labels: Labels
    help: str


TABLE: tuple[Row, ...] = (
    Row("decisions", "counter", ("tenant", "pool", "verdict", "would_be", "reason"),
        "Checks answered, by what happened and why"),
    Row("key_conflicts", "counter", (), "Requests whose headers carried different API keys"),
    Row("partial_bodies", "counter", (), "Requests whose body Envoy cut before we saw its end"),
    Row("memory_risks", "counter", ("tenant",),
        "Requests that may fill more than 5 % of their pool's KV cache"),
    Row("access_log_entries", "counter", ("result",),
        "Access-log entries, by what they did or why they did nothing; see docs/outcomes.md"),
    Row("access_log_lag_seconds", "gauge", ("quantile",),
        "From the end of a request to its access-log entry; absent while there was none"),
    Row("tapped_answers", "counter", ("result",),
        "Answers that the response tap showed, by what came of them; see docs/tap.md"),
    Row("lessons_skipped", "counter", (),
        "Outcomes that were settled and not learned from, as too many waited"),
    Row("learned_state_saves", "counter", ("result",),
        "Times that what was learned was to be written to its file: saved, failed"),
    Row("learned_state_age_seconds", "gauge", (),
        "Time since what is in the file of learned state was learned; absent while there is none"),
    Row("journal_lines", "counter", ("result",),
        "Lines for the journal's file: written, failed"),
    Row("journal_lines_lost", "counter", (), "Requests that were not recorded, as too many waited"),
    Row("endpoint_mismatches", "counter", ("pool",),
        "Settled requests that Envoy sent to another endpoint than the one charged"),
    Row("check_seconds", "histogram", (),
        "Time of one Check, bytes in to bytes out, without what it was held for"),
    Row("hold_seconds", "histogram", ("pool", "result"),
        "Waiting at the gate, by how it ended: dispatched, late, evicted, left"),
    Row("hold_queue", "gauge", ("pool",), "Requests that wait at the gate now"),
    Row("config_reloads", "counter", ("result",), "Configuration changes seen: loaded, refused"),
    Row("reservations_expired", "counter", (), "Reservations ended by their lease"),
    Row("telemetry_reports", "counter", ("source", "result"), "By source: success, failure"),
    Row("telemetry_dropped", "counter", ("reason",), "Unusable numbers that sources told"),
    Row("telemetry_strangers", "counter", (),
        "Samples of endpoints that are not configured, and of devices beyond the bound"),
    Row("telemetry_lost", "gauge", ("pool",),
        "1 while no endpoint of the pool has telemetry that can be acted on"),
    Row("telemetry_missing_signals", "gauge", ("source", "signal"),
        "1 for each signal that a source should show and does not"),
    Row("in_flight", "gauge", ("pool", "endpoint"), "Own unsettled reservations"),
    Row("foreign_load", "gauge", ("pool", "endpoint"), "Requests in the engine from elsewhere"),
    Row("slots", "gauge", ("pool", "endpoint"), "Configured concurrency"),
    Row("admissible", "gauge", ("pool", "endpoint"),
        "Requests that the endpoint may carry: its slots, or fewer where its knee was measured"),
    Row("card_growth_ratio", "gauge", ("pool", "endpoint"),
        "Part of the card's memory in use beyond what was in use when nothing ran there: engines "
        "that take all of it when they start should show next to none"),
    Row("execution_seconds", "gauge", ("pool", "endpoint"), "Mean execution in use"),
    Row("telemetry_age_seconds", "gauge", ("pool", "endpoint"),
        "Age of the last sample; absent while there was none"),
    Row("pool_requests", "counter", ("pool", "result"),
        "Requests by the pool that they were meant for: admitted, demoted, refused"),
    Row("promises", "counter", ("pool", "tenant", "result"),
        "Requests that were let in and are over, by their latency promise: kept, broken, failed "
        "by the server, unpromised"),
    Row("device_seconds", "counter", ("pool", "tenant"),
        "Time of devices that requests took, shared evenly between those on them"),
    Row("refusals_judged", "counter", ("pool", "result"),
        "Refusals for want of capacity: premature if the pool stayed below its limit for the "
        "predicted life of the request and its tenant was within its share, needed if not; "
        "skipped when too many waited to be judged"),
    Row("refusals_tried", "counter", ("pool", "result"),
        "Refusals let in to see what becomes of them: kept their promise, missed it"),
    Row("would_have", "counter", ("pool", "tenant", "would_be", "reason", "result"),
        "Requests let in by enforcement that is shadow, by the verdict on record: let_in; and once "
        "over: premature if they kept their promise all the same, right if not, failed by the "
        "server, unpromised"),
    Row("margin_seconds", "gauge", ("pool",), "The safety margin that the tuner holds"),
    Row("predicting", "gauge", ("pool", "mode"),
        "1 while the pool acts on predictions, 0 while on gauges and means"),
    Row("mode_switches", "counter", ("pool",),
        "Times that a hybrid pool began or ceased to act on predictions"),
    Row("efficiency_ratio", "gauge", ("pool",),
        "Admission Efficiency Score over 10 minutes: promises kept of those let in and over"),
    Row("efficiency_alarm", "gauge", ("pool",),
        "1 while that is below 0.97, of at least 100 requests"),
    Row("goodput_per_second", "gauge", ("pool",), "Promises kept a second, over a minute"),
    Row("prediction_error_ratio", "gauge", ("pool", "quantile"),
        "Error of recent predictions relative to the true time"),
    Row("prediction_bias_ratio", "gauge", ("pool",),
        "Predicted time of recent requests over the true one, less one"),
    Row("prediction_coverage_ratio", "gauge", ("pool", "quantile"),
        "Part of recent requests that stayed within each predicted quantile"),
    Row("config_info", "gauge", ("fingerprint",), "The running configuration"),
    Row("config_age_seconds", "gauge", (), "Time since the running configuration was loaded"),
)  # fmt: skip
_ROWS = {row.name: row for row in TABLE}
NAMESPACE = "ext_authz_"


class Metrics(Collector):
    """Counts, and answers a scrape. Gauges and foreign counters are read when scraped."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {
            # Without labels there is one series, and its rate is right only if it begins at 0.
            row.name: Counter() if row.labels else Counter({(): 0})
            for row in TABLE
            if row.kind == "counter"
        }
        self._readers: dict[str, Callable[[], Reading]] = {}
        self._decisions = self._counts["decisions"]
        checks = self._checks = Histogram(CHECK_BUCKETS_S)
        self._histograms: dict[str, Callable[[], Histograms]] = {
            "check_seconds": lambda: [((), checks)]
        }

    def count(self, name: str, *labels: str) -> None:
        """Add one to a counter of the table."""
        self._counts[name][labels] += 1

    def count_times(self, name: str, times: int, *labels: str) -> None:
        """Add so many to a counter of the table."""
        self._counts[name][labels] += times

    def value(self, name: str, *labels: str) -> int:
        """A counter's value, for tests and the status page."""
        return self._counts[name][labels]

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count one answered Check."""
        self._decisions[
            (
                decision.tenant or "unknown",
                decision.pool or "",
                decision.verdict,
                decision.would_be,
                decision.reason,
            )
        ] += 1
        seen = decision.evidence
        if seen is not None and (seen.memory_risk_ratio or 0.0) > RISK_RATIO:
            self._counts["memory_risks"][(decision.tenant or "unknown",)] += 1
        if decision.held is not None:
            seconds -= decision.held.seconds
        self._checks.add(seconds)

    def read_with(self, name: str, reader: Callable[[], Reading]) -> None:
        """Have a metric of the table read by `reader` at each scrape."""
        self._readers[_ROWS[name].name] = reader

    def read_histograms_with(self, name: str, reader: Callable[[], Histograms]) -> None:
        """Have a histogram of the table read by `reader` at each scrape."""
        self._histograms[_ROWS[name].name] = reader

    def keep_tenants(self, tenants: Set[str]) -> None:
        """Drop the series of tenants that are no longer configured."""
        for labels in [k for k in self._decisions if k[0] not in tenants and k[0] != "unknown"]:
            del self._decisions[labels]

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client renders."""
        for row in TABLE:
            name = NAMESPACE + row.name
            if row.kind == "histogram":
                histogram = HistogramMetricFamily(name, row.help, labels=row.labels)
                for labels, counted in self._histograms.get(row.name, list)():
                    histogram.add_metric(labels, counted.buckets(), counted.total)
                yield histogram
                continue
            reading = self._readers.get(row.name, self._counts.get(row.name, Counter()).items)()
            counts = row.kind == "counter"
            kind = CounterMetricFamily if counts else GaugeMetricFamily
            family = kind(name, row.help, labels=row.labels)
            for labels, value in reading:
                family.add_metric(labels, value)
            yield family
