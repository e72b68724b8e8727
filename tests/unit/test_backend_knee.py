"""Load against throughput: every profile bends where it says it does."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import EndReason, Event, Finished, Work
from loadtest.backend.profiles import PROFILES, LlmProfile


def _ends(events: list[Event]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]


def _closed_loop(profile: LlmProfile, clients: int, seconds: float = 30.0) -> tuple[float, float]:
    """(requests a second, mean seconds in the engine) with `clients` that never pause."""
    engine = ContinuousEngine(profile, seed=7)
    prompts = random.Random(7)
    for _ in range(clients):
        engine.submit(0.0, Work(prompts.randint(150, 250)))
    ends: list[Finished] = []
    now = 0.0
    while now < seconds:
        due = engine.next_event()
        assert due is not None
        now = due
        for end in _ends(engine.advance(now)):
            ends.append(end)
            engine.submit(now, Work(prompts.randint(150, 250)))
    warm = [end for end in ends if end.ended_s > seconds / 6]
    rate = len(warm) / (seconds * 5 / 6)
    return rate, sum(end.ended_s - (end.started_s or 0.0) for end in warm) / len(warm)


@dataclass(frozen=True)
class Promise:
    """What a profile is said to do at its knee."""

    name: str
    rate: float
    execution_s: float
    counts: tuple[int, ...]


@pytest.mark.parametrize(
    "promise",
    [
        Promise("demo-primary", 35.0, 0.45, (4, 8, 12, 16, 20, 24, 32, 48)),
        Promise("demo-economy", 17.5, 0.58, (2, 4, 7, 10, 13, 16, 20, 32)),
        Promise("knee", 195.0, 0.38, (20, 40, 60, 75, 80, 90, 100)),
    ],
    ids=lambda promise: promise.name,
)
def test_throughput_peaks_at_the_knee_and_falls_off_a_cliff(promise: Promise) -> None:
    """Flat latency up to the knee, the promised rate there, and less than half of it beyond."""
    profile = PROFILES[promise.name]
    assert isinstance(profile, LlmProfile)
    assert profile.knee is not None
    knee = profile.knee.sequences
    assert profile.max_sequences > knee
    curve = {clients: _closed_loop(profile, clients) for clients in promise.counts}
    best = max(curve, key=lambda clients: curve[clients][0])
    assert best == knee
    assert curve[knee][0] == pytest.approx(promise.rate, rel=0.08)
    assert curve[knee][1] == pytest.approx(promise.execution_s, rel=0.08)
    low, high = promise.counts[0], promise.counts[-1]
    assert curve[knee][1] < 1.6 * curve[low][1]
    assert curve[high][0] < 0.5 * curve[knee][0]
    assert curve[high][1] > 4.0 * curve[knee][1]


def test_without_a_knee_more_at_once_is_never_slower_in_total() -> None:
    """The control of the test above: the same costs without a knee only ever gain."""
    profile = PROFILES["demo-primary"]
    assert isinstance(profile, LlmProfile)
    smooth = replace(profile, knee=None)
    rates = [_closed_loop(smooth, clients)[0] for clients in (4, 8, 16, 32)]
    assert rates == sorted(rates)


def test_an_ungated_server_queues_without_end() -> None:
    """At twice the rate of the knee the running set fills far beyond it and the queue grows."""
    profile = PROFILES["demo-primary"]
    assert isinstance(profile, LlmProfile)
    engine = ContinuousEngine(profile, seed=1)
    for index in range(70 * 20):
        engine.submit(index / 70.0, Work(200))
    gauges = engine.gauges()
    assert gauges.running > 40
    assert gauges.waiting > 500


def test_output_lengths_have_the_declared_mean() -> None:
    """Over many requests the uncapped mean is the profile's; a cap cuts and says so."""
    profile = PROFILES["demo-primary"]
    assert isinstance(profile, LlmProfile)
    engine = ContinuousEngine(profile, seed=5)
    free = {engine.submit(0.0, Work(10)) for _ in range(2000)}
    capped = {engine.submit(0.0, Work(10, cap_tokens=30)) for _ in range(500)}
    ends = {end.id: end for end in _ends(engine.advance(1e6))}
    mean = sum(ends[request].output_tokens for request in free) / len(free)
    assert mean == pytest.approx(profile.lengths.mean_tokens, rel=0.05)
    cut = [ends[request] for request in capped if ends[request].reason is EndReason.LENGTH]
    assert {end.output_tokens for end in cut} == {30}
    assert 0.5 < len(cut) / len(capped) < 1.0
