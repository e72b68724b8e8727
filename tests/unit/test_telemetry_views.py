"""What is known, as JSON and as a table: nothing without its age and source, nothing invented."""

from __future__ import annotations

import json

from ext_authz.snapshot import DeviceSample, EndpointSample, ModelSample, Report
from ext_authz.telemetry.describe import SourceState, describe
from ext_authz.telemetry.merge import Merger
from ext_authz.telemetry.window import Trend
from ext_authz.web.telemetry_table import table
from tests.support.settings import make_pool


def page() -> dict[str, object]:
    """One endpoint known from two sources and a throttled device, one never seen."""
    merger = Merger({"10.0.0.1:80": "GPU-1", "10.0.0.2:80": None})
    one = EndpointSample("10.0.0.1:80", 99.0, running=3.0, waiting=0.0, source="scrape")
    two = EndpointSample(
        "10.0.0.1:80", 99.5, running=4.0, source="stream", by_model={"m": ModelSample(4.0)}
    )
    hot = DeviceSample(
        "GPU-1", 98.0, "nvml", throttled=True, sm_clock_mhz=1000.0, sm_clock_max_mhz=1200.0
    )
    merger.take(Report((one,)))
    merger.take(Report((two,), (hot,)))
    return describe(
        merger.snapshot,
        {"main": make_pool("main", "10.0.0.1:80", "10.0.0.2:80")},
        {"scrape/10.0.0.1:80": SourceState(5, 1, ("kv_usage_ratio",))},
        {"10.0.0.1:80": {"load": Trend(3.5, 0.1, 5.0)}},
        now=100.0,
    )


def test_every_number_has_an_age_and_a_source() -> None:
    """Scripts can tell how old each number is and who said it; unknown ones are not there."""
    got = json.loads(json.dumps(page(), allow_nan=False))
    endpoint = got["pools"]["main"]["10.0.0.1:80"]
    assert endpoint["signals"]["running"] == {"value": 4.0, "age_s": 0.5, "source": "stream"}
    assert endpoint["signals"]["waiting"] == {"value": 0.0, "age_s": 1.0, "source": "scrape"}
    assert "kv_usage_ratio" not in endpoint["signals"]
    assert endpoint["state"] == "fresh"
    assert endpoint["signals"]["thermal_factor"] == {"value": 1.2, "age_s": 2.0, "source": "nvml"}
    assert endpoint["models"]["m"]["running"] == 4.0
    assert endpoint["trends"]["load"]["slope_per_s"] == 0.1
    for made in (endpoint["models"]["m"], endpoint["trends"]["load"]):
        assert (made["age_s"], made["source"]) == (0.5, "stream")
    device = got["devices"]["GPU-1"]["signals"]
    assert device["throttled"] == {"value": True, "age_s": 2.0, "source": "nvml"}
    assert got["pools"]["main"]["10.0.0.2:80"] == {"state": "never", "age_s": None, "signals": {}}
    assert got["sources"]["scrape/10.0.0.1:80"]["missing"] == ["kv_usage_ratio"]


def test_the_table_says_unknown_where_nothing_is_known() -> None:
    """A person sees the same, and never a zero for something nobody told."""
    lines = list(table(page()))
    known = next(line for line in lines if "10.0.0.1:80" in line)
    assert "4 stream 0.5s" in known
    assert "1.2 nvml 2.0s" in known
    unseen = next(line for line in lines if "10.0.0.2:80" in line)
    assert unseen.split()[1:] == ["never", *["unknown"] * 5]
    assert any("missing: kv_usage_ratio" in line for line in lines)


def test_sources_of_one_kind_fit_the_table() -> None:
    """The table names the kind of a source that bears its server's name, the JSON all of it."""
    merger = Merger({"10.0.0.1:80": None})
    source = "prometheus/prometheus.monitoring.svc:9090"
    merger.take(Report((EndpointSample("10.0.0.1:80", 90.0, running=3.0, source=source),)))
    pools = {"main": make_pool("main", "10.0.0.1:80")}
    got = describe(merger.snapshot, pools, {}, {}, now=100.0)
    assert got["pools"]["main"]["10.0.0.1:80"]["signals"]["running"]["source"] == source
    assert "thermal_factor" not in got["pools"]["main"]["10.0.0.1:80"]["signals"]
    assert any("3 prometheus 10.0s" in line for line in table(got))
