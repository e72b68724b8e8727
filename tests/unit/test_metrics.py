"""Metrics: what is counted, and that no client can make a series."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from itertools import count
from random import Random
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from ext_authz.histogram import Histogram
from ext_authz.metrics import CHECK_BUCKETS_S, NAMESPACE, TABLE, Metrics
from ext_authz.model import Decision, Reason, Verdict
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.wire import compile_messages
from tests.support.settings import make_pool, make_settings
from tests.support.world import sample, tenant

ADMITTED = Decision(Verdict.ADMIT, Reason.HEADROOM, Verdict.ADMIT, tenant="acme", pool="p")
WIRE = compile_messages()


class FixedClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1.7e9


def page(metrics: Metrics) -> list[Metric]:
    """What a Prometheus server would read."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return list(text_string_to_metric_families(generate_latest(registry).decode()))


def series(metrics: Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (s.name, tuple(sorted(s.labels.items())))
        for family in page(metrics)
        for s in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    for family in page(metrics):
        for found in family.samples:
            if found.name == name and found.labels == labels:
                return found.value
    return None


def test_decisions_are_counted_by_what_happened_and_why() -> None:
    """Each decision adds one to one series."""
    metrics = Metrics()
    metrics.decided(ADMITTED, 0.001)
    metrics.decided(ADMITTED, 0.001)
    metrics.decided(replace(ADMITTED, verdict=Verdict.DEMOTE, would_be=Verdict.DEMOTE), 0.001)
    labels = {"tenant": "acme", "pool": "p", "would_be": "admit", "reason": "headroom"}
    assert value(metrics, "ext_authz_decisions_total", verdict="admit", **labels) == 2.0
    assert metrics.value("decisions", "acme", "p", "demote", "demote", "headroom") == 1


def test_counters_without_labels_start_at_zero() -> None:
    """A rate over the first event is only right if the series was there before it."""
    metrics = Metrics()
    assert value(metrics, "ext_authz_key_conflicts_total") == 0.0
    metrics.count("key_conflicts")
    assert value(metrics, "ext_authz_key_conflicts_total") == 1.0


def test_every_row_of_the_table_is_exposed() -> None:
    """The page has a family for each metric, with its help."""
    families = {family.name: family.documentation for family in page(Metrics())}
    for row in TABLE:
        assert families[NAMESPACE + row.name] == row.help
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_a_metric_that_is_not_in_the_table_is_a_fault() -> None:
    """A misspelt name is not counted silently."""
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.count("no_such_metric")
    with pytest.raises(KeyError):
        metrics.read_with("no_such_metric", dict)


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, "5e-05"), (0.00005, "5e-05"), (0.00006, "0.0001"), (9.0, "+Inf")]
)
def test_a_check_falls_into_its_bucket(seconds: float, bound: str) -> None:
    """Bounds are upper bounds, included; the sum and count agree."""
    metrics = Metrics()
    metrics.decided(ADMITTED, seconds)
    bounds = [str(b) for b in (*CHECK_BUCKETS_S, "+Inf")]
    counts = [value(metrics, "ext_authz_check_seconds_bucket", le=b) for b in bounds]
    first = bounds.index(bound)
    assert counts == [0.0] * first + [1.0] * (len(bounds) - first)
    assert value(metrics, "ext_authz_check_seconds_count") == 1.0
    assert value(metrics, "ext_authz_check_seconds_sum") == seconds


def test_histograms_are_read_when_scraped() -> None:
    """With their labels; none before there is one."""
    metrics = Metrics()
    seen: dict[tuple[str, ...], Histogram] = {}
    metrics.read_histograms_with("hold_seconds", seen.items)
    assert "ext_authz_hold_seconds_count" not in {name for name, _ in series(metrics)}
    seen["p", "late"] = late = Histogram((0.1, 0.2))
    for seconds in (0.1, 0.15, 0.3):
        late.add(seconds)
    labels = {"pool": "p", "result": "late"}
    name = "ext_authz_hold_seconds"
    found = [value(metrics, f"{name}_bucket", le=le, **labels) for le in ("0.1", "0.2", "+Inf")]
    assert found == [1.0, 2.0, 3.0]
    assert value(metrics, f"{name}_count", **labels) == 3.0
    assert value(metrics, f"{name}_sum", **labels) == pytest.approx(0.55)


