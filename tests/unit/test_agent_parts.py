"""What an agent is made of: the mean over the last requests, and the pace of heartbeats."""

from __future__ import annotations

import asyncio

import pytest

from ext_authz.agent import RecentMean, keep_sending
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.pages.mappings import VLLM
from ext_authz.telemetry.pages.reading import Reading, read
from ext_authz.telemetry.sources.feedback.heartbeat import decode
from ext_authz.telemetry.sources.feedback.send import Beats
from tests.support.feedback import HOME, ManualClock


def reading(total_s: float, count: int) -> Reading:
    label = '{engine="0",model_name="m1"}'
    name = "vllm:request_inference_time_seconds"
    text = f"{name}_sum{label} {total_s}\n{name}_count{label} {count}\n"
    return read(VLLM, parse_page(text.encode(), VLLM.names))


def test_the_mean_is_over_the_last_hundred_requests() -> None:
    """Against the list of all requests: the mean of at least the last hundred, of no more than
    what finished in one more step, and of all while there are fewer."""
    recent, times = RecentMean(), []
    assert recent.take(reading(0.0, 0)) is None
    for step in range(60):
        times += [1.0 + step % 7] * (step % 5)
        mean_s = recent.take(reading(sum(times), len(times)))
        if not times:
            assert mean_s is None
            continue
        possible = [sum(times[-n:]) / n for n in range(min(100, len(times)), len(times) + 1)][:5]
        assert any(mean_s == pytest.approx(one) for one in possible)


def test_many_readings_without_requests_are_not_kept() -> None:
    """An agent that looks on for days holds what it needs, and no more."""
    recent = RecentMean()
    for _ in range(5000):
        recent.take(reading(10.0, 5))
    assert len(recent._readings) == 1
    for count in range(5000):
        recent.take(reading(10.0 + count, 5 + count))
    assert len(recent._readings) <= 102


def test_a_restarted_engine_begins_anew() -> None:
    """Counters that fell give no mean until something has finished."""
    recent = RecentMean()
    recent.take(reading(10.0, 5))
    assert recent.take(reading(30.0, 10)) == 4.0
    assert recent.take(reading(1.0, 1)) is None
    assert recent.take(reading(4.0, 2)) == 3.0


async def test_beats_tell_the_newest_and_its_age() -> None:
    """What was measured before and not sent is forgotten; numbers rise; age is as of sending."""
    clock = ManualClock(100.0)
    beats = Beats(clock, "a", "r", 0.05)
    for running in (1, 2):
        beats.put(Report((EndpointSample(HOME, 100.0, running=running),)))
    clock.time_s = 100.5
    first = decode(await beats.next())
    (sample,) = first.report.endpoints
    assert (sample.running, sample.at_s) == (2.0, -0.5)
    second = decode(beats.beat())
    assert second.header.seq == first.header.seq + 1
    assert second.header.sent_ms == 100_500


@pytest.mark.parametrize(
    ("asked_s", "pace_s"), [(0.001, 0.05), (0.2, 0.2), (1e9, 60.0), (float("inf"), 60.0)]
)
def test_a_gate_may_slow_an_agent_down_within_bounds(asked_s: float, pace_s: float) -> None:
    """Never faster than its own interval, never so slow that it seems dead for good."""
    beats = Beats(ManualClock(), "a", "r", 0.05)
    beats.ask_for(asked_s)
    assert beats.pace_s == pace_s


async def test_attempts_to_connect_come_further_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses double up to five seconds, differ by chance, and begin anew after a good while."""
    clock, pauses = ManualClock(), list[float]()
    held = [0.0] * 9 + [60.0] + [0.0] * 2

    class Failing:
        async def session(self, _: Beats) -> None:
            if not held:
                raise asyncio.CancelledError
            clock.time_s += held.pop(0)
            raise TelemetryError("gone")

    class Chance:
        def uniform(self, low: float, high: float) -> float:
            assert (low, high) == (0.5, 1.0)
            return high

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr("ext_authz.agent.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await keep_sending(Failing(), Beats(clock, "a", "r", 0.05), clock, Chance())  # type: ignore[arg-type]  # all it uses
    assert pauses[:7] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert pauses[9:] == pytest.approx([0.1, 0.2, 0.4])
