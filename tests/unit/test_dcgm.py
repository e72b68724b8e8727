"""Cards out of the DCGM exporter's series."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.snapshot import DeviceSample
from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.sources.prometheus.dcgm import NAMES, Cards, Key, Xid, read_cards
from ext_authz.telemetry.sources.prometheus.promql import DatedSeries

MIB = 1024 * 1024
UTIL = "DCGM_FI_DEV_GPU_UTIL"
XID = "DCGM_FI_DEV_XID_ERRORS"
TEMP = "DCGM_FI_DEV_GPU_TEMP"
NOTHING: Mapping[Key, Xid] = {}
# One card for two pods and none, another whose cluster labels the workload plainly.
PODS_PAGE = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",Hostname="n1",exported_pod="llm-0",pod="dcgm-x"} 88
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",Hostname="n1",exported_pod="llm-1",pod="dcgm-x"} 88
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",Hostname="n1"} 88
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-bb",Hostname="n1",pod="emb-0"} 10
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",Hostname="n1",exported_pod="llm-0",pod="dcgm-x"} 60000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",Hostname="n1",exported_pod="llm-1",pod="dcgm-x"} 60000
"""


def series(name: str, value: float | None, age_s: float = 1.0, **labels: str) -> DatedSeries:
    return DatedSeries(name, {"UUID": "GPU-aa", "Hostname": "n1", **labels}, value, age_s)


def page(text: str, age_s: float = 1.0) -> list[DatedSeries]:
    read = parse_page(text.encode(), NAMES)
    return [
        DatedSeries(n, s.labels, s.value, age_s) for n, found in read.series.items() for s in found
    ]


def read(*found: DatedSeries, before: Mapping[Key, Xid] = NOTHING) -> Cards:
    return read_cards(found, 100.0, "prometheus", before)


def only(*found: DatedSeries) -> DeviceSample:
    (sample,) = read(*found).samples
    return sample


def test_a_card_is_one_however_many_pods_share_it() -> None:
    """Two cards, not four; nothing is added up over pods; the workload's own label comes first."""
    cards = read(*page(PODS_PAGE))
    first, second = cards.samples
    assert (first.device, first.host, first.utilization_ratio) == ("GPU-aa", "n1", 0.88)
    assert (second.device, second.host, second.utilization_ratio) == ("GPU-bb", "n1", 0.10)
    assert first.memory_used_bytes == 60000 * MIB
    assert second.memory_used_bytes is None
    assert (first.utilization_ratio + second.utilization_ratio) / 2 == pytest.approx(0.49)
    assert cards.pods == {"GPU-aa": {"llm-0", "llm-1"}, "GPU-bb": {"emb-0"}}


@given(st.permutations(PODS_PAGE.splitlines()))
def test_the_order_of_lines_does_not_matter(lines: list[str]) -> None:
    """Whatever comes last is not what counts."""
    assert read(*page("\n".join(lines) + "\n")).samples == read(*page(PODS_PAGE)).samples


