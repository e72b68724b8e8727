"""The reader of cards against drivers that do anything, and the source's own small rules."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample
from ext_authz.telemetry.sources.nvml.cards import MAX_CARDS, MAX_REINIT_S, CardReader
from ext_authz.telemetry.sources.nvml.source import NvmlSettings, NvmlSource

CODES = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 13, 15, 16, 21, 999])
CALLS = ["handle", "uuid", "utilization", "temperature", "clock", "reasons", "memory", "power"]
NUMBERS = {
    "utilization": ("utilization_ratio", 0.5),
    "temperature": ("temperature_c", 61.0),
    "clock": ("sm_clock_mhz", 1400.0),
    "reasons": ("throttled", True),
    "memory": ("memory_total_bytes", 900.0),
    "power": ("power_w", 1.5),
}
REINIT_S = 10.0


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakeNvml:
    """The module pynvml of a driver whose every call can be given a code. Cards are indices."""

    NVMLError = FakeError
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 2  # noqa: N815  # the module's own name

    def __init__(self) -> None:
        self.cards: list[dict[str, int]] = []
        self.start_code = 0
        self.started_at: list[float] = []
        self.now = 0.0

    def __getattr__(self, name: str) -> Any:
        # What this driver does not have at all.
        return lambda *_: self.say({"call": 13}, "call", None)

    def say(self, codes: dict[str, int], call: str, answer: Any) -> Any:
        if codes.get(call, 0):
            raise FakeError(codes[call])
        return answer

    def of(self, card: int, call: str, answer: Any) -> Any:
        return self.say(self.cards[card], call, answer)

    def nvmlInit(self) -> None:  # noqa: N802
        self.started_at.append(self.now)
        self.say({"start": self.start_code}, "start", None)

    def nvmlShutdown(self) -> None:  # noqa: N802
        raise FakeError(1)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return int(self.of(index, "handle", index))

    def nvmlDeviceGetUUID(self, card: int) -> str:  # noqa: N802
        return str(self.of(card, "uuid", f"GPU-{card}"))

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:  # noqa: N802
        return self.of(card, "utilization", SimpleNamespace(gpu=50))

    def nvmlDeviceGetTemperature(self, card: int, _: int) -> Any:  # noqa: N802
        return self.of(card, "temperature", 61)

    def nvmlDeviceGetClockInfo(self, card: int, _: int) -> Any:  # noqa: N802
        return self.of(card, "clock", 1400)

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: int) -> Any:  # noqa: N802
        return self.of(card, "reasons", 0x20)

    def nvmlDeviceGetMemoryInfo(self, card: int, *_: int) -> Any:  # noqa: N802
        return self.of(card, "memory", SimpleNamespace(total=900, used=10, reserved=1))

    def nvmlDeviceGetPowerUsage(self, card: int) -> Any:  # noqa: N802
        return self.of(card, "power", 1500)


def reader(nvml: FakeNvml) -> CardReader:
    return CardReader(nvml, host=None, processes=False, reinit_s=REINIT_S)


def expected(codes: dict[str, int]) -> str | dict[str, float]:
    """What a card with these codes is: lost, nobody, or the numbers that are known."""
    order = [codes.get(call, 0) for call in CALLS]
    if codes.get("handle") or codes.get("uuid"):
        first = codes.get("handle") or codes.get("uuid")
        return "lost" if first in {15, 16} else "nobody"
    if {15, 16} & set(order):
        return "lost"
    known = {field: value for call, (field, value) in NUMBERS.items() if not codes.get(call)}
    return known or "nobody"


@given(st.lists(st.dictionaries(st.sampled_from(CALLS), CODES), min_size=1, max_size=4))
@example([dict.fromkeys(NUMBERS, 999), {}])
def test_each_card_is_lost_unknown_or_known_by_its_own_codes(cards: list[dict[str, int]]) -> None:
    """After one pass in health: whatever codes come, a card is what they say, number by number,
    and no card changes another."""
    nvml = FakeNvml()
    nvml.cards = [{} for _ in cards]
    subject = reader(nvml)
    subject.read(0.0)
    nvml.cards = cards
    should = {f"GPU-{index}": expected(codes) for index, codes in enumerate(cards)}
    heard = {name: what for name, what in should.items() if what != "nobody"}
    if not heard:
        with pytest.raises(TelemetryError):
            subject.read(1.0)
        return
    report = subject.read(1.0).report
    assert {one.device for one in report.devices} == set(heard)
    for one in report.devices:
        what = heard[one.device]
        assert one.lost == (what == "lost")
        for field, value in NUMBERS.values():
            known = isinstance(what, dict) and field in what
            assert getattr(one, field) == (value if known else None)


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 100.0),
            st.sampled_from([0, 0, 9, 12, 999]),
            st.lists(st.sampled_from([0, 0, 15, 999]), max_size=3),
        ),
        max_size=60,
    )
)
def test_the_driver_is_never_started_more_often_than_allowed(
    passes: list[tuple[float, int, list[int]]],
) -> None:
    """Whatever goes wrong and however fast it is asked: starts keep their distance, and what
    comes back is a report of something or a TelemetryError."""
    nvml = FakeNvml()
    subject = reader(nvml)
    for pause_s, start_code, codes in passes:
        nvml.now += pause_s
        nvml.start_code = start_code
        nvml.cards = [{"handle": code} for code in codes]
        try:
            reading = subject.read(nvml.now)
        except TelemetryError:
            continue
        assert reading.report.devices
        assert {one.at_s for one in reading.report.devices} == {nvml.now}
    distances = zip(nvml.started_at, nvml.started_at[1:], strict=False)
    assert all(after - before >= REINIT_S - 1e-6 for before, after in distances)


def test_a_library_that_appears_later_is_found() -> None:
    """It is looked for ever more rarely, but never given up."""
    nvml = FakeNvml()
    nvml.cards, nvml.start_code = [{}], 12
    subject = reader(nvml)
    for second in range(5000):
        nvml.now = float(second)
        with pytest.raises(TelemetryError, match=r"libnvidia-ml\.so\.1 is not installed here"):
            subject.read(nvml.now)
    assert nvml.started_at[-1] - nvml.started_at[-2] == MAX_REINIT_S
    assert len(nvml.started_at) < 20
    nvml.start_code = 0
    nvml.now += MAX_REINIT_S
    assert [one.device for one in subject.read(nvml.now).report.devices] == ["GPU-0"]


def test_more_cards_than_there_can_be_are_bounded() -> None:
    """A count of nonsense does not make a pass endless."""
    nvml = FakeNvml()
    nvml.cards = [{} for _ in range(10 * MAX_CARDS)]
    assert len(reader(nvml).read(0.0).report.devices) == MAX_CARDS


def test_every_number_of_a_device_is_filled_or_missing() -> None:
    """A field that is added to DeviceSample and forgotten here would look like a blind driver."""
    nvml = FakeNvml()
    nvml.cards = [{}]
    report = reader(nvml).read(0.0).report
    (device,) = report.devices
    about = {"device", "at_s", "source", "host", "model", "lost", "origins"}
    numbers = {field.name for field in fields(DeviceSample)} - about
    unknown = {name for name in numbers if getattr(device, name) is None}
    assert unknown == report.missing


def test_without_the_python_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured but not installed: a fault at once, not a warning at run time."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TelemetryError, match=r"nvidia-ml-py.*ext-authz\[nvml\]"):
        NvmlSource(NvmlSettings())


async def test_a_source_that_was_never_polled_closes() -> None:
    """Twice, and is not polled again."""
    source = NvmlSource(NvmlSettings())
    await source.close()
    await source.close()
    with pytest.raises(TelemetryError, match="closed"):
        await source.poll(0.0)
