from __future__ import annotations

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.sources.orca.report import (
    MAX_HEADER_BYTES,
    MAX_METRICS,
    OrcaLoad,
    parse_binary_header,
    parse_header,
)
from ext_authz.telemetry.sources.orca.wire import OrcaWire

WIRE = OrcaWire()
# Written by the generated classes of another package: utilizations 0.5, 0.25 and 1.25, rps 7,
# rps_fractional 7.5, eps 1.5, a cost, and the two named metrics of vLLM.
GOLDEN = (
    "CQAAAAAAAOA/EQAAAAAAANA/GAciEQoGdG9rZW5zEQAAAAAAACJAKg4KA2dwdREAAAAAAADgPzEAAAAAAAAeQDkAAAAAAAD4"
    "P0IeChNrdl9jYWNoZV91c2FnZV9wZXJjEQAAAAAAAOg/Qh8KFG51bV9yZXF1ZXN0c193YWl0aW5nEQAAAAAAAAhASQAAAAAA"
    "APQ/"
)


def sample(value: str) -> EndpointSample | None:
    endpoints = report(value).endpoints
    return endpoints[0] if endpoints else None


def report(value: str) -> Report:
    return parse_header(value, WIRE).report("a:1", 5.0)


@pytest.mark.parametrize(
    ("value", "waiting", "usage"),
    [
        # As vLLM 0.32 sends them.
        (
            "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0",
            0,
            0,
        ),
        (
            'JSON {"named_metrics": {"num_requests_waiting": 16.0, "kv_cache_usage_perc": 0.5}}',
            16,
            0.5,
        ),
        # Two engines: queues add up, the fullest cache counts.
        (
            "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25, "
            "named_metrics.num_requests_waiting=4.0, named_metrics.kv_cache_usage_perc=0.75",
            7,
            0.75,
        ),
        ("named_metrics.num_requests_waiting:3,named_metrics.kv_cache_usage_perc:0.5", 3, 0.5),
        ("text named_metrics.num_requests_waiting=3 ,, ", 3, None),
        (
            "TEXT named_metrics.num_requests_waiting=3,TEXT named_metrics.num_requests_waiting=1",
            4,
            None,
        ),
        ('{"namedMetrics": {"num_requests_waiting": "3"}}', 3, None),
        ('JSON {"named_metrics": {"kv_cache_utilization": 0.5}}', None, 0.5),
        (f"BIN {GOLDEN}", 3, 0.75),
        (f"BIN {GOLDEN.rstrip('=')}", 3, 0.75),
        # One engine's unusable value makes the sum unknown, and nothing else.
        (
            "TEXT named_metrics.num_requests_waiting=NaN, named_metrics.num_requests_waiting=4, "
            "named_metrics.kv_cache_usage_perc=0.5",
            None,
            0.5,
        ),
        (
            "TEXT named_metrics.kv_cache_usage_perc=50, named_metrics.num_requests_waiting=1",
            1,
            None,
        ),
        ("TEXT named_metrics.kv_cache_usage_perc=1.001", None, 1.0),
    ],
)
def test_encodings(value: str, waiting: float | None, usage: float | None) -> None:
    """Every encoding in use gives the same numbers, dated and named."""
    got = sample(value)
    assert got is not None
    assert (got.endpoint, got.at_s, got.source) == ("a:1", 5.0, "orca")
    assert (got.waiting, got.kv_usage_ratio, got.running) == (waiting, usage, None)


def test_a_whole_message() -> None:
    """Every field of the message has the number that the published schema gives it."""
    assert parse_binary_header(GOLDEN, WIRE).metrics == {
        "cpu_utilization": (0.5,),
        "mem_utilization": (0.25,),
        "rps": (7.0,),
        "request_cost.tokens": (9.0,),
        "utilization.gpu": (0.5,),
        "rps_fractional": (7.5,),
        "eps": (1.5,),
        "named_metrics.kv_cache_usage_perc": (0.75,),
        "named_metrics.num_requests_waiting": (3.0,),
        "application_utilization": (1.25,),
    }
    assert WIRE.ask(0.25) == b"\n\x05\x10\x80\xe5\x9aw"
    got = sample(f"BIN {GOLDEN}")
    assert got is not None
    assert got.requests_per_s == 7.5


def test_capacity_of_a_cache() -> None:
    """What TensorRT-LLM's server says of its cache: how full, and how large."""
    got = sample(
        "TEXT named_metrics.kv_cache_utilization=0.5, named_metrics.max_token_capacity=640"
    )
    assert got is not None
    assert (got.kv_usage_ratio, got.kv_capacity_tokens) == (0.5, 640)


