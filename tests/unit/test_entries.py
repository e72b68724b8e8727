"""What entries of the access log say of how requests ended."""

from __future__ import annotations

import datetime

import pytest

from tests.support.access_log_entries import address, core, make_entry, message, read, read_one

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LEFT, RESET, TIMED_OUT = (True, False, False), (False, True, False), (False, False, True)


@pytest.mark.parametrize(
    ("flags", "details", "expected"),
    [
        ({}, "via_upstream", (False, False, False)),
        ({"downstream_connection_termination": True}, "", LEFT),
        ({"downstream_remote_reset": True}, "", LEFT),
        ({}, "downstream_remote_disconnect", LEFT),
        ({"upstream_remote_reset": True}, "", RESET),
        ({"upstream_connection_termination": True}, "", RESET),
        ({"upstream_connection_failure": True}, "", RESET),
        ({"upstream_request_timeout": True}, "", TIMED_OUT),
        ({"stream_idle_timeout": True}, "", TIMED_OUT),
        ({"upstream_max_stream_duration_reached": True}, "", TIMED_OUT),
        ({"duration_timeout": True}, "", TIMED_OUT),
        ({}, "upstream_response_timeout", TIMED_OUT),
        ({}, "stream_idle_timeout", TIMED_OUT),
        ({}, "max_duration_timeout", TIMED_OUT),
        ({"upstream_overflow": True, "rate_limited": True}, "", (False, False, False)),
    ],
)
def test_how_it_ended(
    flags: dict[str, bool], details: str, expected: tuple[bool, bool, bool]
) -> None:
    """A client that left, a server that broke off and time that ran out are told apart, and from
    refusals."""
    one = read_one(flags=flags, details=details)
    assert (one.client_left, one.upstream_reset, one.timed_out) == expected


@pytest.mark.parametrize(
    ("headers", "trailers", "status", "timed_out"),
    [
        ({}, {"grpc-status": "0"}, 0, False),
        ({}, {"grpc-status": "13"}, 13, False),
        ({}, {"grpc-status": "4"}, 4, True),
        ({"grpc-status": "14"}, {}, 14, False),
        ({"grpc-status": "0"}, {"grpc-status": "8"}, 8, False),
        ({}, {"grpc-status": ""}, None, False),
        ({}, {"grpc-status": "-1"}, None, False),
        ({}, {"grpc-status": "9" * 30}, None, False),
        ({}, {"grpc-status": "\u0664"}, None, False),
        ({}, {}, None, False),
    ],
)
def test_the_status_of_a_grpc_answer(
    headers: dict[str, str], trailers: dict[str, str], status: int | None, timed_out: bool
) -> None:
    """Trailers tell it, or the headers of an answer that has nothing else; a deadline that was
    over (4) is time that ran out."""
    logged = make_entry()
    assert logged.response is not None
    logged.response.response_headers = headers
    logged.response.response_trailers = trailers
    (one,) = read(message(logged))
    assert one is not None
    assert (one.grpc_status, one.timed_out) == (status, timed_out)


def test_when_it_was_sent_on() -> None:
    """From the first byte in to the first byte to the server; unknown if none was sent."""
    sent = datetime.timedelta(seconds=2, microseconds=250_000)
    assert read_one(time_to_first_upstream_tx_byte=sent).sent_after_s == 2.25
    assert read_one().sent_after_s is None


def test_durations() -> None:
    """Without a duration the time to the last byte out counts, without both it is zero."""
    other = datetime.timedelta(seconds=3, microseconds=500_000)
    assert read_one(duration=None, time_to_last_downstream_tx_byte=other).duration_s == 3.5
    assert read_one(time_to_last_downstream_tx_byte=other).duration_s == 1.25
    assert read_one(duration=None).duration_s == 0.0
    assert read_one(duration=datetime.timedelta(seconds=-2)).duration_s == 0.0


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        (None, None),
        (address("10.0.0.1", 8000), "10.0.0.1:8000"),
        (address("::1", 8000), "[::1]:8000"),
        (core.Address(pipe=core.Pipe(path="@envoy")), None),
    ],
)
def test_upstreams(remote: core.Address | None, expected: str | None) -> None:
    """The server is host:port; a refused request has none."""
    assert read_one(upstream_remote_address=remote).upstream == expected


@pytest.mark.parametrize(
    ("headers", "trailers", "expected"),
    [
        ({"endpoint-load-metrics": "TEXT a=1"}, {}, "TEXT a=1"),
        ({"server": "x"}, {"endpoint-load-metrics": "JSON {}"}, "JSON {}"),
        ({"endpoint-load-metrics-bin": "CQAA"}, {}, "BIN CQAA"),
        ({"endpoint-load-metrics": ""}, {"endpoint-load-metrics-bin": "CQAA"}, "BIN CQAA"),
        ({"server": "x"}, {}, None),
        ({}, {}, None),
    ],
)
def test_load_reports(
    headers: dict[str, str], trailers: dict[str, str], expected: str | None
) -> None:
    """What the model server says of its load is passed on as it is, from headers or trailers."""
    logged = make_entry()
    assert logged.response is not None
    logged.response.response_headers = headers
    logged.response.response_trailers = trailers
    (one,) = read(message(logged))
    assert one is not None
    assert one.load_report == expected


@pytest.mark.parametrize(
    ("where", "first", "age_s"),
    [
        ("response_headers", datetime.timedelta(seconds=0.5), 2.0),
        ("response_headers", datetime.timedelta(seconds=9), 0.0),
        ("response_headers", None, 0.0),
        ("response_trailers", datetime.timedelta(seconds=0.5), 0.0),
    ],
)
def test_when_a_load_was_reported(
    where: str, first: datetime.timedelta | None, age_s: float
) -> None:
    """A header is as old as the answer's first byte, however long it streams; a trailer is new."""
    logged = make_entry()
    assert logged.response is not None
    assert logged.common_properties is not None
    logged.common_properties.duration = datetime.timedelta(seconds=2.5)
    logged.common_properties.time_to_first_upstream_rx_byte = first
    setattr(logged.response, where, {"endpoint-load-metrics": "TEXT a=1"})
    (one,) = read(message(logged))
    assert one is not None
    assert one.report_age_s == age_s
