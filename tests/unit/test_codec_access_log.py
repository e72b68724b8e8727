"""Access logs, as Envoy streams them, decoded."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import CodecError
from ext_authz.serving.codec import Codec
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.wire import compile_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.data.accesslog import v3 as data
    from envoy_data_plane.envoy.service.accesslog import v3 as accesslog
    from envoy_data_plane.google import protobuf

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WIRE = compile_messages()
NAMESPACE = "envoy.filters.http.ext_authz"
END = data.AccessLogType(6)
USUAL = AccessLogEntry(
    decision_id="r-1",
    status=200,
    final=True,
    periodic=False,
    duration_s=1.25,
    upstream="10.0.0.1:8000",
    client_left=False,
    upstream_reset=False,
    response_bytes=77,
)


def address(host: str, port: int) -> core.Address:
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))


def metadata(decision_id: Any, namespace: str = NAMESPACE) -> core.Metadata:
    fields = {"decision_id": decision_id, "ext_authz_duration": protobuf.Value(number_value=1.0)}
    return core.Metadata(filter_metadata={namespace: protobuf.Struct(fields=fields)})


IDENTIFIED = metadata(protobuf.Value(string_value="r-1"))


def entry(
    flags: dict[str, bool] | None = None, details: str = "via_upstream", **common: Any
) -> data.HttpAccessLogEntry:
    """The usual entry, changed as asked."""
    usual: dict[str, Any] = {
        "metadata": IDENTIFIED,
        "access_log_type": END,
        "duration": datetime.timedelta(seconds=1.25),
        "upstream_remote_address": address("10.0.0.1", 8000),
    }
    return data.HttpAccessLogEntry(
        common_properties=data.AccessLogCommon(
            **(usual | common), response_flags=data.ResponseFlags(**(flags or {}))
        ),
        response=data.HttpResponseProperties(
            response_code=200, response_code_details=details, response_body_bytes=77
        ),
    )


def message(*entries: data.HttpAccessLogEntry) -> bytes:
    logs = accesslog.StreamAccessLogsMessageHttpAccessLogEntries(log_entry=list(entries))
    return bytes(accesslog.StreamAccessLogsMessage(http_logs=logs))


def read_one(**changes: Any) -> AccessLogEntry:
    (read,) = Codec(WIRE).decode_access_log(message(entry(**changes)))
    return read


def test_a_usual_entry() -> None:
    """The end of a request tells status, duration, server and size."""
    assert read_one() == USUAL


@pytest.mark.parametrize(
    ("kind", "intermediate", "final", "periodic"),
    [
        (0, False, True, False),
        (0, True, False, True),
        (4, False, False, False),
        (5, True, False, True),
        (5, False, False, True),
        (6, False, True, False),
        (7, False, False, False),
        (9, False, False, False),
    ],
)
def test_only_the_end_is_final(kind: int, intermediate: bool, final: bool, periodic: bool) -> None:
    """Entries of running requests never settle them; the old flag counts where no type is."""
    read = read_one(access_log_type=data.AccessLogType(kind), intermediate_log_entry=intermediate)
    assert (read.final, read.periodic) == (final, periodic)


@pytest.mark.parametrize(
    ("flags", "details", "client_left", "upstream_reset"),
    [
        ({}, "via_upstream", False, False),
        ({"downstream_connection_termination": True}, "", True, False),
        ({"downstream_remote_reset": True}, "", True, False),
        ({}, "downstream_remote_disconnect", True, False),
        ({"upstream_remote_reset": True}, "", False, True),
        ({"upstream_connection_termination": True}, "", False, True),
        ({"upstream_connection_failure": True}, "", False, True),
        ({"upstream_overflow": True, "rate_limited": True}, "", False, False),
    ],
)
def test_how_it_ended(
    flags: dict[str, bool], details: str, client_left: bool, upstream_reset: bool
) -> None:
    """A client that left and a server that broke off are told apart, and from refusals."""
    read = read_one(flags=flags, details=details)
    assert (read.client_left, read.upstream_reset) == (client_left, upstream_reset)


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
        (core.Address(pipe=core.Pipe(path="/tmp/x")), None),  # noqa: S108  only a name
    ],
)
def test_upstreams(remote: core.Address | None, expected: str | None) -> None:
    """The server is host:port; a refused request has none."""
    assert read_one(upstream_remote_address=remote).upstream == expected


@pytest.mark.parametrize(
    "unidentified",
    [
        None,
        core.Metadata(),
        metadata(protobuf.Value(string_value="r-1"), namespace="other"),
        metadata(protobuf.Value(string_value="")),
        metadata(protobuf.Value(number_value=7.0)),
        core.Metadata(filter_metadata={NAMESPACE: protobuf.Struct()}),
    ],
)
def test_entries_without_an_id_are_counted(unidentified: core.Metadata | None) -> None:
    """What no decision stands behind is skipped, not guessed at, and not lost from sight."""
    codec = Codec(WIRE)
    batch = message(entry(), entry(metadata=unidentified), entry())
    assert codec.decode_access_log(batch) == (USUAL, USUAL)
    assert codec.unidentified_entries == 1
    codec.decode_access_log(batch)
    assert codec.unidentified_entries == 2


def test_an_entry_of_nothing() -> None:
    """Missing parts are read as absent."""
    common = data.AccessLogCommon(metadata=IDENTIFIED)
    (read,) = Codec(WIRE).decode_access_log(message(data.HttpAccessLogEntry(common)))
    assert read == AccessLogEntry("r-1", 0, True, False, 0.0, None, False, False, 0)


def test_filter_state_of_unknown_types_is_no_obstacle() -> None:
    """An Any that nobody here can unpack does not spoil the entry it is in."""
    unknown = protobuf.Any(type_url="type.googleapis.com/no.such.Message", value=b"\xff\xff")
    assert read_one(filter_state_objects={"shadow": unknown}) == USUAL


def test_messages_without_http_entries() -> None:
    """The first message may only identify the stream, and TCP entries are not ours."""
    codec = Codec(WIRE)
    identifier = accesslog.StreamAccessLogsMessageIdentifier(log_name="gate")
    assert codec.decode_access_log(bytes(accesslog.StreamAccessLogsMessage(identifier))) == ()
    tcp = accesslog.StreamAccessLogsMessageTcpAccessLogEntries(log_entry=[data.TcpAccessLogEntry()])
    assert codec.decode_access_log(bytes(accesslog.StreamAccessLogsMessage(tcp_logs=tcp))) == ()
    assert codec.unidentified_entries == 1


@given(st.binary(max_size=200))
def test_junk_is_a_codec_error_or_nothing(junk: bytes) -> None:
    """Nothing but CodecError ever comes out of undecodable bytes."""
    try:
        assert Codec(WIRE).decode_access_log(junk) == ()
    except CodecError:
        return


def test_undecodable() -> None:
    """A truncated message is a CodecError."""
    with pytest.raises(CodecError):
        Codec(WIRE).decode_access_log(message(entry())[:-1])


def test_the_empty_answer() -> None:
    """Envoy expects a StreamAccessLogsResponse, which has no fields."""
    assert Codec(WIRE).empty_access_log_response() == bytes(accesslog.StreamAccessLogsResponse())


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
    logged = entry()
    assert logged.response is not None
    logged.response.response_headers = headers
    logged.response.response_trailers = trailers
    (read,) = Codec(WIRE).decode_access_log(message(logged))
    assert read.load_report == expected


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
    logged = entry()
    assert logged.response is not None
    assert logged.common_properties is not None
    logged.common_properties.duration = datetime.timedelta(seconds=2.5)
    logged.common_properties.time_to_first_upstream_rx_byte = first
    setattr(logged.response, where, {"endpoint-load-metrics": "TEXT a=1"})
    (read,) = Codec(WIRE).decode_access_log(message(logged))
    assert read.report_age_s == age_s
