"""What NvmlSource makes of each number, of slices and of processes, through the real pynvml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fake_nvml import Rig, rig_in

SETTINGS: dict[str, Any] = {"timeout_s": 5.0, "host": "node-7", "processes": True}
BLANK_UINT = 0xFFFFFFFF
BLANK_ULONGLONG = 0xFFFFFFFFFFFFFFFF
BLANK_INT32 = 0x7FFFFFF0
SLICED: dict[str, object] = {
    "0.mig": 1,
    "0.mig_slots": 7,
    "0.clock": 1200,
    "0.reasons": "0x40",
    "0.1.present": 1,
    "0.1.memory_used": 5,
    "0.1.memory_total": 10000,
    "0.1.pid": 41,
    "0.1.pid_memory": 4096,
    "0.4.present": 1,
    "0.4.pid": 42,
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig_in(tmp_path_factory.mktemp("nvml")) as made:
        yield made


@pytest.fixture
def rig(process: Rig) -> Rig:
    """A fresh source in the one process, before a driver of one card in good health."""
    return process.renewed({}, SETTINGS)


def card(rig: Rig, lines: dict[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first device when the driver says `lines`, and the whole report."""
    rig.driver.says(lines)
    answer = rig.host.poll(0.0)
    return answer["devices"][0], answer


@pytest.mark.parametrize(
    ("what", "field", "blanks"),
    [
        ("utilization", "utilization_ratio", (BLANK_UINT, BLANK_INT32, 101)),
        ("temperature", "temperature_c", (BLANK_INT32, 0x80000000, 201)),
        ("slowdown", "slowdown_c", (BLANK_UINT, 0)),
        ("clock", "sm_clock_mhz", (BLANK_UINT, BLANK_INT32, 0)),
        ("clock_max", "sm_clock_max_mhz", (BLANK_UINT, 0)),
        ("power", "power_w", (BLANK_UINT, BLANK_INT32)),
        ("power_limit", "power_limit_w", (BLANK_UINT, 0)),
        ("memory_used", "memory_used_bytes", (BLANK_ULONGLONG, 80001)),
        ("memory_reserved", "memory_reserved_bytes", (BLANK_ULONGLONG, 80001)),
        ("reasons", "throttled", (BLANK_ULONGLONG,)),
    ],
)
def test_blank_and_impossible_values_are_unknown(
    rig: Rig, what: str, field: str, blanks: tuple[int, ...]
) -> None:
    """Not 0, not huge; counted; and nothing else of the card is lost by it."""
    for blank in blanks:
        device, answer = card(rig, {f"0.{what}": blank})
        assert device[field] is None
        assert answer["missing"] == [field]
        assert answer["dropped"] == {"out_of_range": 1}


def test_without_a_believable_total_nothing_is_said_of_memory(rig: Rig) -> None:
    """Used memory is nothing without what it is a part of."""
    for total in (0, BLANK_ULONGLONG):
        device, answer = card(rig, {"0.memory_total": total})
        memory = {"memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"}
        assert {device[field] for field in memory} == {None}
        assert set(answer["missing"]) == memory


def test_extremes_that_are_real_are_kept(rig: Rig) -> None:
    """An idle, cold and empty card is idle, cold and empty; memory may be full."""
    device, answer = card(
        rig, {"0.utilization": 0, "0.temperature": 0, "0.memory_used": 0, "0.memory_reserved": 0}
    )
    assert (device["utilization_ratio"], device["temperature_c"]) == (0.0, 0.0)
    assert (device["memory_used_bytes"], answer["missing"]) == (0.0, [])
    device, _ = card(rig, {"0.utilization": 100, "0.memory_used": 80000})
    assert (device["utilization_ratio"], device["memory_used_bytes"]) == (1.0, 80000.0)


@pytest.mark.parametrize("reasons", [0, 1, 2, 4, 0x10, 0x100, 0x117])
def test_idleness_the_power_cap_and_chosen_clocks_are_no_slowdown(rig: Rig, reasons: int) -> None:
    """They lower the clock of a healthy card."""
    device, _ = card(rig, {"0.reasons": reasons})
    assert device["throttled"] is False


