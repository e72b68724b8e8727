"""What a source of devices has to do, of NvmlSource before a driver library that can be made to
fail: the real pynvml loads it, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_nvml import Driver, Host, Rig, built, rig_in

TIMEOUT_S = 0.4
SETTINGS: dict[str, Any] = {"timeout_s": TIMEOUT_S, "reinit_s": 10.0}
GPUS = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
FOUR = {"count": 4}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig_in(tmp_path_factory.mktemp("nvml")) as made:
        yield made


@pytest.fixture
def rig(process: Rig) -> Rig:
    """A fresh source in the one process, before a driver of four cards in good health."""
    return process.renewed(FOUR, SETTINGS)


def values(device: dict[str, Any]) -> set[str]:
    """What is known of a device besides what it is and when that was read."""
    about = {"device", "at_s", "source", "host", "lost"}
    return {name for name, value in device.items() if value is not None} - about


def test_fresh(rig: Rig) -> None:
    """Every number in its unit, dated with the time the poll was begun at, nothing missing."""
    answer = rig.host.poll(50.0)
    assert [device["device"] for device in answer["devices"]] == GPUS
    assert (answer["endpoints"], answer["missing"], answer["dropped"]) == (0, [], {})
    assert answer["devices"][0] == {
        "device": "GPU-0",
        "at_s": 50.0,
        "source": "nvml",
        "host": None,
        "model": "Fake GPU",
        "utilization_ratio": 0.4,
        "memory_used_bytes": 20000.0,
        "memory_reserved_bytes": 1000.0,
        "memory_total_bytes": 80000.0,
        "temperature_c": 60.0,
        "slowdown_c": 90.0,
        "sm_clock_mhz": 1500.0,
        "sm_clock_max_mhz": 1980.0,
        "power_w": 350.5,
        "power_limit_w": 700.0,
        "throttled": False,
        "lost": False,
    }


def test_a_lost_card_an_unsupported_call_a_dead_driver_and_recovery(rig: Rig) -> None:
    """A lost card is unavailable and never idle, a number the driver cannot give is unknown and
    never 0, a driver in trouble gives nothing, and all of it comes back without a restart."""
    rig.host.devices(0.0)
    trouble = {"1.error.all": 15, "2.error.utilization": 3}
    rig.driver.says({**FOUR, **trouble})
    for now in (1.0, 2.0):
        seen = rig.host.devices(now)
        assert list(seen) == GPUS
        assert [seen[name]["lost"] for name in GPUS] == [False, True, False, False]
        assert [seen[name]["utilization_ratio"] for name in GPUS] == [0.4, None, None, 0.4]
        assert values(seen["GPU-1"]) == set()
        assert seen["GPU-2"]["memory_used_bytes"] == 20000.0
        assert {device["at_s"] for device in seen.values()} == {now}
    rig.driver.says({**FOUR, **trouble, "error.all": 999})
    for now in (3.0, 4.0):
        assert "Unknown" in rig.host.poll(now)["error"]
    rig.driver.says(FOUR)
    seen = rig.host.devices(5.0)
    assert [len(values(seen[name])) for name in GPUS] == [12] * 4
    assert not any(device["lost"] for device in seen.values())


def test_a_card_lost_before_it_was_ever_seen_is_missing_and_not_invented(rig: Rig) -> None:
    """Nobody knows its UUID: no sample, a gap that is told, and a sample once it comes back."""
    rig.driver.says({**FOUR, "1.error.all": 15})
    answer = rig.host.poll(0.0)
    assert [device["device"] for device in answer["devices"]] == ["GPU-0", "GPU-2", "GPU-3"]
    assert answer["missing"] == ["device"]
    rig.driver.says(FOUR)
    assert list(rig.host.devices(1.0)) == GPUS


def test_the_driver_is_started_anew_at_a_bounded_and_slowing_pace(rig: Rig) -> None:
    """A second of polls each: with a card lost for an hour the library is started a handful of
    times, with all in order never again."""
    starts = []
    rig.driver.says({**FOUR, "1.error.all": 15})
    for now in range(0, 1200, 5):
        rig.host.poll(float(now))
        if rig.driver.log().count("init") > len(starts):
            starts.append(now)
    assert starts == [0, 10, 30, 70, 150, 310, 630]
    assert rig.driver.log().count("shutdown") == len(starts) - 1
    rig.driver.says(FOUR)
    for now in (1300.0, 2000.0, 3000.0, 4000.0):
        assert list(rig.host.devices(now)) == GPUS
    assert rig.driver.log().count("init") <= len(starts) + 1
    rig.driver.says({**FOUR, "error.all": 999})
    rig.host.poll(4001.0)
    before = rig.driver.log().count("init")
    for now, starts_more in ((4002.0, 1), (4011.0, 1), (4012.0, 2), (4031.0, 2), (4032.0, 3)):
        rig.host.poll(now)
        assert rig.driver.log().count("init") == before + starts_more


def test_a_card_lost_over_a_new_start_keeps_its_name(rig: Rig) -> None:
    """After a new start the driver no longer tells the UUID of the lost card: it is the one that
    fell silent. When two fell silent and one is lost, nobody can tell which."""
    rig.host.devices(0.0)
    rig.driver.says({**FOUR, "1.error.all": 15})
    for now in (20.0, 40.0, 60.0):
        seen = rig.host.devices(now)
        assert [name for name in seen if seen[name]["lost"]] == ["GPU-1"]
    rig.driver.says({"count": 3, "1.error.all": 15})
    answer = rig.host.poll(90.0)
    assert [device["device"] for device in answer["devices"]] == ["GPU-0", "GPU-2"]
    assert answer["missing"] == ["device"]


def test_a_card_lost_from_the_start_keeps_its_name_too(rig: Rig) -> None:
    """Its UUID could be read once, its values never."""
    rig.driver.says({**FOUR, "1.error.memory": 15})
    assert rig.host.devices(0.0)["GPU-1"]["lost"]
    rig.driver.says({**FOUR, "1.error.all": 15})
    assert rig.host.devices(20.0)["GPU-1"]["lost"]


def test_a_card_taken_out_is_missed_until_the_driver_was_started_anew(rig: Rig) -> None:
    """It may come back; once a new start confirms that it is gone, nothing is missing."""
    rig.host.devices(0.0)
    rig.driver.says({"count": 3})
    for now, missing in ((1.0, ["device"]), (2.0, ["device"]), (11.0, ["device"]), (12.0, [])):
        answer = rig.host.poll(now)
        assert [device["device"] for device in answer["devices"]] == GPUS[:3]
        assert answer["missing"] == missing


@pytest.mark.parametrize("code", [1, 2, 10, 17, 999])
def test_a_card_that_answers_nothing_gets_no_sample(rig: Rig, code: int) -> None:
    """What was said of it before is left to age; its neighbours go on; the driver is started
    anew."""
    rig.host.devices(0.0)
    rig.driver.says({**FOUR, "3.error.all": code})
    for now in (1.0, 20.0):
        answer = rig.host.poll(now)
        assert [device["device"] for device in answer["devices"]] == GPUS[:3]
        assert answer["missing"] == ["device"]
    assert rig.driver.log() == ["init", "shutdown", "init"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ({"error.count": 999}, "does not count its cards: Unknown (999)"),
        ({"error.count": 1}, "does not count its cards: Uninitialized (1)"),
        ({"error.count": 12345}, "does not count its cards: error (12345)"),
        ({"error.init": 9}, "does not start: DriverNotLoaded (9)"),
        ({"error.init": 18}, "does not start: LibRmVersionMismatch (18)"),
        ({"count": 0}, "sees no card"),
        ({f"{index}.error.all": 15 for index in range(4)}, "no card can be read"),
    ],
)
def test_nothing_to_tell_is_an_error_and_passes(
    rig: Rig, lines: dict[str, object], why: str
) -> None:
    """Never an empty success: the collector has to know that it is blind, and why."""
    rig.driver.says({**FOUR, **lines})
    assert why in rig.host.poll(0.0)["error"]
    rig.driver.says(FOUR)
    assert list(rig.host.devices(20.0)) == GPUS


def test_all_cards_lost_after_they_were_seen(rig: Rig) -> None:
    """They are reported, each as lost."""
    rig.host.devices(0.0)
    rig.driver.says({**FOUR, **{f"{index}.error.all": 16 for index in range(4)}})
    seen = rig.host.devices(1.0)
    assert list(seen) == GPUS
    assert all(device["lost"] for device in seen.values())


@pytest.mark.parametrize("where", ["0.hang.temperature", "2.hang.handle"])
def test_a_hung_call_blocks_nothing_and_passes(rig: Rig, where: str) -> None:
    """The first poll ends at its bound, those after it at once; the loop goes round meanwhile;
    when the call returns at last, polls are good again."""
    rig.host.devices(0.0)
    rig.driver.says({**FOUR, where: 1})
    started = time.monotonic()
    answer = rig.host.poll(1.0)
    assert TIMEOUT_S * 0.9 < time.monotonic() - started < TIMEOUT_S + 2
    assert "within 0.4 s" in answer["error"]
    assert answer["ticks"] >= 5
    started = time.monotonic()
    assert "9.0 s" in rig.host.poll(10.0)["error"]
    assert time.monotonic() - started < TIMEOUT_S / 2
    rig.driver.says(FOUR)
    deadline = time.monotonic() + 10
    while "error" in (answer := rig.host.poll(11.0)):
        assert time.monotonic() < deadline, answer
    assert {device["at_s"] for device in answer["devices"]} == {11.0}
    assert rig.host.ask("loop_faults") == []


def test_closing_and_ending_do_not_wait_for_a_hung_driver(tmp_path: Path) -> None:
    """Neither `close` nor the end of the process waits for a call that never returns."""
    driver = Driver(tmp_path / "control")
    with Host(driver.control, built()) as host:
        host.new(timeout_s=0.2, reinit_s=10.0)
        host.devices(0.0)
        driver.says({"0.hang.memory": 1})
        host.poll(1.0)
        assert host.ask("close")["seconds"] < 0.2
        assert "closed" in host.poll(2.0)["error"]
        started = time.monotonic()
        assert host.end() == 0
        assert time.monotonic() - started < 5


def test_closing_lets_go_of_the_driver_once(rig: Rig) -> None:
    """A source that was never polled has nothing to let go of; one that was shuts down once."""
    rig.host.ask("close")
    assert rig.driver.log() == []
    rig.host.new(**SETTINGS)
    rig.host.devices(0.0)
    rig.host.ask("close")
    assert rig.driver.log() == ["init", "shutdown"]


def test_a_forked_child_reads_the_driver_by_itself(rig: Rig) -> None:
    """The child starts the library anew and gets values; the parent is not disturbed."""
    rig.host.devices(0.0)
    child = rig.host.ask("fork", now=1.0)
    assert [device["device"] for device in child["devices"]] == GPUS
    assert list(rig.host.devices(2.0)) == GPUS
    assert rig.driver.log() == ["init", "init"]


def test_a_host_without_the_library_is_warned_of_once(tmp_path: Path) -> None:
    """Absent, it gives nothing, says so once however often it is asked, and harms nothing."""
    driver = Driver(tmp_path / "control")
    with Host(driver.control, None) as host:
        answer = host.ask("collect", polls=4, settings={"interval_s": 0.02})
        assert (answer["failures"], answer["devices"]) == (4, [])
        assert len(answer["warnings"]) == 1
        assert "libnvidia-ml.so.1 is not installed" in answer["warnings"][0]
        assert driver.log() == []
        assert host.end() == 0


def test_through_the_collector(rig: Rig) -> None:
    """Devices arrive in the collector's snapshot."""
    answer = rig.host.ask("collect", polls=2, settings={"interval_s": 0.02})
    assert answer == {"warnings": [], "failures": 0, "devices": GPUS}


def test_an_old_driver_is_read_by_its_old_calls(tmp_path: Path) -> None:
    """Without the newer functions temperature, clock reasons, memory and processes still come;
    what is reserved is then part of what is used."""
    driver = Driver(tmp_path / "control")
    driver.says({"0.reasons": "0x20", "0.pid": 77, "0.pid_memory": 5})
    with Host(driver.control, built(old_driver=True)) as host:
        host.new(processes=True, **SETTINGS)
        answer = host.poll(0.0)
        (card,) = answer["devices"]
        assert (card["temperature_c"], card["throttled"]) == (60.0, True)
        assert (card["memory_used_bytes"], card["memory_reserved_bytes"]) == (21000.0, None)
        assert answer["missing"] == ["memory_reserved_bytes"]
        assert host.ask("pids", pids=[77, 78])["devices"] == ["GPU-0", None]
        assert host.end() == 0
