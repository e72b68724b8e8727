"""Heartbeats over gRPC: what is made of them, and when they were measured."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from ext_authz.telemetry.source import PollSource, StreamSource
from ext_authz.telemetry.sources.feedback.stream import FeedbackServer, StreamSettings
from tests.support.feedback import HOME, OTHER, ManualClock, heartbeat
from tests.support.scrape_rig import until
from tests.support.stream_rig import LISTEN, Rig, answer, ending, frame, send, served


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with served(StreamSettings(LISTEN)) as made:
        yield made


async def test_it_is_a_stream_source() -> None:
    """It fits the protocol of sources that speak by themselves, and not that of the others."""
    server: object = FeedbackServer(StreamSettings(LISTEN), [HOME], ManualClock())
    assert isinstance(server, StreamSource)
    assert not isinstance(server, PollSource)


async def test_fresh(rig: Rig) -> None:
    """A heartbeat is a sample dated by its age on our clock, and is acknowledged."""
    call = rig.agent()
    await send(call, heartbeat(7, 3, age_ms=250))
    assert await answer(call) == {"v": 1, "ack": 7, "interval_ms": 50.0}
    (sample,) = rig.reports.samples
    assert (sample.endpoint, sample.source) == (HOME, "stream")
    assert sample.at_s == pytest.approx(1000.0 - 0.25)
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (3.0, 2.0, 0.25)
    assert sample.by_model["m1"].running == 3.0
    assert sample.kv_capacity_tokens is None


async def test_never_seen_and_a_dead_agent(rig: Rig) -> None:
    """Who says nothing gives nothing; an agent that dies leaves its samples as they were, and the
    next one is heard."""
    call = rig.agent()
    assert rig.reports.all == []
    await send(call, heartbeat(1, 4))
    await rig.heard(4)
    call.cancel()
    await send(rig.agent(), heartbeat(1, 5, run="r2"))
    await rig.heard(5)
    assert rig.reports.running == [4, 5]


@pytest.mark.parametrize(
    ("offset_s", "step_s"), [(0.0, 0.0), (-1e6, 0.0), (1.7e9, 0.0), (5.0, -3600.0), (5.0, 3600.0)]
)
async def test_the_agents_clock_has_no_part_in_dates(
    rig: Rig, offset_s: float, step_s: float
) -> None:
    """Whatever an agent's clock says, and however it steps, its heartbeats are dated alike."""
    call = rig.agent()
    for seq in range(1, 5):
        rig.clock.time_s += 1.0
        shown_s = 1e7 + rig.clock.time_s + offset_s + (step_s if seq > 2 else 0.0)
        await send(call, heartbeat(seq, seq, sent_ms=shown_s * 1000))
        await rig.heard(seq)
        assert rig.reports.samples[-1].at_s == pytest.approx(rig.clock.time_s - 0.02)


async def test_a_heartbeat_that_waited_on_its_way_is_older(rig: Rig) -> None:
    """One that was sent two seconds before the last and comes with it is dated as what it is."""
    call = rig.agent()
    await send(call, heartbeat(1, 1, sent_ms=50_000))
    await rig.heard(1)
    rig.clock.time_s += 3.0
    await send(call, heartbeat(2, 2, sent_ms=51_000))
    await rig.heard(2)
    assert rig.reports.samples[-1].at_s == pytest.approx(1003.0 - 2.0 - 0.02)


async def test_a_backlog_is_looked_at_from_its_end(rig: Rig) -> None:
    """Of many heartbeats at once the first and the last are used, the others only counted."""
    call = rig.agent()
    # The clock stands: all come at once.
    await send(call, *(heartbeat(seq, seq) for seq in range(1, 101)))
    await rig.heard(100)
    assert len(rig.reports.samples) < 50
    assert rig.reports.dropped("conflated") == 100 - len(rig.reports.samples)


GARBAGE = [
    b"",
    b"\xff\x00",
    b"[1]",
    b"null",
    b"[" * 60_000,
    b'{"v":1',
    heartbeat(1, v=2),
    heartbeat(1, v=True),
    heartbeat(-1),
    heartbeat(1, run=""),
    heartbeat(1, agent="a\nb"),
    heartbeat(1, agent=["a"]),
    b'{"v":1,"agent":"a","run":"r"}',
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_costs_one_heartbeat(rig: Rig, data: bytes) -> None:
    """What is no heartbeat is counted, and the next one on the same stream is good."""
    call = rig.agent()
    await send(call, data)
    await until(lambda: rig.reports.dropped("garbage") == 1)
    rig.clock.time_s += 0.05
    await send(call, heartbeat(2, 9))
    await rig.heard(9)
    assert rig.reports.running == [9]


async def test_a_frame_that_is_none_is_garbage(rig: Rig) -> None:
    """Bytes that are no protobuf message are counted as well."""
    call = rig.agent()
    await call.write(b"\x0a\xff\xff\xff\xff")
    await until(lambda: rig.reports.dropped("garbage") == 1)


async def test_nothing_but_garbage_ends_the_stream(rig: Rig) -> None:
    """Ten in a row, and the agent is told what is wrong; nobody else notices."""
    good, bad = rig.agent(), rig.agent()
    for _ in range(10):
        rig.clock.time_s += 0.05
        await rig.next_report(bad, b"{}")
    assert await ending(bad) is grpc.StatusCode.INVALID_ARGUMENT
    assert "version" in await bad.details()
    await send(good, heartbeat(1, 6))
    await rig.heard(6)


async def test_an_oversized_heartbeat_ends_only_its_stream(rig: Rig) -> None:
    """Longer than the bound is never read; a new stream is heard again."""
    call = rig.agent()
    await call.write(frame(heartbeat(1, padding="x" * 66_000)))
    assert await ending(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await send(rig.agent(), heartbeat(1, 2))
    await rig.heard(2)
    assert rig.reports.running == [2]


async def test_odd_fields_are_unknown_and_the_rest_is_used(rig: Rig) -> None:
    """Each unusable number is unknown, never 0, and counted; what cannot be dated is left out."""
    odd = {
        "address": HOME,
        "age_ms": 0,
        "running": "3",
        "waiting": -1,
        "kv_usage_ratio": 1.5,
        "kv_capacity_tokens": 10**400,
        "mean_execution_s": True,
        "models": {"m1": {"running": None}, "m\n": {}, "m2": 7},
        "hint": {"of": "the future"},
    }
    undated = [{"address": OTHER, "running": 1}, {"address": OTHER, "age_ms": -5, "running": 1}]
    data = heartbeat(1, endpoints=[odd, *undated, {"age_ms": 1}, "x"]).replace(
        b'"waiting": -1', b'"waiting": NaN'
    )
    await send(rig.agent(), data)
    await until(lambda: bool(rig.reports.samples))
    (sample,) = rig.reports.samples
    assert (sample.running, sample.waiting, sample.load) == (None, None, None)
    assert (sample.kv_usage_ratio, sample.kv_capacity_tokens) == (None, None)
    assert sample.mean_execution_s is None
    assert list(sample.by_model) == ["m1"]
    counts = {r: rig.reports.dropped(r) for r in ("malformed", "out_of_range", "undated")}
    assert counts == {"malformed": 5, "out_of_range": 3, "undated": 2}
    assert rig.reports.dropped("unnamed") == 1
