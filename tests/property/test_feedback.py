"""The heartbeat: what is encoded comes back, and nothing that comes is believed unchecked."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, replace
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample, EndpointSample, ModelSample, Report
from ext_authz.telemetry.sources.feedback.fields import MAX_AGE_S, MAX_BYTES
from ext_authz.telemetry.sources.feedback.heartbeat import Header, Heartbeat, decode, encode
from ext_authz.telemetry.sources.feedback.intake import Intake
from tests.support.feedback import HOME, message

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.isprintable)
ratios = st.none() | st.floats(0, 1)
counts = st.none() | st.floats(0, 1e9)
ages = st.floats(0, MAX_AGE_S - 1)
models = st.builds(ModelSample, counts, counts, ratios)
endpoints = st.builds(
    EndpointSample,
    endpoint=names,
    at_s=ages.map(lambda age: 5000.0 - age),
    running=counts,
    waiting=counts,
    kv_usage_ratio=ratios,
    kv_capacity_tokens=counts,
    mean_execution_s=st.none() | st.floats(0, 1e6),
    by_model=st.dictionaries(names, models, max_size=3),
    device=st.none() | names,
)
devices = st.builds(
    DeviceSample,
    device=names,
    at_s=ages.map(lambda age: 5000.0 - age),
    source=st.just("nvml"),
    host=st.none() | names,
    utilization_ratio=ratios,
    memory_used_bytes=counts,
    temperature_c=st.none() | st.floats(-50, 150),
    throttled=st.none() | st.booleans(),
    lost=st.booleans(),
)
reports = st.builds(
    Report,
    st.lists(endpoints, max_size=3, unique_by=lambda e: e.endpoint).map(tuple),
    st.lists(devices, max_size=3, unique_by=lambda d: d.device).map(tuple),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(reports, st.floats(-1e6, 1e6))
def test_what_is_sent_is_what_arrives(report: Report, shift_s: float) -> None:
    """All numbers come back the same, dated by age on a clock that has another origin."""
    header = Header("agent", "run", 3, 1.5)
    heartbeat = decode(encode(header, report, 5000.0))
    assert heartbeat.header == header
    arrived = heartbeat.dated(5000.0 + shift_s, "stream")
    assert not arrived.dropped
    pairs: list[tuple[Any, Any]] = [
        *zip(report.endpoints, arrived.endpoints, strict=True),
        *zip(report.devices, arrived.devices, strict=True),
    ]
    for sent, got in pairs:
        assert got.at_s - shift_s == pytest.approx(sent.at_s, abs=1e-3)
        assert got.source == "stream"
        assert replace(got, at_s=sent.at_s, source=sent.source) == sent


def checked(sample: EndpointSample | DeviceSample | ModelSample) -> None:
    for field in fields(sample):
        value = getattr(sample, field.name)
        if isinstance(value, float):
            assert isfinite(value), field.name
            if field.name.endswith("_ratio"):
                assert 0 <= value <= 1
            if field.name in {"running", "waiting", "memory_used_bytes"}:
                assert value >= 0


@given(
    st.dictionaries(
        st.sampled_from(["v", "agent", "run", "seq", "sent_ms", "endpoints", "devices"]),
        json_values,
    ),
    st.dictionaries(
        st.sampled_from(["address", "age_ms", "running", "kv_usage_ratio", "models", "device"]),
        json_values,
    ),
)
def test_nothing_is_believed_unchecked(top: dict[str, Any], entry: dict[str, Any]) -> None:
    """Whatever stands in whatever field: a TelemetryError, or samples that are finite, in range
    and dated no later than the sending."""
    proper = message(1)
    proper["endpoints"][0].update(entry)
    proper["devices"] = [{"device": "d", "age_ms": 0, **entry}]
    proper.update(top)
    try:
        heartbeat = decode(json.dumps(proper).encode())
    except TelemetryError:
        return
    for sample in heartbeat.report.endpoints:
        assert -MAX_AGE_S <= sample.at_s <= 0
        checked(sample)
        for one in sample.by_model.values():
            checked(one)
    for device in heartbeat.report.devices:
        assert -MAX_AGE_S <= device.at_s <= 0
        checked(device)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_heartbeat_or_an_error(data: bytes) -> None:
    """Nothing else is ever raised."""
    with suppress(TelemetryError):
        assert isinstance(decode(data), Heartbeat)


def test_the_encoder_leaves_out_what_is_no_number() -> None:
    """NaN and infinities are unknown, and what is too old to date is not sent."""
    sample = EndpointSample(HOME, 5000.0, running=nan, waiting=inf, kv_usage_ratio=0.5)
    old = EndpointSample("old:1", 1000.0, running=1)
    got = decode(encode(Header("a", "r", 1), Report((sample, old)), 5000.0)).report.endpoints
    assert [(e.endpoint, e.running, e.waiting, e.kv_usage_ratio) for e in got] == [
        (HOME, None, None, 0.5)
    ]


def test_a_heartbeat_that_would_be_too_long_loses_its_models_first() -> None:
    """The endpoint's own numbers are worth more; what is too long without models is an error."""
    wide = {f"{'m' * 240}{n}": ModelSample(1, 1, 0.5) for n in range(300)}
    sample = EndpointSample(HOME, 1.0, running=1, by_model=wide)
    data = encode(Header("a", "r", 1), Report((sample,)), 1.0)
    assert len(data) <= MAX_BYTES
    (got,) = decode(data).report.endpoints
    assert (got.running, dict(got.by_model)) == (1.0, {})
    many = tuple(EndpointSample("h" * 200 + str(n), 1.0, running=1) for n in range(400))
    with pytest.raises(TelemetryError):
        encode(Header("a", "r", 1), Report(many), 1.0)