@pytest.mark.parametrize(
    ("value", "dropped"),
    [
        ("TEXT a=1, b=NaN", {"nan": 1}),
        ("TEXT a=1, b=inf, c=-inf", {"infinite": 2}),
        ("TEXT a=1, b=-1", {"out_of_range": 1}),
        ("TEXT a=1, b, =2, c=1_0, d=x", {"malformed": 4}),
        ("TEXT a=1, named_metrics.kv_cache_usage_perc=7", {"out_of_range": 1}),
        (
            'JSON {"a": 1, "b": null, "c": true, "d": [1], "named_metrics": 3, "e": {}}',
            {"malformed": 4},
        ),
        ('JSON {"a": 1, "b": ' + "9" * 400 + "}", {"infinite": 1}),
        (f"TEXT a=1, {'n' * 129}=2", {"malformed": 1}),
    ],
)
def test_what_cannot_be_used_is_counted(value: str, dropped: dict[str, int]) -> None:
    """Junk among good metrics is counted by reason, and no sample is made of unknown metrics."""
    got = report(value)
    assert got.dropped == dropped
    assert got.endpoints == ()


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "TEXT",
        "TEXT a",
        "TEXT a=NaN",
        "JSON",
        "JSON []",
        'JSON {"a": 1',
        'JSON {"a": "x"}',
        "JSON " + "[" * 5000,
        '{"a":' * 1000,
        "BIN",
        "BIN ****",
        "BIN Zm9v",
        "BIN AAAA",
        "TEXT " + ",".join(f"m{n}=1" for n in range(MAX_METRICS + 1)),
        "JSON " + json.dumps({"named_metrics": {f"m{n}": 1 for n in range(MAX_METRICS + 1)}}),
        "TEXT a=1" + " " * MAX_HEADER_BYTES,
        "PROTO a=x",
    ],
)
def test_what_cannot_be_read_is_an_error(value: str) -> None:
    """A header without one readable metric is refused with a reason that quotes none of it."""
    with pytest.raises(TelemetryError) as caught:
        parse_header(value, WIRE)
    assert "report" in str(caught.value)


def test_the_bound_counts_metrics() -> None:
    """As many metrics as are allowed are read."""
    load = parse_header("TEXT " + ",".join(f"m{n}=1" for n in range(MAX_METRICS)), WIRE)
    assert len(load.metrics) == MAX_METRICS


def test_a_long_binary_header_is_not_decoded() -> None:
    """The binary header has the same bound."""
    with pytest.raises(TelemetryError, match="longer"):
        parse_binary_header("A" * (MAX_HEADER_BYTES + 1), WIRE)


NAMES = st.text("abcxyz_.", min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.floats(0, 1e6), min_size=1, max_size=20))
def test_three_encodings_of_one_report_agree(named: dict[str, float]) -> None:
    """Whatever a report holds, text, JSON and the message say the same of it."""
    message = WIRE.report()
    for name, value in named.items():
        message.named_metrics[name] = value
    binary = base64.b64encode(message.SerializeToString()).decode()
    text = ",".join(f"named_metrics.{name}={value!r}" for name, value in named.items())
    loads = [
        parse_header(value, WIRE)
        for value in (
            f"BIN {binary}",
            f"TEXT {text}",
            "JSON " + json.dumps({"namedMetrics": named}),
        )
    ]
    expected = {f"named_metrics.{name}": (value,) for name, value in named.items()}
    assert [dict(load.metrics) for load in loads] == [expected] * 3


@given(st.one_of(st.text(max_size=80), st.text('TEXTJSONBIN {}[]":=,.a1 ', max_size=80)))
def test_no_header_breaks_the_reader(value: str) -> None:
    """Any text gives a load of finite numbers, or the one error."""
    try:
        load = parse_header(value, WIRE)
    except TelemetryError:
        return
    assert isinstance(load, OrcaLoad)
    for values in load.metrics.values():
        assert all(v is None or 0 <= v < float("inf") for v in values)


@given(st.binary(max_size=200))
def test_no_message_breaks_the_reader(message: bytes) -> None:
    """Any bytes in place of a message give a load, or the one error."""
    try:
        load = parse_binary_header(base64.b64encode(message).decode(), WIRE)
    except TelemetryError:
        return
    assert load.metrics


def test_a_field_that_was_not_set_is_unknown() -> None:
    """A plain field of a message has no presence: 0 is not a measurement, while in a map it is."""
    assert dict(
        parse_binary_header(
            base64.b64encode(b"\x09" + struct.pack("<d", 0.0) + b"\x42\x03\x0a\x01a").decode(), WIRE
        ).metrics
    ) == {"named_metrics.a": (0.0,)}
