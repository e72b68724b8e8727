"""Several sources for one endpoint: which number wins, whose it is, and how old."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.endpoints import EndpointState
from ext_authz.settings import Endpoint
from ext_authz.snapshot import (
    DeviceSample,
    EndpointSample,
    Freshness,
    ModelSample,
    Origin,
    Report,
    Staleness,
)
from ext_authz.telemetry.merge import DEVICE_KEPT_S, MOST_DEVICES, Merger, thermal_factor

A = "a:80"


def sample(source: str, at_s: float, **values: object) -> EndpointSample:
    """What `source` says of endpoint A."""
    return EndpointSample(A, at_s, source=source, **values)  # type: ignore[arg-type]  # test builder


def merged(*samples: EndpointSample) -> EndpointSample:
    merger = Merger({A: None})
    for one in samples:
        merger.take(Report((one,)))
    return merger.snapshot.samples[A]


def test_each_number_is_the_freshest_that_anybody_gave() -> None:
    """Fields are merged one by one, and each keeps who said it and when."""
    got = merged(
        sample("scrape", 1.0, running=3.0, waiting=1.0, kv_usage_ratio=0.5),
        sample("stream", 2.0, running=5.0),
    )
    assert (got.running, got.waiting, got.kv_usage_ratio) == (5.0, 1.0, 0.5)
    assert got.origins["running"] == Origin("stream", 2.0)
    assert got.origins["waiting"] == Origin("scrape", 1.0)
    assert (got.at_s, got.source) == (2.0, "stream")


def test_half_a_load_is_not_put_beside_an_older_half() -> None:
    """Who tells only what waits does not date what ran before: added up, they would be a load
    that never was, with a date at which nobody looked at all of it."""
    scraped = sample("scrape", 1.0, running=8.0, waiting=3.0, by_model={"m": ModelSample(2.0)})
    header = sample("orca", 2.0, waiting=0.0, kv_usage_ratio=0.7)
    for got in (merged(scraped, header), merged(header, scraped)):
        assert (got.load, got.at_s, got.source) == (11.0, 1.0, "scrape")
        assert got.origins["waiting"] == Origin("scrape", 1.0)
        assert got.origins["kv_usage_ratio"] == Origin("orca", 2.0)
        assert got.by_model["m"].running == 2.0
    assert merged(header).load == 0.0
    both = merged(scraped, sample("orca", 2.0, running=1.0, waiting=0.0))
    assert (both.load, both.at_s) == (1.0, 2.0)


def test_a_source_that_stops_telling_a_number_no_longer_gives_it() -> None:
    """Unknown now is unknown, not the last value, once its only source says so."""
    got = merged(sample("scrape", 1.0, kv_usage_ratio=0.5), sample("scrape", 2.0, running=1.0))
    assert got.kv_usage_ratio is None
    assert "kv_usage_ratio" not in got.origins


def test_the_order_of_arrival_does_not_matter() -> None:
    """Reports of several sources merge to the same, whichever comes first."""
    said = (
        sample("scrape", 1.0, running=3.0, kv_usage_ratio=0.4),
        sample("stream", 1.5, running=5.0),
        sample("prometheus", 1.5, running=6.0, waiting=2.0),
    )
    results = {repr(merged(*order)) for order in permutations(said)}
    assert len(results) == 1


def test_a_late_report_of_the_same_source_is_ignored() -> None:
    """Time only moves forward for one source."""
    got = merged(sample("scrape", 2.0, running=3.0), sample("scrape", 1.0, running=9.0))
    assert got.running == 3.0


def test_what_is_assumed_gives_way_to_what_is_measured() -> None:
    """A static capacity counts only where nobody measured, however new it is."""
    got = merged(
        sample("scrape", 1.0, kv_capacity_tokens=100.0, running=1.0),
        sample("static", 9.0, kv_capacity_tokens=500.0, mean_execution_s=0.4),
    )
    assert (got.kv_capacity_tokens, got.mean_execution_s) == (100.0, 0.4)


def test_the_date_is_that_of_the_load() -> None:
    """A fresh capacity does not make an old load look fresh. Where nobody ever told a load, a
    configured assumption vouches for the endpoint, a measurement of something else does not."""
    got = merged(
        sample("scrape", 1.0, running=1.0), sample("prometheus", 8.0, kv_capacity_tokens=1.0)
    )
    assert got.at_s == 1.0
    assert merged(sample("static", 8.0, kv_capacity_tokens=1.0)).at_s == 8.0
    assert merged(sample("scrape", 8.0, kv_capacity_tokens=1.0)).at_s == -inf
    lost = merged(sample("scrape", 1.0, running=1.0), sample("scrape", 9.0, kv_usage_ratio=0.1))
    assert (lost.load, lost.at_s) == (None, 1.0)


def test_models_come_from_whoever_tells_the_load() -> None:
    """Per-model gauges are of one source, never mixed."""
    got = merged(
        sample("scrape", 1.0, running=1.0, by_model={"m": ModelSample(running=1.0)}),
        sample("stream", 2.0, running=2.0, by_model={"m": ModelSample(running=2.0)}),
    )
    assert got.by_model["m"].running == 2.0


def test_strangers_are_dropped_and_counted() -> None:
    """Nobody can make us remember endpoints that are not configured."""
    merger = Merger({A: None})
    assert merger.take(Report((EndpointSample("b:80", 1.0, running=1.0),))) == ()
    assert (merger.strangers, dict(merger.snapshot.samples)) == (1, {})


def test_devices_are_bounded() -> None:
    """A source that invents devices cannot grow the memory."""
    merger = Merger({})
    for number in range(MOST_DEVICES + 10):
        merger.take(Report(devices=(DeviceSample(f"GPU-{number}", 1.0, "nvml"),)))
    assert len(merger.snapshot.devices) == MOST_DEVICES
    assert merger.strangers == 10


def device(**values: object) -> DeviceSample:
    return DeviceSample("GPU-1", 1.0, "nvml", **values)  # type: ignore[arg-type]  # test builder


@pytest.mark.parametrize(
    ("values", "factor"),
    [
        ({"throttled": True, "sm_clock_mhz": 1000.0, "sm_clock_max_mhz": 1250.0}, 1.25),
        ({"throttled": True, "sm_clock_mhz": 300.0, "sm_clock_max_mhz": 1980.0}, 1.4),
        ({"throttled": True, "sm_clock_mhz": 2000.0, "sm_clock_max_mhz": 1980.0}, 1.0),
        ({"throttled": False, "sm_clock_mhz": 300.0, "sm_clock_max_mhz": 1980.0}, 1.0),
        ({"sm_clock_mhz": 300.0, "sm_clock_max_mhz": 1980.0}, 1.0),
        ({"throttled": True}, 1.0),
        ({"throttled": True, "sm_clock_mhz": 0.0, "sm_clock_max_mhz": 1980.0}, 1.0),
    ],
)
def test_thermal_factor(values: dict[str, object], factor: float) -> None:
    """Clocks count only when the driver names a thermal or hardware reason; at most 40 %."""
    assert thermal_factor(device(**values)) == pytest.approx(factor)


@pytest.mark.parametrize("configured", [True, False])
def test_a_throttled_device_slows_the_endpoints_on_it(configured: bool) -> None:
    """The factor reaches every endpoint on the card, as configured or as a source said, also
    when the device is heard of after the endpoint, and ends with the throttling."""
    merger = Merger({A: "GPU-1" if configured else None, "b:80": None})
    told = None if configured else "GPU-1"
    merger.take(Report((sample("scrape", 1.0, running=1.0, device=told),)))
    hot = device(throttled=True, sm_clock_mhz=1000.0, sm_clock_max_mhz=1250.0)
    (changed,) = merger.take(Report(devices=(hot,)))
    assert (changed.endpoint, changed.thermal_factor) == (A, 1.25)
    cool = DeviceSample("GPU-1", 2.0, "nvml", throttled=False)
    (changed,) = merger.take(Report(devices=(cool,)))
    assert changed.thermal_factor == 1.0


def test_the_memory_of_a_card_is_told_of_its_endpoints() -> None:
    """With its own date; unknown while one of the two numbers is."""
    merger = Merger({A: "GPU-1"})
    merger.take(Report((sample("scrape", 1.0, running=1.0),)))
    (changed,) = merger.take(Report(devices=(DeviceSample("GPU-1", 2.0, "nvml"),)))
    assert changed.device_memory_ratio is None
    used = DeviceSample("GPU-1", 3.0, "nvml", memory_used_bytes=9e9, memory_total_bytes=10e9)
    (changed,) = merger.take(Report(devices=(used,)))
    assert (changed.device_memory_ratio, changed.device_at_s, changed.at_s) == (0.9, 3.0, 1.0)


def test_reconfiguring_forgets_only_what_went() -> None:
    """Endpoints that stay keep their sample."""
    merger = Merger({A: None, "b:80": None})
    merger.take(Report((sample("scrape", 1.0, running=1.0),)))
    merger.take(Report((EndpointSample("b:80", 1.0, running=1.0),)))
    merger.reconfigure({A: None})
    assert list(merger.snapshot.samples) == [A]


number = st.none() | st.floats(0, 1e6)
reports = st.lists(
    st.builds(
        EndpointSample,
        st.just(A),
        st.integers(0, 20).map(float),
        running=number,
        waiting=number,
        kv_usage_ratio=number,
        source=st.sampled_from(["scrape", "stream", "static"]),
    ),
    min_size=1,
    max_size=12,
)


def best_of(samples: Iterable[EndpointSample], field: str) -> EndpointSample | None:
    """Who told a field: measured before assumed, then by date; of one date by name."""
    known = [s for s in samples if getattr(s, field) is not None]
    return min(known, key=lambda s: (s.source == "static", -s.at_s, s.source), default=None)


@given(reports)
def test_merging_agrees_with_a_slow_reading(samples: list[EndpointSample]) -> None:
    """Each field is what the latest word of each source gives, measured before assumed, by date;
    the two parts of a load come from one source where it has both."""
    last: dict[str, EndpointSample] = {}
    for one in samples:
        if one.source not in last or one.at_s >= last[one.source].at_s:
            last[one.source] = one
    got = merged(*samples)
    fields = ("running", "waiting", "kv_usage_ratio")
    told = {field: best_of(last.values(), field) for field in fields}
    running = told["running"]
    if running is not None and running.source != "static" and running.waiting is not None:
        told["waiting"] = running
    for field, best in told.items():
        value = getattr(got, field)
        if best is None:
            assert value is None
            continue
        origin = got.origins[field]
        assert (origin.source != "static", origin.at_s) == (best.source != "static", best.at_s)
        assert value == getattr(last[origin.source], field)


def card(at_s: float, lost: bool = False, throttled: bool = False) -> DeviceSample:
    clocks = {"sm_clock_mhz": 800.0, "sm_clock_max_mhz": 1000.0}
    return DeviceSample("GPU-1", at_s, "nvml", lost=lost, throttled=throttled, **clocks)


def test_a_lost_card_takes_its_endpoints_along_until_it_is_back() -> None:
    """A server whose card fell off the bus shows no load: it is as good as gone, and not idle."""
    merger, staleness = Merger({A: "GPU-1"}), Staleness(5.0)
    state = EndpointState(Endpoint(A, f"http://{A}", 8, "GPU-1"))
    for lost, freshness, load in (
        (False, Freshness.FRESH, 0.0),
        (True, Freshness.STALE, None),
        (False, Freshness.FRESH, 0.0),
    ):
        scraped = sample("scrape", 1.0, running=0.0)
        for one in merger.take(Report((scraped,), (card(1.0, lost),))):
            state.observe(one)
        assert merger.snapshot.freshness(A, 2.0, staleness) is freshness
        assert state.believed(staleness, 2.0) == load


def test_a_card_that_nobody_tells_of_any_more_slows_nothing() -> None:
    """What was last known of its clocks does not last for ever."""
    merger = Merger({A: "GPU-1"})
    merger.take(Report((sample("scrape", 1.0, running=0.0),), (card(1.0, throttled=True),)))
    assert merger.snapshot.samples[A].thermal_factor == 1.25
    merger.take(Report((sample("scrape", 1.0 + DEVICE_KEPT_S, running=0.0),)))
    assert merger.snapshot.samples[A].thermal_factor == 1.25
    merger.take(Report((sample("scrape", 2.0 + DEVICE_KEPT_S, running=0.0),)))
    assert merger.snapshot.samples[A].thermal_factor == 1.0


def test_a_new_device_takes_the_place_of_one_long_gone() -> None:
    """The bound is on how many are known at a time, not on how many there ever were."""
    merger = Merger({})
    for number in range(MOST_DEVICES):
        merger.take(Report(devices=(DeviceSample(f"d{number}", float(number), "nvml"),)))
    merger.take(Report(devices=(DeviceSample("new", float(MOST_DEVICES), "nvml"),)))
    assert merger.snapshot.devices.keys() == {f"d{n}" for n in range(1, MOST_DEVICES)} | {"new"}


def test_a_source_that_was_taken_out_no_longer_counts() -> None:
    """What it said last does not outlive it."""
    merger = Merger({A: None})
    merger.take(Report((sample("scrape", 1.0, running=1.0),)))
    merger.take(Report((sample("stream", 2.0, running=5.0, kv_usage_ratio=0.5),)))
    merger.reconfigure({A: None}, {"scrape"})
    (got,) = merger.take(Report((sample("scrape", 3.0, running=2.0),)))
    assert (got.running, got.kv_usage_ratio) == (2.0, None)