def test_more_than_there_may_be_is_dropped_and_counted() -> None:
    """Endpoints, devices and models beyond the bounds cost only themselves."""
    entries = [{"address": f"h:{n}", "age_ms": 0} for n in range(70)]
    entries[0]["models"] = {f"m{n}": {} for n in range(70)}
    cards = [{"device": f"d{n}", "age_ms": 0} for n in range(70)] + [{"device": "d1", "age_ms": 0}]
    report = decode(json.dumps(message(1, endpoints=entries, devices=cards)).encode()).report
    assert (len(report.endpoints), len(report.devices)) == (64, 64)
    assert len(report.endpoints[0].by_model) == 64
    assert report.dropped == {"too_many": 6 + 6 + 7}


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 2)), min_size=1, max_size=60))
def test_dates_lie_between_the_sending_and_the_usual_delay_after_it(
    beats: list[tuple[float, float]],
) -> None:
    """However heartbeats are delayed, none is dated later than it was sent and the least delay
    there was, nor before it was sent."""
    intake = Intake("stream", frozenset({HOME}), 1)
    sent_s, now, least_s = 0.0, 0.0, inf
    for seq, (pause_s, delay_s) in enumerate(beats):
        sent_s += pause_s
        now = max(now, sent_s + delay_s)  # a stream delivers in order
        least_s = min(least_s, now - sent_s)
        data = json.dumps(message(seq, age_ms=0, sent_ms=sent_s * 1000)).encode()
        (sample,) = intake.accept("p", decode(data), now).endpoints
        assert sent_s - 1e-6 <= sample.at_s <= now + 1e-6
        if now <= 30:  # within the first window the least delay is remembered exactly
            assert sample.at_s == pytest.approx(sent_s + least_s)


def test_a_lasting_change_of_delay_is_the_usual_one_after_a_while() -> None:
    """A host that was suspended for 100 s, so that its clock lags from then on, is believed to be
    late at first and not for ever."""
    intake = Intake("stream", frozenset({HOME}), 1)
    ages = []
    for second in range(150):
        now = float(second if second < 40 else second + 100)
        data = json.dumps(message(second, age_ms=0, sent_ms=second * 1000)).encode()
        (sample,) = intake.accept("p", decode(data), now).endpoints
        ages.append(now - sample.at_s)
    assert ages[:40] == [0.0] * 40
    assert ages[40] == 100.0
    assert ages[-50:] == [0.0] * 50