def test_units_and_every_field() -> None:
    """MiB become bytes, percent a ratio; power and clocks stay as they are."""
    sample = only(
        series(UTIL, 50, modelName='a "b", c\\'),
        series("DCGM_FI_DEV_FB_USED", 100),
        series("DCGM_FI_DEV_FB_FREE", 50),
        series("DCGM_FI_DEV_FB_RESERVED", 10),
        series(TEMP, 61),
        series("DCGM_FI_DEV_SLOWDOWN_TEMP", 90),
        series("DCGM_FI_DEV_SM_CLOCK", 1200),
        series("DCGM_FI_DEV_MAX_SM_CLOCK", 1980),
        series("DCGM_FI_DEV_POWER_USAGE", 420.5),
        series("DCGM_FI_DEV_POWER_MGMT_LIMIT", 650),
        series("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 700),
        series("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x20),
    )
    assert sample == DeviceSample(
        device="GPU-aa",
        at_s=99.0,
        source="prometheus",
        host="n1",
        model='a "b", c\\',
        utilization_ratio=0.5,
        memory_used_bytes=100 * MIB,
        memory_reserved_bytes=10 * MIB,
        memory_total_bytes=160 * MIB,
        temperature_c=61,
        slowdown_c=90,
        sm_clock_mhz=1200,
        sm_clock_max_mhz=1980,
        power_w=420.5,
        power_limit_w=700,
        throttled=True,
    )


@pytest.mark.parametrize(
    ("labels", "host"),
    [
        ({"Hostname": "a", "hostname": "b", "instance": "c:9400"}, "a"),
        ({"Hostname": "", "hostname": "b", "instance": "c:9400"}, "b"),
        ({"Hostname": "", "instance": "c:9400"}, "c"),
        ({"Hostname": "", "instance": "[fd00::1]:9400"}, "[fd00::1]"),
        ({"Hostname": "", "instance": "c"}, "c"),
        ({"Hostname": ""}, None),
    ],
)
def test_host(labels: dict[str, str], host: str | None) -> None:
    """The exporter's own word for the host, old or new spelling, else where it was scraped."""
    assert only(series(UTIL, 1, **labels)).host == host


def test_the_same_uuid_on_two_hosts_is_two_cards() -> None:
    """Virtual machines may repeat a UUID."""
    cards = read(series(UTIL, 1), series(UTIL, 2, Hostname="n2"))
    assert [(s.host, s.utilization_ratio) for s in cards.samples] == [("n1", 0.01), ("n2", 0.02)]


@pytest.mark.parametrize("blank", [2147483632, 2147483647, 140737488355328, 9223372036854775794])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_blanks_are_unknown(name: str, blank: float) -> None:
    """What DCGM prints for "not available" is no number, for any metric and of any width."""
    cards = read(series(name, float(blank)), series("DCGM_FI_DEV_MEM_CLOCK", 5))
    assert cards.samples == ()
    assert cards.dropped == {"out_of_range": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (UTIL, 101),
        (UTIL, -1),
        (UTIL, float("nan")),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.5),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0.5),
        (XID, 31.5),
        (TEMP, -40),
    ],
)
def test_unbelievable_values_are_unknown(name: str, value: float) -> None:
    """Nothing outside its range is taken, and nothing else of the card suffers."""
    cards = read(series(name, value), series("DCGM_FI_DEV_SM_CLOCK", 900))
    (sample,) = cards.samples
    assert sample.sm_clock_mhz == 900
    assert (sample.utilization_ratio, sample.temperature_c, sample.throttled) == (None,) * 3
    assert cards.dropped == {"out_of_range": 1}


def test_failed_conversions_name_nothing() -> None:
    """The exporter's own error text is neither a model nor a workload."""
    text = "ERROR - FAILED TO CONVERT TO STRING"
    cards = read(series(UTIL, 5, modelName=text, pod=text))
    assert cards.samples[0].model is None
    assert cards.pods == {"GPU-aa": frozenset()}


@pytest.mark.parametrize(
    ("mask", "throttled"),
    [
        *((mask, False) for mask in (0, 1, 2, 4, 5, 0x10, 0x100)),
        *((mask, True) for mask in (8, 0x20, 0x40, 0x80, 4 | 0x40)),
    ],
)
def test_throttling(mask: int, throttled: bool) -> None:
    """Thermal and hardware reasons count; the power cap, under which a busy card lives, not."""
    for name in ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"):
        assert only(series(name, mask)).throttled is throttled


def test_throttling_is_unknown_where_reasons_are_not_exported() -> None:
    """They are not among the exporter's default metrics."""
    assert only(series(TEMP, 95)).throttled is None


def test_slices_are_devices_of_their_own_and_use_what_exists_for_them() -> None:
    """A MIG slice has no utilization but that of its engine; its card's own is not its."""
    found = [
        series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.25, GPU_I_ID="7"),
        series(UTIL, 99, GPU_I_ID="7"),
        series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, GPU_I_ID="8"),
        series(UTIL, 70),
        series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.6),
    ]
    got = {s.device: s.utilization_ratio for s in read(*found).samples}
    assert got == {"GPU-aa": 0.7, "GPU-aa/7": 0.25, "GPU-aa/8": 0.5}