def test_gauges_are_read_when_scraped() -> None:
    """A reader's numbers are those of the moment of the scrape."""
    metrics, numbers = Metrics(), Counter({("p", "e:80"): 3})
    metrics.read_with("in_flight", numbers.items)
    assert value(metrics, "ext_authz_in_flight", pool="p", endpoint="e:80") == 3.0
    numbers["p", "e:80"] = 4
    assert value(metrics, "ext_authz_in_flight", pool="p", endpoint="e:80") == 4.0


def test_series_of_removed_tenants_go_away() -> None:
    """After a reload only configured tenants, and nobody's requests, keep their series."""
    metrics = Metrics()
    for name in ("acme", "gone", None):
        metrics.decided(replace(ADMITTED, tenant=name), 0.001)
    metrics.keep_tenants({"acme"})
    tenants = {dict(labels).get("tenant") for _, labels in series(metrics)} - {None}
    assert tenants == {"acme", "unknown"}


def service() -> tuple[CheckService, Gate]:
    """A real Check service for one tenant with the key `known`, and one idle endpoint."""
    configured = make_settings((make_pool("p", "e:80", slots=16),), (tenant("acme"),))
    pool = replace(configured.admission.pools["p"], models=frozenset({"m"}))
    admission = replace(configured.admission, pools={"p": pool})
    keys = {sha256(b"known").digest(): "acme"}
    ids = (f"d{number}" for number in count())
    gate = Gate(replace(configured, admission=admission, keys=keys), ids, Random(1), Metrics(), 0.0)
    gate.observe(sample("e:80", 100.0))
    return CheckService(gate, Codec(WIRE), FixedClock()), gate


def check_bytes(key: str, model: str, path: str) -> bytes:
    """A Check of a chat request."""
    message: Any = WIRE.check_request()
    http = message.attributes.request.http
    http.method, http.path = "POST", path
    http.headers["authorization"] = f"Bearer {key}"
    http.headers["content-type"] = "application/json"
    http.raw_body = json.dumps({"model": model, "messages": []}).encode()
    return bytes(message.SerializeToString())


async def send_junk(checks: CheckService, numbers: range) -> None:
    """A new key, a new model and a new path for each number."""
    path = "/v1/chat/completions"
    for number in numbers:
        junk = f"junk-{number}"
        await checks.check(check_bytes(junk, junk, f"/{junk}"), None)
        await checks.check(check_bytes("known", junk, path), None)
        await checks.check(check_bytes("known", "m", f"{path}/{junk}"), None)


async def test_junk_makes_no_series() -> None:
    """Ten thousand new models, keys and paths leave as many series as a few did, the page parses,
    and nothing a client sent is on it."""
    checks, gate = service()
    odd = 'new\nline "quote" back\\slash'
    await send_junk(checks, range(30))
    for model in (odd, "x" * 100_000):
        await checks.check(check_bytes("known", model, "/v1/chat/completions"), None)
    await checks.check(check_bytes(odd.replace("\n", ""), "m", "/v1/chat/completions"), None)
    before = series(gate.metrics)
    await send_junk(checks, range(30, 3364))
    after = series(gate.metrics)
    assert after == before
    assert len(after) < 60
    shown = {value for _, labels in after for _, value in labels}
    assert "known" not in shown
    assert not any("junk" in value for value in shown)
    unknown = ("unknown", "", "reject", "reject", "unknown_key")
    assert gate.metrics.value("decisions", *unknown) == 3364 + 1
