"""From settings to sources, and to what finds endpoints."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.settings import DiscoverySettings
from ext_authz.telemetry.discovery.dns import DnsSettings
from ext_authz.telemetry.discovery.kubernetes import KubernetesSettings
from ext_authz.telemetry.discovery.targets import FileTargetsSettings, HttpTargetsSettings
from ext_authz.telemetry.registry import Built, build_discovery, build_sources
from ext_authz.telemetry.sources.feedback.nats import NatsSettings
from ext_authz.telemetry.sources.feedback.stream import StreamSettings
from ext_authz.telemetry.sources.nvml.source import NvmlSettings
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings, PrometheusTarget
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from ext_authz.telemetry.sources.static import AssumeSettings
from tests.support.settings import make_pool

A, B = make_pool("a", "x:1", "x:2"), make_pool("b", "x:3")
CLOCK = SystemClock()


def test_one_scrape_for_each_endpoint_of_each_pool() -> None:
    """Every endpoint is asked, each under a name of its own."""
    built = build_sources((ScrapeSettings(0.3),), {"a": A, "b": B}, CLOCK)
    assert [one.source.name for one in built] == ["scrape/x:1", "scrape/x:2", "scrape/x:3"]


def test_an_engine_that_nobody_can_read() -> None:
    """It is said aloud, as its endpoints would silently never be seen."""
    pools = {"a": replace(A, engine="abacus")}
    with pytest.raises(TelemetryError, match="pool a: nothing reads the engine abacus"):
        build_sources((ScrapeSettings(),), pools, CLOCK)


def test_two_sources_that_read_the_same() -> None:
    """They would overwrite each other under one name: refused, with the name."""
    twice = (PrometheusSettings("http://p:9090"), PrometheusSettings("http://p:9090/sub"))
    with pytest.raises(TelemetryError, match="two sources are prometheus/p:9090"):
        build_sources(twice, {"a": A}, CLOCK)


async def test_what_is_not_touched_by_a_change_goes_on() -> None:
    """A pool that grows costs the others nothing: their sources stay the same objects, and only
    what was made of something else is made anew."""
    settings = (ScrapeSettings(), NvmlSettings(), StreamSettings("127.0.0.1:0"), AssumeSettings())
    before = build_sources(settings, {"a": A}, CLOCK)
    after = build_sources(settings, {"a": A, "b": B}, CLOCK, before)
    assert kept(before, after) == {"scrape/x:1", "scrape/x:2", "nvml"}
    assert {one.source.name for one in after} == {one.source.name for one in before} | {
        "scrape/x:3"
    }
    again = build_sources(settings, {"a": A, "b": B}, CLOCK, after)
    assert kept(after, again) == {one.source.name for one in after}
    faster = build_sources((ScrapeSettings(0.2), *settings[1:]), {"a": A, "b": B}, CLOCK, after)
    assert not any(name.startswith("scrape") for name in kept(after, faster))
    moved = replace(A, endpoints=tuple(replace(e, metrics_url="http://m") for e in A.endpoints))
    assert not any(
        name.startswith("scrape")
        for name in kept(after, build_sources(settings, {"a": moved}, CLOCK, after))
    )


def kept(before: tuple[Built, ...], after: tuple[Built, ...]) -> set[str]:
    """Names of the sources that are the very same."""
    return {new.source.name for new in after if any(old.source is new.source for old in before)}


def test_prometheus_is_asked_for_the_endpoints_there_are() -> None:
    """Targets come from the pools of the moment, found endpoints included, with their devices."""
    (endpoint, _) = A.endpoints
    pool = replace(A, endpoints=(endpoint, replace(endpoint, address="x:9", device="GPU-9")))
    (built,) = build_sources((PrometheusSettings("http://p"),), {"a": pool}, CLOCK)
    (settings,) = built.made_of
    assert isinstance(settings, PrometheusSettings)
    assert settings.targets == (
        PrometheusTarget("x:1", "vllm", device=None),
        PrometheusTarget("x:9", "vllm", device="GPU-9"),
    )


async def test_assumptions_hold_for_every_endpoint_there_is() -> None:
    """Each has its own slots and device; the rest is the same for all."""
    (built,) = build_sources((AssumeSettings(1000.0, 0.4),), {"a": A}, CLOCK)
    report = await built.source.poll(5.0)  # type: ignore[union-attr]  # it is one that is polled
    assert [(s.endpoint, s.slots, s.mean_execution_s, s.at_s) for s in report.endpoints] == [
        ("x:1", 16.0, 0.4, 5.0),
        ("x:2", 16.0, 0.4, 5.0),
    ]


@pytest.mark.parametrize(
    ("lookup", "name"),
    [
        (DnsSettings("m.example", 80), "dns/m.example"),
        (FileTargetsSettings(("/t.json",)), "file//t.json"),
        (HttpTargetsSettings("http://sd"), "http"),
        (KubernetesSettings("s", "n"), "kubernetes/n/s"),
    ],
)
def test_every_way_to_find_endpoints_can_be_built(lookup: object, name: str) -> None:
    """The registry makes each of its settings, and nothing has been asked yet."""
    discovery = build_discovery(DiscoverySettings(lookup, 1.0, 4), CLOCK)
    assert (discovery.name, discovery.failures) == (name, 0)


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said by the name of what to install, when it is asked for and not later."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TelemetryError, match=r"ext-authz\[dns\]"):
        build_discovery(DiscoverySettings(DnsSettings("m", 1), 1.0, 4), CLOCK)
    for settings, extra in (
        (NvmlSettings(), "nvml"),
        (NatsSettings(("nats://n",)), "nats"),
        (PrometheusSettings("http://p"), "prometheus"),
    ):
        with pytest.raises(TelemetryError, match=rf"ext-authz\[{extra}\]"):
            build_sources((settings,), {"a": A}, CLOCK)
