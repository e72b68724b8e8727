"""What the collector does with numbers it does not expect, and how much it remembers."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable

import pytest

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample, EndpointSample, Report
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.window import Trends
from tests.support.collecting import FakeSource, Heard, VirtualTime, placed


class Speaker:
    """A stream that says what it is given."""

    name = "speaker"

    def __init__(self) -> None:
        self.emit: Callable[[Report], None] | None = None
        self.runs = 0

    async def run(self, emit: Callable[[Report], None]) -> None:
        self.emit = emit
        self.runs += 1
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.emit = None

    def say(self, *samples: EndpointSample, devices: tuple[DeviceSample, ...] = ()) -> None:
        assert self.emit is not None
        self.emit(Report(samples, devices))


async def test_an_endpoint_of_which_only_memory_is_told() -> None:
    """No load is no date, and ends neither the source nor anybody else's."""
    clock, heard, speaker = VirtualTime(), Heard(), Speaker()
    collector = Collector(
        [speaker], {"a": None}, clock, heard.sample, heard.failure, sleep=clock.sleep
    )
    collector.start()
    await clock.settle()
    for second in range(3):
        speaker.say(EndpointSample("a", 100.0 + second, kv_usage_ratio=0.5, source="orca"))
    assert (collector.failures, collector.successes["speaker"]) == ({}, 3)
    assert collector.trends.of("a", 102.0)["kv_usage_ratio"].mean == 0.5
    assert [sample.kv_usage_ratio for _, sample in heard.samples] == [0.5] * 3
    await collector.stop()


@pytest.mark.parametrize("speaks", [False, True])
async def test_what_cannot_be_taken_in_ends_nothing(
    speaks: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours behind a source is a failure, told once, and passes."""
    clock, heard, speaker = VirtualTime(), Heard(), Speaker()
    polled = FakeSource("polled", clock)
    sources = [speaker] if speaks else [polled]
    collector = Collector(
        sources, {"polled": None}, clock, heard.sample, heard.failure, sleep=clock.sleep
    )
    collector.start()
    await clock.settle()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def some() -> None:
        for _ in range(3):
            if speaks:
                speaker.say(EndpointSample("polled", clock.now(), running=1.0, source="stream"))
        await clock.advance(12.0)

    monkeypatch.setattr(Trends, "take", broken)
    await some()
    name = sources[0].name
    assert collector.failures[name] >= 3
    assert all(isinstance(error, TelemetryError) for _, error in heard.failures)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    monkeypatch.undo()
    before = len(heard.samples)
    await some()
    assert len(heard.samples) > before
    assert speaker.runs == int(speaks)
    await collector.stop()


async def test_a_listener_that_fails_for_one_endpoint_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many endpoints one source tells of, and however often."""
    clock, heard, speaker = VirtualTime(), Heard(), Speaker()

    def picky(_: float, sample: EndpointSample) -> None:
        if sample.endpoint == "bad":
            raise RuntimeError

    collector = Collector(
        [speaker], {"bad": None, "good": None}, clock, picky, heard.failure, sleep=clock.sleep
    )
    collector.start()
    await clock.settle()
    for second in range(50):
        speaker.say(*(EndpointSample(e, 100.0 + second, running=1.0) for e in ("bad", "good")))
    assert collector.listener_errors == 50
    assert len([record for record in caplog.records if record.exc_info]) == 1
    await collector.stop()


async def test_memory_does_not_grow_with_samples() -> None:
    """Once windows are full, thousands of reports of endpoints, strangers and cards leave as
    much behind as none: what a million would leave."""
    clock, heard, speaker = VirtualTime(), Heard(), Speaker()
    endpoints = {f"e{number}": "GPU-0" if number == 0 else None for number in range(4)}
    collector = Collector(
        [speaker], endpoints, clock, lambda *_: None, heard.failure, sleep=clock.sleep
    )
    collector.start()
    await clock.settle()
    step = 0

    def speak(times: int) -> int:
        nonlocal step
        for _ in range(times):
            step += 1
            at_s = 100.0 + 0.05 * step
            speaker.say(
                EndpointSample(f"e{step % 4}", at_s, running=step % 7, kv_usage_ratio=0.5),
                EndpointSample(f"stranger{step}", at_s, running=1.0),
                devices=(DeviceSample("GPU-0", at_s, "nvml", temperature_c=step % 90),),
            )
        gc.collect()
        return sys.getallocatedblocks()

    full = speak(2_500)
    grown = speak(7_500) - full
    assert grown < 500
    assert collector.strangers == 10_000
    assert collector.failures == {}
    await collector.stop()


def test_names_of_sources_are_forgotten_with_them() -> None:
    """Nothing is counted of a source for longer than it runs."""

    async def run() -> None:
        clock, heard = VirtualTime(), Heard()
        collector = Collector([], {}, clock, heard.sample, heard.failure, sleep=clock.sleep)
        collector.start()
        for number in range(50):
            source = FakeSource(f"s{number}", clock)
            await collector.reconfigure([source], placed([source]))
            await clock.advance(0.1)
        assert collector.successes.keys() == {"s49"}
        assert collector.snapshot.samples.keys() == {"s49"}
        await collector.stop()

    asyncio.run(run())