@pytest.mark.parametrize("reasons", [8, 0x20, 0x40, 0x80, 0x44, 0x1FF])
def test_heat_and_hardware_are_a_slowdown(rig: Rig, reasons: int) -> None:
    """Whatever else lowers the clock at the same time."""
    device, _ = card(rig, {"0.reasons": reasons})
    assert device["throttled"] is True


@pytest.mark.parametrize("code", [3, 4, 13, 21, 999])
@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("utilization", "utilization_ratio"),
        ("slowdown", "slowdown_c"),
        ("clock", "sm_clock_mhz"),
        ("power", "power_w"),
        ("name", "model"),
    ],
)
def test_a_call_that_fails_costs_its_number_only(
    rig: Rig, call: str, field: str, code: int
) -> None:
    """Unknown, and everything else stays known."""
    device, _ = card(rig, {f"0.error.{call}": code})
    unknown = {name for name, value in device.items() if value is None}
    assert unknown == {field}


@pytest.mark.parametrize("code", [3, 13])
def test_older_calls_answer_where_newer_ones_cannot(rig: Rig, code: int) -> None:
    """Temperature and clock reasons have a predecessor each, which every driver knows."""
    device, _ = card(
        rig, {"0.error.temperature": code, "0.error.reasons": code, "0.reasons": "0x20"}
    )
    assert (device["temperature_c"], device["throttled"]) == (60.0, True)


def test_names_that_are_not_text(rig: Rig) -> None:
    """A name in no encoding is unknown; a UUID that cannot be read leaves the card out."""
    device, _ = card(rig, {"0.name": "caf\xe9"})
    assert (device["model"], device["utilization_ratio"]) == (None, 0.4)
    rig.driver.says({"count": 2, "0.uuid": "caf\xe9"})
    answer = rig.host.poll(1.0)
    assert [device["device"] for device in answer["devices"]] == ["GPU-1"]
    assert answer["missing"] == ["device"]


def test_slices_are_devices_of_their_own(rig: Rig) -> None:
    """Own name and memory, the card's clock and heat; no utilisation, which the driver does not
    have, and no power, which is the card's. Empty slots are passed over."""
    rig.driver.says(SLICED)
    answer = rig.host.poll(3.0)
    whole, first, second = answer["devices"]
    assert [one["device"] for one in answer["devices"]] == ["GPU-0", "MIG-0-1", "MIG-0-4"]
    assert answer["missing"] == []
    assert (first["memory_used_bytes"], first["memory_total_bytes"]) == (5.0, 10000.0)
    assert second["memory_used_bytes"] == 20000.0
    for one in (whole, first, second):
        assert (one["sm_clock_mhz"], one["throttled"], one["temperature_c"]) == (1200.0, True, 60.0)
        assert (one["host"], one["at_s"], one["utilization_ratio"]) == ("node-7", 3.0, None)
    assert (whole["power_w"], first["power_w"], first["power_limit_w"]) == (350.5, None, None)
    assert (whole["model"], first["model"]) == ("Fake GPU", "Fake GPU MIG 1g.10gb")


def test_a_lost_card_takes_its_slices_along(rig: Rig) -> None:
    """Nothing on it can serve; slices that are cut anew replace those that were."""
    rig.driver.says(SLICED)
    rig.host.poll(0.0)
    rig.driver.says({**SLICED, "0.error.all": 15})
    seen = rig.host.devices(1.0)
    assert list(seen) == ["GPU-0", "MIG-0-1", "MIG-0-4"]
    assert all(device["lost"] for device in seen.values())
    rig.driver.says({"0.mig": 1, "0.2.present": 1})
    assert list(rig.host.devices(2.0)) == ["GPU-0", "MIG-0-2"]
    rig.driver.says({"0.mig": 1, "0.2.present": 1, "0.error.all": 15})
    assert list(rig.host.devices(3.0)) == ["GPU-0", "MIG-0-2"]


