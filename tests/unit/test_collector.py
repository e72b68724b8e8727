from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Freshness, Staleness
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.runner import MAX_BACKOFF_S, next_poll_s
from tests.support.collecting import FakeSource, Heard, VirtualTime, placed


@pytest.fixture
def clock() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def collect(clock: VirtualTime, heard: Heard) -> Callable[..., Collector]:
    def make(*sources: FakeSource) -> Collector:
        return Collector(
            sources, placed(sources), clock, heard.sample, heard.failure, sleep=clock.sleep
        )

    return make


async def test_polls_are_spread_and_regular(
    clock: VirtualTime, heard: Heard, collect: Callable[..., Collector]
) -> None:
    """Four endpoints are asked a quarter of the interval apart, each once an interval."""
    sources = [FakeSource(f"e{number}", clock) for number in range(4)]
    collector = collect(*sources)
    assert collector.snapshot.samples == {}
    collector.start()
    collector.start()
    await clock.advance(2.9)
    assert [source.polled_at for source in sources] == [
        [100.0, 101.0, 102.0],
        [100.25, 101.25, 102.25],
        [100.5, 101.5, 102.5],
        [100.75, 101.75, 102.75],
    ]
    assert {name: s.at_s for name, s in collector.snapshot.samples.items()} == {
        "e0": 102.0,
        "e1": 102.25,
        "e2": 102.5,
        "e3": 102.75,
    }
    assert collector.successes == {"e0": 3, "e1": 3, "e2": 3, "e3": 3}
    assert [now for now, _ in heard.samples][:3] == [100.0, 100.25, 100.5]
    await collector.stop()


async def test_a_long_interval_does_not_delay_the_first_polls(
    clock: VirtualTime, collect: Callable[..., Collector]
) -> None:
    """Everybody is asked within the first second, then spread over the interval."""
    sources = [FakeSource(f"e{number}", clock, interval_s=15.0) for number in range(3)]
    collector = collect(*sources)
    collector.start()
    await clock.advance(1.0)
    assert all(len(source.polled_at) == 1 for source in sources)
    await clock.advance(29.0)
    assert [source.polled_at[1:] for source in sources] == [
        [115.0, 130.0],
        [105.0, 120.0],
        [110.0, 125.0],
    ]
    await collector.stop()


async def test_a_snapshot_is_swapped_not_changed(
    clock: VirtualTime, collect: Callable[..., Collector]
) -> None:
    """A snapshot taken earlier stays as it was."""
    collector = collect(FakeSource("a", clock))
    collector.start()
    await clock.advance(0)
    early = collector.snapshot
    await clock.advance(1)
    assert early.samples["a"].at_s == 100.0
    assert collector.snapshot.samples["a"].at_s == 101.0
    with pytest.raises(TypeError):
        early.samples["b"] = early.samples["a"]  # type: ignore[index]  # that it fails is the test
    await collector.stop()


