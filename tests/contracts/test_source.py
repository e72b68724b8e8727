"""What every telemetry source has to do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Freshness, Staleness
from ext_authz.telemetry.collector import Collector
from tests.support.prometheus import prometheus_rig
from tests.support.scrape_rig import FAULTS, SETTINGS, Rig, one, scrape_rig, until

RIGS = {"prometheus": prometheus_rig, "scrape": scrape_rig}
"""Every kind of source there is, by the context manager that gives its rig."""


@pytest.fixture(params=RIGS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with RIGS[request.param]() as made:
        yield made


async def test_fresh(rig: Rig) -> None:
    """A poll gives the gauges, dated with the time the poll was begun at, and nothing missing
    but what the endpoint does not show."""
    rig.healthy(3)
    report = await rig.source.poll(50.0)
    sample = one(report)
    assert (sample.endpoint, sample.at_s) == (rig.address, 50.0)
    # The kind where one source of it tells of an endpoint, the whole name where several may.
    assert sample.source in {rig.source.name, rig.source.name.partition("/")[0]}
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (3.0, 2.0, 0.25)
    assert sample.by_model["m1"].running == 3.0
    assert (sample.kv_capacity_tokens, sample.mean_execution_s) == (None, None)
    assert "kv_capacity_tokens" in report.missing
    assert "running" not in report.missing
    assert report.dropped == {}


async def test_mean_execution_needs_two_polls(rig: Rig) -> None:
    """The mean is over what finished between two polls; after a restart it is unknown once."""
    means = []
    for running in (3, 5, 5, 1, 2):
        rig.healthy(running)
        means.append(one(await rig.source.poll(1.0)).mean_execution_s)
    assert means == [None, 10.0, None, None, 10.0]


@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_are_telemetry_errors_and_pass(rig: Rig, fault: str) -> None:
    """Whatever goes wrong ends in bounded time as a TelemetryError, and the next poll is good."""
    rig.healthy(1)
    await rig.source.poll(1.0)
    rig.fail(fault)
    started = time.monotonic()
    with pytest.raises(TelemetryError) as caught:
        await rig.source.poll(2.0)
    assert time.monotonic() - started < SETTINGS.timeout_s + 2
    assert str(caught.value)
    assert "://" not in str(caught.value)
    rig.healthy(4)
    assert one(await rig.source.poll(3.0)).running == 4.0


async def test_a_source_never_seen_then_fresh_then_stale(rig: Rig) -> None:
    """The three states of an endpoint, through the collector, and recovery from the last."""
    clock = SystemClock()
    heard: list[EndpointSample] = []
    faults: list[str] = []
    collector = Collector(
        [rig.source],
        {rig.address: None},
        clock,
        lambda _, sample: heard.append(sample),
        lambda name, _: faults.append(name),
    )
    name = rig.address

    def freshness() -> Freshness:
        return collector.snapshot.freshness(name, clock.now(), Staleness(0.3))

    rig.fail("error")
    collector.start()
    await until(lambda: len(faults) >= 2)
    assert freshness() is Freshness.NEVER
    rig.healthy(7)
    await until(lambda: freshness() is Freshness.FRESH)
    rig.fail("garbage")
    await until(lambda: freshness() is Freshness.STALE)
    assert collector.snapshot.samples[name].running == 7.0
    rig.healthy(8)
    await until(lambda: freshness() is Freshness.FRESH)
    assert collector.snapshot.samples[name].running == 8.0
    assert [sample.running for sample in heard[-1:]] == [8.0]
    await collector.stop()


async def test_closing_twice_is_fine(rig: Rig) -> None:
    """A source that was never polled, or is closed already, closes."""
    await rig.source.close()
    rig.healthy(1)
    await rig.source.poll(1.0)
    await rig.source.close()
    await rig.source.close()