def test_engine_activity_stands_in_for_utilization() -> None:
    """Where the driver's figure is not exported, the profiler's is."""
    assert only(series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.6)).utilization_ratio == 0.6


@pytest.mark.parametrize(
    ("reserved", "total"), [([], 150), ([series("DCGM_FI_DEV_FB_RESERVED", None)], None)]
)
def test_total_memory(reserved: list[DatedSeries], total: int | None) -> None:
    """Without the reserved part it is in "used"; with an unreadable one the total is unknown."""
    used = [series("DCGM_FI_DEV_FB_USED", 100), series("DCGM_FI_DEV_FB_FREE", 50)]
    assert only(*used, *reserved).memory_total_bytes == (total * MIB if total else None)


def test_dated_by_the_oldest_and_the_newest_series_of_a_metric_counts() -> None:
    """A pod that is gone leaves its last value behind, which is no longer the card's."""
    gone = series(UTIL, 99, age_s=200.0, pod="old")
    sample = only(gone, series(UTIL, 5, age_s=2.0, pod="new"), series(TEMP, 50, age_s=3.0))
    assert (sample.utilization_ratio, sample.at_s) == (0.05, 97.0)


def test_series_that_name_no_card_or_have_no_date() -> None:
    """They are counted or left, never guessed."""
    nameless = DatedSeries(UTIL, {"Hostname": "n1"}, 5.0, 1.0)
    undated = DatedSeries(UTIL, {"UUID": "GPU-aa"}, 5.0, None)
    cards = read(nameless, undated, DatedSeries(UTIL, {"uuid": "GPU-cc"}, 5.0, 1.0))
    assert [s.device for s in cards.samples] == ["GPU-cc"]
    assert cards.dropped == {"no_identity": 1}


def codes(*steps: list[DatedSeries]) -> list[Cards]:
    """Readings one after the other, each knowing the one before."""
    found: list[Cards] = []
    for step in steps:
        found.append(read(*step, before=found[-1].xids if found else NOTHING))
    return found


def test_an_old_error_code_tells_nothing() -> None:
    """The last code never clears: only its change is news."""
    first, second, third = codes(*[[series(XID, 79)]] * 3)
    assert not any(cards.samples[0].lost or cards.news for cards in (first, second, third))


def test_a_card_off_the_bus_is_lost_until_something_can_be_read_of_it() -> None:
    """Lost when the code comes while we watch and all else is gone; a reading is proof of life."""
    well = [series(XID, 0), series(TEMP, 50)]
    off = [series(XID, 79), series(TEMP, None)]
    still = [series(XID, 79), series(TEMP, 55)]
    found = codes(well, off, off, still, off, well)
    assert [c.samples[0].lost for c in found] == [False, True, True, False, True, False]
    assert [dict(c.news) for c in found] == [{}, {"GPU-aa": 79}, {}, {}, {}, {"GPU-aa": 0}]


def test_other_error_codes_are_news_but_lose_no_card() -> None:
    """A program's fault is not the card's end."""
    _, second = codes([series(XID, 0)], [series(XID, 31)])
    assert second.news == {"GPU-aa": 31}
    assert not second.samples[0].lost


values = st.one_of(st.floats(0, 100), st.just(2.0**31), st.none())


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "x", "y"]), values), max_size=12
    )
)
def test_memory_is_the_largest_believable_value_of_each_card(
    found: list[tuple[str, str, float | None]],
) -> None:
    """Against the plain reading of that sentence."""
    all_series = [
        series("DCGM_FI_DEV_FB_USED", value, UUID=uuid, pod=pod) for uuid, pod, value in found
    ]
    random.Random(1).shuffle(all_series)
    expected = {
        uuid: max(kept) * MIB
        for uuid, group in itertools.groupby(sorted(found, key=lambda f: f[0]), lambda f: f[0])
        if (kept := [value for _, _, value in group if value is not None and value <= 100])
    }
    got = {s.device: s.memory_used_bytes for s in read(*all_series).samples}
    assert got == expected
