"""The fixed-shape engine batches, waits and charges as its profile says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.backend.engine import EngineFullError, Finished, Work, WorkTooLargeError
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.profiles import PROFILES, FixedProfile

# 100 ms a batch and 10 ms a row, a batch of 4, 50 ms of patience
PLAIN = FixedProfile("plain", 100.0, 10.0, 4, 50.0, 1, 500.0)


def _drain(engine: FixedShapeEngine) -> list[Finished]:
    ends: list[Finished] = []
    for _ in range(10_000):
        due = engine.next_event()
        if due is None:
            return ends
        ends += [event for event in engine.advance(due) if isinstance(event, Finished)]
    raise AssertionError("the engine never came to rest")


def _times(ends: list[Finished]) -> list[tuple[float, float]]:
    return [(round(end.started_s or 0.0, 6), round(end.ended_s, 6)) for end in ends]


def test_a_lonely_request_waits_for_company_no_longer_than_the_delay() -> None:
    """One request starts after 50 ms and takes a batch of one row."""
    engine = FixedShapeEngine(PLAIN)
    engine.submit(1.0, Work())
    assert _times(_drain(engine)) == [(1.05, 1.16)]


def test_a_full_batch_starts_at_once_and_is_shared() -> None:
    """Four arrivals fill the batch: no delay, and each is charged the whole batch."""
    engine = FixedShapeEngine(PLAIN)
    for _ in range(4):
        engine.submit(1.0, Work())
    assert _times(_drain(engine)) == [(1.0, 1.14)] * 4
    assert engine.gauges().steps == 1


def test_what_waited_behind_a_batch_leaves_together() -> None:
    """Requests older than the delay when the instance frees up start at once in one batch."""
    engine = FixedShapeEngine(PLAIN)
    for at_s in (0.0, 0.06, 0.07):
        engine.submit(at_s, Work())
    assert _times(_drain(engine)) == [(0.05, 0.16), (0.16, 0.28), (0.16, 0.28)]


def test_two_instances_run_two_batches() -> None:
    """Eight arrivals at once end together on two instances."""
    engine = FixedShapeEngine(replace(PLAIN, instances=2))
    for _ in range(8):
        engine.submit(0.0, Work())
    assert _times(_drain(engine)) == [(0.0, 0.14)] * 8


def test_a_request_is_never_split() -> None:
    """Three rows and then two do not share a batch of four; the second waits for the first."""
    engine = FixedShapeEngine(PLAIN)
    engine.submit(0.0, Work(rows=3))
    engine.submit(0.0, Work(rows=2))
    assert _times(_drain(engine)) == [(0.0, 0.13), (0.13, 0.25)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 4)), min_size=1, max_size=30).map(
        sorted
    ),
    st.integers(1, 3),
)
def test_everyone_ends_once_in_order_and_no_batch_is_too_large(
    arrivals: list[tuple[float, int]], instances: int
) -> None:
    """First come, first served; a batch's rows and the batches at once stay within bounds."""
    engine = FixedShapeEngine(replace(PLAIN, instances=instances))
    ids = [engine.submit(at_s, Work(rows=rows)) for at_s, rows in arrivals]
    ends = _drain(engine)
    assert sorted(end.id for end in ends) == ids
    in_order = sorted(ends, key=lambda end: end.id)
    starts = [end.started_s or 0.0 for end in in_order]
    assert starts == sorted(starts)
    for start in set(starts):
        began = [end for end in ends if end.started_s == start]
        batches = {end.ended_s for end in began}
        assert sum(end.rows for end in began) <= 4 * max(len(batches), instances)
        at_once = {
            (e.started_s, e.ended_s) for e in ends if (e.started_s or 0) <= start < e.ended_s
        }
        assert len(at_once) <= instances
    assert (engine.gauges().running, engine.gauges().waiting) == (0, 0)


def test_cancelling_the_waiting_and_the_running() -> None:
    """A cancelled request is not reported; its batch still takes its time; twice is refused."""
    engine = FixedShapeEngine(PLAIN)
    ids = [engine.submit(0.0, Work()) for _ in range(5)]
    assert engine.cancel(0.01, ids[4])  # waiting
    assert engine.cancel(0.01, ids[0])  # running
    assert not engine.cancel(0.01, ids[0])
    ends = _drain(engine)
    assert [end.id for end in ends] == ids[1:4]
    assert _times(ends) == [(0.0, 0.14)] * 3
    assert not engine.cancel(1.0, ids[1])


def test_the_cancelled_do_not_fill_a_batch() -> None:
    """Rows that left the queue no longer count: the one who stays waits the whole delay."""
    engine = FixedShapeEngine(PLAIN)
    gone = engine.submit(0.0, Work(rows=3))
    engine.cancel(0.0, gone)
    engine.submit(0.01, Work())
    assert _times(_drain(engine)) == [(0.06, 0.17)]


def test_bad_rows_and_a_full_queue_are_refused() -> None:
    """Rows outside the batch never fit; beyond max_waiting nothing more is taken."""
    engine = FixedShapeEngine(replace(PLAIN, max_waiting=1))
    for rows in (0, 5, -1):
        with pytest.raises(WorkTooLargeError):
            engine.submit(0.0, Work(rows=rows))
    engine.submit(0.0, Work(rows=4))
    engine.submit(0.0, Work())
    with pytest.raises(EngineFullError):
        engine.submit(0.0, Work())


def test_heat_lengthens_batches() -> None:
    """A factor of three makes a batch of one row take 330 ms."""
    engine = FixedShapeEngine(PLAIN)
    engine.throttle(0.0, 3.0)
    engine.submit(0.0, Work())
    assert _times(_drain(engine)) == [(0.05, 0.38)]


@pytest.mark.parametrize(("rate", "kept"), [(150.0, True), (230.0, False)])
def test_the_fraud_model_keeps_its_promise_below_its_capacity_only(rate: float, kept: bool) -> None:
    """200 rows a second is what it can do: below that 150 ms hold for all, above for ever fewer."""
    profile = PROFILES["fraud"]
    assert isinstance(profile, FixedProfile)
    engine = FixedShapeEngine(profile)
    for index in range(int(rate * 10)):
        engine.submit(index / rate, Work())
    late = [end for end in _drain(engine) if end.ended_s - end.arrived_s > profile.slo_ms / 1000]
    assert bool(late) is not kept
    if not kept:
        assert len(late) > 0.5 * rate * 10
