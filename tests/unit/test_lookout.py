"""What can be seen from outside, in virtual time: gauges, pages, and one line when it changes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from ext_authz.admission.modes import JUDGED_OF, Trust
from ext_authz.config.compile import Loaded
from ext_authz.fleet import Fleet, Listeners
from ext_authz.lookout import Lookout
from ext_authz.metrics import Metrics
from ext_authz.overload import HybridRules, Mode
from ext_authz.serving.gate import Gate
from ext_authz.settings import Settings
from ext_authz.snapshot import EndpointSample, Report, Staleness
from tests.support.collecting import VirtualTime
from tests.support.finding import assumed
from tests.support.settings import make_pool

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
BUSY = "TEXT named_metrics.num_requests_running=1, named_metrics.num_requests_waiting=0"


class Tower:
    """A lookout over a running fleet that hears only what a test says."""

    def __init__(self, settings: Settings) -> None:
        self.time = VirtualTime()
        self.metrics = Metrics()
        listeners = Listeners(
            lambda _, sample: self.gate.observe(sample), lambda *_: None, lambda _: None
        )
        self.fleet = Fleet(settings, self.time, listeners, sleep=self.time.sleep)
        ids = (str(number) for number in count())
        self.gate = Gate(settings, ids, Random(1), self.metrics, self.time.now())
        loaded = Loaded(settings, (), (Path("gate.yaml"),))
        self.lookout = Lookout(self.gate, self.fleet, self.time, loaded)
        self.lookout.wire(self.metrics)

    def say(self, *endpoints: str) -> None:
        for endpoint in endpoints:
            self.fleet.hear(endpoint, BUSY, self.time.now())

    async def run(self, seconds: float, *endpoints: str) -> None:
        """Let time pass with a look each quarter of a second, `endpoints` speaking before it."""
        for _ in range(round(seconds / 0.25)):
            self.say(*endpoints)
            await self.time.advance(0.25)
            self.lookout.tick(self.time.now())

    def gauge(self, name: str, *labels: str) -> float | None:
        for family in self.metrics.collect():
            for one in family.samples:
                if one.name.removesuffix("_total") == f"ext_authz_{name}" and (
                    tuple(one.labels.values()) == labels
                ):
                    return float(one.value)
        return None


@asynccontextmanager
async def tower(*, hold_s: float = 0.0) -> AsyncIterator[Tower]:
    """Two pools whose samples are good for a second, two endpoints in the first."""
    staleness = Staleness(1.0, hold_s=hold_s)
    pools = [
        replace(make_pool("p", A, B), staleness=staleness),
        replace(make_pool("q", C), staleness=staleness),
    ]
    made = Tower(assumed(*pools, sources=()))
    made.fleet.start()
    await made.time.settle()
    yield made
    await made.fleet.stop()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the lookout has said so far, once."""
    lines = [r.getMessage() for r in caplog.records if r.name == "ext_authz.lookout"]
    caplog.clear()
    return lines


async def test_one_line_when_a_hybrid_pool_changes_its_footing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To predictions when they are right, and back when they are not; the status page tells."""
    caplog.set_level(logging.INFO)
    async with tower() as up:
        pool = up.gate.controller.pools.by_name["p"]
        pool.trust = Trust(Mode.HYBRID, pool.measures)
        for expected_s, what in ((1.1, "acts on predictions"), (9.0, "predictions are off")):
            for _ in range(JUDGED_OF):
                pool.measures.predicted(expected_s, (1.0, 10.0, 10.0), 1.0)
            now = up.time.now() + 10.0
            pool.trust.look(HybridRules(), now)
            up.lookout.tick(up.time.now())
            up.lookout.tick(up.time.now())
            (line,) = told(caplog)
            assert line.startswith(f"pool p: {what}")
            await up.run(10.0, A, B, C)
        assert up.lookout.status()["pools"]["p"]["measures"]["mode"]["switches"] == 2
        assert up.lookout.status()["enforcement"]["everywhere"] == "enforce"


async def test_one_line_when_all_is_lost_and_one_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long it lasts and however often it is looked at; one endpoint is enough."""
    caplog.set_level(logging.INFO)
    async with tower() as up:
        await up.run(5.0, A, B, C)
        assert told(caplog) == []
        await up.run(5.0, B, C)
        assert (told(caplog), up.gauge("telemetry_lost", "p")) == ([], 0.0)
        await up.run(10.0, C)
        assert told(caplog) == [
            "pool p: telemetry of all 2 endpoints is lost, "
            "fallback_action demote_low_priority decides"
        ]
        assert (up.gauge("telemetry_lost", "p"), up.gauge("telemetry_lost", "q")) == (1.0, 0.0)
        assert up.lookout.lost() == ("p",)
        await up.run(3.0, A, C)
        (back,) = told(caplog)
        assert back.startswith("pool p: telemetry is back after ")
        assert 8.0 <= float(back.split()[-2]) <= 10.0
        assert up.gauge("telemetry_lost", "p") == 0.0


