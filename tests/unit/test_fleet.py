"""Endpoints that come and go, in virtual time."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from ext_authz.errors import TelemetryError
from ext_authz.fleet import RESTART_S
from ext_authz.plan import with_found
from ext_authz.settings import DiscoverySettings
from ext_authz.telemetry.sources.nvml.source import NvmlSettings
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from tests.support.finding import Told, Watched, assumed, finding
from tests.support.settings import make_pool


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """The discoveries that were made, in order."""
    found: list[Told] = []

    def build(settings: DiscoverySettings, _: object) -> Told:
        found.append(Told(settings))
        return found[-1]

    monkeypatch.setattr("ext_authz.fleet.build_discovery", build)
    return found


def test_found_endpoints_stand_beside_the_named_ones() -> None:
    """They run what the pool says, on a device of their own, in the order they were told."""
    settings = assumed(finding("p", "x", "10.0.0.1:1", slots=7), make_pool("q", "10.0.0.2:1"))
    found = with_found(settings, {"p": ("http://10.0.0.3:1", "https://[fd00::1]:2")})
    first, *rest = found.admission.pools["p"].endpoints
    assert first == settings.admission.pools["p"].endpoints[0]
    assert [(e.address, e.url, e.max_concurrency, e.device) for e in rest] == [
        ("10.0.0.3:1", "http://10.0.0.3:1", 7, "10.0.0.3:1"),
        ("[fd00::1]:2", "https://[fd00::1]:2", 7, "[fd00::1]:2"),
    ]
    assert found.admission.pools["q"] is settings.admission.pools["q"]
    assert found.fingerprint == settings.fingerprint


def test_a_server_is_in_one_pool_only(caplog: pytest.LogCaptureFixture) -> None:
    """Named ones come before found ones, earlier pools before later ones, whatever the case."""
    settings = assumed(finding("p", "x", "gpu:1"), finding("q", "y"), make_pool("r", "10.0.0.2:1"))
    both = ("http://GPU:1", "http://10.0.0.2:1", "http://Free:1")
    pools = with_found(settings, {"p": both, "q": both}).admission.pools
    assert [e.address for e in pools["p"].endpoints] == ["gpu:1", "free:1"]
    assert pools["q"].endpoints == ()
    assert "pool q: free:1 is an endpoint already" in caplog.text


def test_nobody_can_find_endpoints_of_a_pool_that_does_not_look_for_any() -> None:
    """What was found for a pool that has stopped looking is not used."""
    settings = assumed(make_pool("p", "10.0.0.1:1"))
    assert with_found(settings, {"p": ("http://10.0.0.2:1",), "z": ("http://10.0.0.3:1",)}) == (
        settings
    )


async def test_endpoints_come_and_go(made: list[Told]) -> None:
    """What is found is told at once and soon has telemetry; what is gone is forgotten."""
    watched = Watched(assumed(finding("p", "x", "10.0.0.1:1")))
    watched.fleet.start()
    await watched.time.advance(1.0)
    assert watched.addresses("p") == ["10.0.0.1:1"]
    made[0].tell("10.0.0.2:1", "10.0.0.3:1")
    assert watched.addresses("p") == ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
    assert watched.changes[-1] is watched.fleet.settings
    await watched.time.advance(1.0)
    assert set(watched.fleet.collector.snapshot.samples) == set(watched.addresses("p"))
    made[0].tell("10.0.0.3:1")
    await watched.time.advance(1.0)
    assert watched.addresses("p") == ["10.0.0.1:1", "10.0.0.3:1"]
    assert set(watched.fleet.collector.snapshot.samples) == {"10.0.0.1:1", "10.0.0.3:1"}
    assert watched.fleet.discovered() == {"p": {"by": "told/x", "endpoints": 1, "failures": 0}}
    await watched.fleet.stop()
    assert made[0].closed == 1


async def test_a_burst_of_changes_ends_with_the_last(made: list[Told]) -> None:
    """Changes that come while one is being taken over do not overtake each other."""
    watched = Watched(assumed(finding("p", "x"), finding("q", "y")))
    watched.fleet.start()
    await watched.time.settle()
    for number in range(30):
        made[number % 2].tell(f"10.0.{number % 2}.{number}:1")
        if number % 7 == 0:
            await watched.time.settle()
    await watched.time.advance(2.0)
    assert (watched.addresses("p"), watched.addresses("q")) == (["10.0.0.28:1"], ["10.0.1.29:1"])
    assert set(watched.fleet.collector.snapshot.samples) == {"10.0.0.28:1", "10.0.1.29:1"}
    await watched.fleet.stop()


async def test_a_reload_keeps_what_was_found(made: list[Told]) -> None:
    """As long as the way to find endpoints is the same, nothing is asked or lost anew."""
    watched = Watched(assumed(finding("p", "x")))
    watched.fleet.start()
    await watched.time.settle()
    made[0].tell("10.0.0.2:1")
    watched.reload(replace(assumed(finding("p", "x", "10.0.0.9:1")), fingerprint="1" * 64))
    assert watched.addresses("p") == ["10.0.0.9:1", "10.0.0.2:1"]
    assert watched.fleet.settings.fingerprint == "1" * 64
    await watched.time.advance(1.0)
    assert (len(made), made[0].runs, made[0].closed) == (1, 1, 0)
    await watched.fleet.stop()


@pytest.mark.parametrize("after", [[finding("p", "y")], [make_pool("p")], []])
async def test_another_way_begins_anew(made: list[Told], after: list[object]) -> None:
    """What the old way found is forgotten, and what it still says is not listened to."""
    watched = Watched(assumed(finding("p", "x")))
    watched.fleet.start()
    await watched.time.settle()
    made[0].tell("10.0.0.2:1")
    watched.reload(assumed(*after))  # type: ignore[arg-type]  # pools, as parametrised
    before = watched.fleet.settings
    made[0].tell("10.0.0.3:1")
    assert watched.fleet.settings is before
    assert not any(p.endpoints for p in before.admission.pools.values())
    await watched.time.advance(1.0)
    assert made[0].closed == 1
    assert dict(watched.fleet.collector.snapshot.samples) == {}
    if len(made) > 1:
        made[1].tell("10.0.0.4:1")
        assert watched.addresses("p") == ["10.0.0.4:1"]
    await watched.fleet.stop()


async def test_a_fault_in_a_discovery_does_not_end_it(
    made: list[Told], caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and run again after a pause; other pools do not notice."""
    watched = Watched(assumed(finding("p", "x"), finding("q", "y")))
    made[0].fault = RuntimeError("broken")
    watched.fleet.start()
    await watched.time.settle()
    made[1].tell("10.0.0.2:1")
    assert (watched.addresses("q"), made[0].runs) == (["10.0.0.2:1"], 1)
    assert "pool p: fault in told/x" in caplog.text
    made[0].fault = None
    await watched.time.advance(RESTART_S)
    made[0].tell("10.0.0.3:1")
    assert watched.addresses("p") == ["10.0.0.3:1"]
    await watched.fleet.stop()