def test_a_slice_that_fails_leaves_the_others(rig: Rig) -> None:
    """A slice whose UUID cannot be read is missing; its card and neighbours stay."""
    rig.driver.says({**SLICED, "0.1.error.uuid": 999})
    answer = rig.host.poll(0.0)
    assert [one["device"] for one in answer["devices"]] == ["GPU-0", "MIG-0-4"]
    assert answer["missing"] == ["device"]


def test_a_count_of_slices_without_sense_is_bounded(rig: Rig) -> None:
    """Four thousand million slots end in time, with the slices that there are."""
    rig.driver.says({**SLICED, "0.mig_slots": 4_000_000_000})
    assert list(rig.host.devices(0.0)) == ["GPU-0", "MIG-0-1", "MIG-0-4"]


def test_a_slice_without_a_model_has_its_cards(rig: Rig) -> None:
    """Some drivers do not name slices."""
    rig.driver.says({**SLICED, "0.1.error.name": 999})
    assert rig.host.devices(0.0)["MIG-0-1"]["model"] == "Fake GPU"


def test_a_card_whose_slices_are_switched_off_is_whole(rig: Rig) -> None:
    """It can be cut, and is not: slots are not looked at."""
    rig.driver.says({**SLICED, "0.mig": 0})
    assert list(rig.host.devices(0.0)) == ["GPU-0"]


def test_processes_are_found_where_they_compute(rig: Rig) -> None:
    """On the slice, not on its card; unknown bytes are unknown; on two devices is on none."""
    rig.driver.says(
        {**SLICED, "count": 3, "1.pid": 43, "1.pid_memory": 7, "2.pid": 43, "2.pid_memory": 2**60}
    )
    rig.host.devices(0.0)
    answer = rig.host.ask("pids", pids=[41, 42, 43, 44])
    assert answer["devices"] == ["MIG-0-1", "MIG-0-4", None, None]
    assert answer["held"] == {
        "MIG-0-1": {"41": 4096.0},
        "MIG-0-4": {"42": None},
        "GPU-1": {"43": 7.0},
        "GPU-2": {"43": None},
    }


def test_processes_are_known_while_the_next_poll_is_under_way(rig: Rig) -> None:
    """What the last good poll said holds until there is something newer."""
    rig.driver.says({"0.pid": 41})
    rig.host.devices(0.0)
    rig.driver.says({"1.pid": 41, "count": 2})
    assert rig.host.ask("pid_while_polling", pid=41, now=1.0) == ["GPU-0", "GPU-1"]


def test_processes_are_forgotten_when_the_driver_fails(rig: Rig) -> None:
    """Where a process is, is unknown as soon as a poll cannot tell."""
    rig.driver.says({"0.pid": 41})
    rig.host.devices(0.0)
    assert rig.host.ask("pids", pids=[41])["devices"] == ["GPU-0"]
    rig.driver.says({"0.pid": 41, "error.all": 999})
    rig.host.poll(1.0)
    assert rig.host.ask("pids", pids=[41])["devices"] == [None]


def test_processes_are_not_asked_for_unless_wanted(rig: Rig) -> None:
    """Off by default: no process is known."""
    rig.renewed({"0.pid": 41, "0.error.processes": 999}, {})
    assert rig.host.poll(0.0)["missing"] == []
    assert rig.host.ask("pids", pids=[41]) == {"devices": [None], "held": {}}


def test_a_card_not_given_to_this_container_is_nobody(rig: Rig) -> None:
    """No permission is no fault: no sample, nothing missing, no new start of the driver."""
    rig.driver.says({"count": 2, "1.error.handle": 4})
    for now in (0.0, 100.0, 1000.0):
        answer = rig.host.poll(now)
        assert [one["device"] for one in answer["devices"]] == ["GPU-0"]
        assert answer["missing"] == []
    assert rig.driver.log() == ["init"]