async def test_a_start_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The gauge says at once that nothing is known; the line comes when it should have been."""
    async with tower() as up:
        assert up.gauge("telemetry_lost", "p") == 1.0
        await up.run(1.75, C)
        assert told(caplog) == []
        await up.run(2.0, C)
        (line,) = told(caplog)
        assert line.startswith("pool p: telemetry of all 2 endpoints is lost")


async def test_what_is_held_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A load that is old but still believed is acted on, as configured."""
    async with tower(hold_s=4.0) as up:
        await up.run(1.0, A, B, C)
        await up.run(4.5)
        assert (up.lookout.lost(), told(caplog)) == ((), [])
        await up.run(1.0)
        assert up.lookout.lost() == ("p", "q")
        assert len(told(caplog)) == 2


async def test_a_pool_that_went_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    """After a reload only configured pools are told of, and one that comes again begins anew."""
    async with tower() as up:
        await up.run(6.0, A)
        assert [line.split(":")[0] for line in told(caplog)] == ["pool q"]
        whole = up.gate.settings
        admission = replace(whole.admission, pools={"p": whole.admission.pools["p"]})
        up.gate.reconfigure(replace(whole, admission=admission), up.time.now())
        await up.run(3.0, A)
        assert (told(caplog), up.gauge("telemetry_lost", "q")) == ([], None)
        up.gate.reconfigure(whole, up.time.now())
        await up.run(3.0, A)
        assert [line.split(":")[0] for line in told(caplog)] == ["pool q"]


async def test_a_pool_without_endpoints_has_lost_its_telemetry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing can be acted on where nothing has been found."""
    up = Tower(assumed(replace(make_pool("p"), staleness=Staleness(1.0)), sources=()))
    await up.run(4.0)
    assert up.gauge("telemetry_lost", "p") == 1.0
    assert len(told(caplog)) == 1
    await up.fleet.stop()


class Scripted:
    """A source that says one thing."""

    name = "script/1"
    interval_s = 1.0

    def __init__(self, report: Report) -> None:
        self.report = report

    async def poll(self, _: float) -> Report:
        return self.report

    async def close(self) -> None:
        pass


async def test_what_is_missing_dropped_and_strange_is_counted() -> None:
    """By source and signal, by reason, and in all; what is found again is no longer missing."""
    async with tower() as up:
        assert up.gauge("telemetry_strangers") == 0.0
        samples = (EndpointSample("10.9.9.9:1", 1.0, running=1.0, source="s"),)
        dropped = {"nan": 2, "out_of_range": 1}
        source = Scripted(Report(samples, missing=frozenset({"waiting"}), dropped=dropped))
        await up.fleet.collector.reconfigure([source], {A: None, B: None, C: None})
        await up.time.advance(2.5)
        assert up.gauge("telemetry_missing_signals", "script/1", "waiting") == 1.0
        assert up.gauge("telemetry_dropped", "nan") == 6.0
        assert up.gauge("telemetry_dropped", "out_of_range") == 3.0
        assert up.gauge("telemetry_strangers") == 3.0
        assert up.lookout.status()["missing_signals"] == {"script/1": ["waiting"]}
        source.report = Report()
        await up.time.advance(1.0)
        assert up.gauge("telemetry_missing_signals", "script/1", "waiting") is None


async def test_an_endpoint_that_was_never_seen_has_no_age() -> None:
    """No sample is no number, and a sample that tells no load has no date."""
    async with tower() as up:
        assert up.gauge("telemetry_age_seconds", "p", A) is None
        up.fleet.hear(A, "TEXT named_metrics.kv_cache_usage_perc=0.5", up.time.now())
        assert up.gauge("telemetry_age_seconds", "p", A) is None
        await up.run(1.0, A)
        assert up.gauge("telemetry_age_seconds", "p", A) == pytest.approx(0.25)


async def test_an_envoy_that_goes_its_own_way_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When it begins and when it is over, with where the last one was sent and where it ran."""
    async with tower() as made:
        assert made.lookout.status()["pools"]["p"]["mismatches"] == {"ratio": 0.0}
        caplog.clear()
        for _ in range(60):
            made.gate.mismatches.differed("p", A, B)
        await made.run(0.5, A, B, C)
        (line,) = [line for line in told(caplog) if "Envoy" in line]
        assert "100 % of requests to another endpoint than the gate names" in line
        assert f"the last one to {B} instead of {A}" in line
        shown = made.lookout.status()["pools"]["p"]["mismatches"]
        assert shown == {"ratio": 1.0, "last": {"named": A, "served": B}}
        for _ in range(600):
            made.gate.mismatches.agreed("p")
        await made.run(0.5, A, B, C)
        assert [line for line in told(caplog) if "Envoy" in line] == [
            "pool p: Envoy sends requests where the gate says again"
        ]