async def test_a_failing_endpoint_leaves_the_others_alone(
    clock: VirtualTime,
    heard: Heard,
    collect: Callable[..., Collector],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is asked ever less often, its last sample stays and ages, one line tells of each change
    and the other endpoint is polled as if nothing were."""
    caplog.set_level(logging.INFO)
    good, bad = FakeSource("good", clock, 0.5), FakeSource("bad", clock, 0.5)
    collector = collect(good, bad)
    collector.start()
    await clock.advance(0.4)
    bad.error = TelemetryError("HTTP status 500")
    await clock.advance(20)
    gaps = [b - a for a, b in zip(bad.polled_at, bad.polled_at[1:], strict=False)]
    assert gaps == pytest.approx([0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0])
    assert len(good.polled_at) == 41
    assert collector.snapshot.samples["bad"].at_s == 100.25
    assert collector.snapshot.freshness("bad", clock.now(), Staleness(5.0)) is Freshness.STALE
    assert collector.snapshot.freshness("good", clock.now(), Staleness(5.0)) is Freshness.FRESH
    assert collector.failures == {"bad": len(heard.failures)}
    assert {name for name, _ in heard.failures} == {"bad"}
    bad.error = None
    await clock.advance(5)
    assert collector.snapshot.freshness("bad", clock.now(), Staleness(1.0)) is Freshness.FRESH
    assert bad.polled_at[-1] - bad.polled_at[-2] == pytest.approx(0.5)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "bad: no telemetry: HTTP status 500",
        f"bad: telemetry again, after {len(heard.failures)} failures",
    ]
    await collector.stop()


async def test_a_stuck_endpoint_leaves_the_others_alone(
    clock: VirtualTime, collect: Callable[..., Collector]
) -> None:
    """While one poll hangs the others go on; when it ends, that endpoint finds its phase again."""
    good, slow = FakeSource("good", clock), FakeSource("slow", clock)
    collector = collect(good, slow)
    slow.stuck = asyncio.Event()
    collector.start()
    await clock.advance(3.7)
    assert len(good.polled_at) == 4
    assert slow.polled_at == [100.5]
    assert "slow" not in collector.snapshot.samples
    slow.stuck.set()
    await clock.advance(1)
    assert slow.polled_at == [100.5, 104.5]
    assert collector.snapshot.samples["slow"].at_s == 104.5
    await collector.stop()


async def test_a_late_sample_keeps_the_date_it_was_asked_for(
    clock: VirtualTime, heard: Heard, collect: Callable[..., Collector]
) -> None:
    """The listener learns both when a sample was asked for and when it arrived."""
    source = FakeSource("a", clock)
    source.stuck = asyncio.Event()
    collector = collect(source)
    collector.start()
    await clock.advance(0.8)
    source.stuck.set()
    await clock.advance(0.1)
    ((arrived_s, sample),) = heard.samples
    assert (arrived_s, sample.at_s) == (100.8, 100.0)
    await collector.stop()


async def test_a_fault_in_a_source_is_a_failure(
    clock: VirtualTime,
    heard: Heard,
    collect: Callable[..., Collector],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unforeseen exception counts as a failed poll, is logged once and ends nothing."""
    source = FakeSource("a", clock)
    source.error = ZeroDivisionError("secret")
    collector = collect(source)
    collector.start()
    await clock.advance(10)
    assert collector.failures["a"] >= 3
    assert "ZeroDivisionError" in str(heard.failures[0][1])
    assert "secret" not in str(heard.failures[0][1])
    assert len([r for r in caplog.records if r.exc_info]) == 1
    source.error = None
    await clock.advance(MAX_BACKOFF_S)
    assert collector.successes["a"] >= 1
    await collector.stop()


async def test_a_broken_listener_ends_nothing(
    clock: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    """Listeners that raise are counted and logged once; polls and snapshot go on."""

    def broken(*_: object) -> None:
        raise RuntimeError("listener")

    source = FakeSource("a", clock)
    collector = Collector([source], placed([source]), clock, broken, broken, sleep=clock.sleep)
    collector.start()
    await clock.advance(2.5)
    source.error = TelemetryError("down")
    await clock.advance(1)
    assert collector.listener_errors == len(source.polled_at) == 4
    assert collector.snapshot.samples["a"].at_s == 102.0
    assert len([r for r in caplog.records if r.exc_info]) == 1
    await collector.stop()


async def test_missing_signals_are_told_once_per_change(
    clock: VirtualTime, collect: Callable[..., Collector], caplog: pytest.LogCaptureFixture
) -> None:
    """A signal that is not found gives one line, not one a poll; dropped samples are counted."""
    caplog.set_level(logging.INFO)
    source = FakeSource("a", clock)
    source.missing = frozenset({"waiting", "kv_usage_ratio"})
    source.dropped = {"nan": 2}
    collector = collect(source)
    collector.start()
    await clock.advance(3.5)
    assert collector.missing == {"a": source.missing}
    source.missing = frozenset({"waiting"})
    source.dropped = {"infinite": 1}
    await clock.advance(2)
    source.missing = frozenset()
    source.dropped = {}
    await clock.advance(2)
    assert [record.getMessage() for record in caplog.records] == [
        "a: signals not found: kv_usage_ratio, waiting",
        "a: signals not found: waiting",
        "a: all signals found",
    ]
    assert collector.dropped == {"nan": 8, "infinite": 2}
    assert collector.missing == {}
    await collector.stop()


@given(
    origin_s=st.floats(0, 1000),
    interval_s=st.floats(0.05, 60),
    late=st.floats(-1, 50),
    failures=st.integers(0, 10_000),
)
def test_the_next_poll_is_in_phase_and_bounded(
    origin_s: float, interval_s: float, late: float, failures: int
) -> None:
    """The next poll lies ahead, on the endpoint's own grid, and never further than allowed."""
    started_s = origin_s + late * interval_s
    due_s = next_poll_s(origin_s, interval_s, started_s, failures)
    turns = (due_s - origin_s) / interval_s
    assert turns == pytest.approx(round(turns), abs=1e-6)
    assert due_s > started_s
    longest_s = interval_s if failures == 0 else max(interval_s, min(8 * interval_s, MAX_BACKOFF_S))
    assert due_s - started_s <= longest_s + 0.011 * interval_s
