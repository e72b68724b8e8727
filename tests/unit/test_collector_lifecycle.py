from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.collector import Collector
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


async def test_stop_ends_everything(
    clock: VirtualTime, heard: Heard, collect: Callable[..., Collector]
) -> None:
    """No task is left, a poll in progress is cancelled, each source is closed once."""
    before = asyncio.all_tasks()
    idle, busy = FakeSource("idle", clock), FakeSource("busy", clock)
    busy.stuck = asyncio.Event()
    collector = collect(idle, busy)
    collector.start()
    await clock.advance(0.8)
    await collector.stop()
    await collector.stop()
    assert asyncio.all_tasks() == before
    assert (busy.cancelled, idle.closed, busy.closed) == (1, 1, 1)
    assert collector.snapshot.samples["idle"].at_s == 100.0
    assert heard.failures == []


async def test_reconfigure_keeps_what_stays(
    clock: VirtualTime, collect: Callable[..., Collector]
) -> None:
    """Endpoints that stay keep their sample, also under a new source; those that go are closed
    and forgotten; an unchanged source is not disturbed; new ones are polled."""
    same, replaced, gone = (FakeSource(name, clock) for name in ("same", "replaced", "gone"))
    collector = collect(same, replaced, gone)
    collector.start()
    await clock.advance(0.9)
    samples = collector.snapshot.samples
    gone.stuck = asyncio.Event()
    await clock.advance(0.9)
    newer, fresh = FakeSource("replaced", clock), FakeSource("fresh", clock)
    newer.error = TelemetryError("not yet")
    await collector.reconfigure([same, newer, fresh], placed([same, newer, fresh]))
    assert collector.snapshot.samples.keys() == {"same", "replaced"}
    assert (same.closed, replaced.closed, gone.closed, gone.cancelled) == (0, 1, 1, 1)
    await clock.advance(1)
    assert collector.snapshot.samples["replaced"].at_s > samples["replaced"].at_s
    assert collector.snapshot.samples.keys() == {"same", "replaced", "fresh"}
    assert same.polled_at == [100.0, 101.0, 102.0]
    assert len(replaced.polled_at) == 2
    assert "gone" not in collector.successes
    await collector.stop()
    assert (same.closed, newer.closed, fresh.closed) == (1, 1, 1)


async def test_reconfigure_before_start_polls_nothing(
    clock: VirtualTime, collect: Callable[..., Collector]
) -> None:
    """Only start begins to poll."""
    old, new = FakeSource("a", clock), FakeSource("b", clock)
    collector = collect(old)
    await collector.reconfigure([new], placed([new]))
    await clock.advance(2)
    assert (old.closed, new.polled_at) == (1, [])
    collector.start()
    await clock.advance(0)
    assert new.polled_at == [102.0]
    await collector.stop()


def test_two_sources_for_one_endpoint_are_refused(
    clock: VirtualTime, collect: Callable[..., Collector]
) -> None:
    """Two tasks would overwrite each other's samples."""
    with pytest.raises(ValueError, match="two sources"):
        collect(FakeSource("a", clock), FakeSource("a", clock))