async def test_a_plan_that_cannot_be_touches_nothing(
    made: list[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that this machine cannot have is refused before anything has changed."""
    watched = Watched(assumed(finding("p", "x")))
    watched.fleet.start()
    await watched.time.settle()
    made[0].tell("10.0.0.2:1")
    before = watched.fleet.settings
    with monkeypatch.context() as lacking:
        lacking.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(TelemetryError, match="nvidia-ml-py"):
            watched.fleet.plan(assumed(finding("p", "z"), sources=(NvmlSettings(),)))
    assert watched.fleet.settings is before
    made[0].tell("10.0.0.3:1")
    assert watched.addresses("p") == ["10.0.0.3:1"]
    await watched.fleet.stop()


async def test_growing_disturbs_no_source_of_the_others(made: list[Told]) -> None:
    """The sources of endpoints that stay are the same objects after endpoints came."""
    watched = Watched(assumed(finding("p", "x", "10.0.0.1:1"), sources=(ScrapeSettings(),)))
    plan = watched.fleet.plan(
        assumed(finding("p", "x", "10.0.0.1:1", "10.0.0.2:1"), sources=(ScrapeSettings(),))
    )
    watched.fleet.adopt(plan)
    again = watched.fleet.plan(plan.configured)
    pairs = zip(plan.here(apart=False), again.here(apart=False), strict=True)
    assert [a is b for a, b in pairs] == [True, True, True]
    await watched.fleet.stop()


async def test_what_servers_say_in_their_answers_is_heard(made: list[Told]) -> None:
    """Also of endpoints that were found, and of nobody else."""
    watched = Watched(assumed(finding("p", "x"), sources=()))
    watched.fleet.start()
    await watched.time.settle()
    made[0].tell("10.0.0.2:1")
    await watched.time.settle()
    report = "TEXT named_metrics.num_requests_running=3, named_metrics.num_requests_waiting=1"
    watched.fleet.hear("10.0.0.2:1", report, 100.5)
    watched.fleet.hear("10.0.0.3:1", report, 100.5)
    (sample,) = watched.samples
    assert (sample.endpoint, sample.load, sample.at_s, sample.source) == (
        "10.0.0.2:1", 4.0, 100.5, "orca",
    )  # fmt: skip
    await watched.fleet.stop()
    watched.fleet.hear("10.0.0.2:1", report, 101.0)
    assert len(watched.samples) == 1
