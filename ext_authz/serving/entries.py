"""What the access log tells of a finished or running request. See `Codec.decode_entry`."""

from __future__ import annotations

from typing import Any

from ext_authz.model import value

_LOAD_HEADER = "endpoint-load-metrics"
_METADATA_NAMESPACE = "envoy.filters.http.ext_authz"
# envoy.data.accesslog.v3.AccessLogType
_NOT_SET, _DOWNSTREAM_PERIODIC, _DOWNSTREAM_END = 0, 5, 6
_CLIENT_LEFT_DETAILS = frozenset({"downstream_remote_disconnect", "http2.remote_reset"})
# Who closed the request because of the time: response_code_details of Envoy.
_TIMED_OUT_DETAILS = frozenset(
    {
        "upstream_response_timeout",
        "upstream_per_try_timeout",
        "upstream_max_stream_duration_reached",
        "max_duration_timeout",
        "request_overall_timeout",
        "stream_idle_timeout",
    }
)
_GRPC_STATUS = "grpc-status"
# google.rpc.Code
_DEADLINE_EXCEEDED = 4
_STATUS_DIGITS = 4
_REFUSED_DETAILS = frozenset({"ext_authz_denied", "local_rate_limited", "request_rate_limited"})


@value
class AccessLogEntry:
    """One entry of a request that carries a decision's id, or that ended without our answer.

    In the second case `decision_id` is empty and Envoy's `request_id` is all there is to join by.

    `final` entries end the request; `periodic` ones only show that it still runs. `status` is
    the HTTP status the client got, 0 if none; `grpc_status` that of a gRPC answer, from its
    trailers. `duration_s` is from the first byte in to the last byte out, 0 where the log tells no
    times; `sent_after_s` from the first byte in until the first was sent to a server, None if none
    was. `timed_out`: Envoy ended it for the time it took, or the server because the client's
    deadline was over. `upstream` is host:port, an IPv6 host in brackets; None if no server was
    reached. `load_report` is what that server said of its load in a header or trailer (ORCA),
    unread, and `report_age_s` how long before the end of the request that was.
    """

    decision_id: str
    status: int
    final: bool
    periodic: bool
    duration_s: float
    upstream: str | None
    client_left: bool
    upstream_reset: bool
    response_bytes: int
    request_id: str = ""
    load_report: str | None = None
    report_age_s: float = 0.0
    timed_out: bool = False
    grpc_status: int | None = None
    sent_after_s: float | None = None


def read_entry(entry: Any) -> AccessLogEntry | None:
    """Read one decoded HTTPAccessLogEntry; None if it can have no booking behind it.

    Fields are read one by one: rendering whole entries fails on messages of unknown types.
    """
    common = entry.common_properties
    decision_id = _decision_id(common.metadata.filter_metadata)
    if not decision_id:
        return _read_unanswered(entry)
    kind = common.access_log_type
    response = entry.response
    client_left, upstream_reset, timed_out = _broken_off(common)
    report, report_age_s = _load_report(common, response)
    grpc_status = _grpc_status(response)
    details = response.response_code_details
    return AccessLogEntry(
        decision_id=decision_id,
        status=response.response_code.value,
        # Before Envoy named the types, only this flag told an entry of a running request.
        final=kind == _DOWNSTREAM_END or (kind == _NOT_SET and not common.intermediate_log_entry),
        periodic=kind == _DOWNSTREAM_PERIODIC
        or (kind == _NOT_SET and common.intermediate_log_entry),
        duration_s=_duration_s(common),
        upstream=_address(common.upstream_remote_address),
        client_left=client_left or details in _CLIENT_LEFT_DETAILS,
        upstream_reset=upstream_reset,
        response_bytes=response.response_body_bytes,
        load_report=report,
        report_age_s=report_age_s,
        timed_out=timed_out or details in _TIMED_OUT_DETAILS or grpc_status == _DEADLINE_EXCEEDED,
        grpc_status=grpc_status,
        sent_after_s=_sent_after_s(common),
    )


def _read_unanswered(entry: Any) -> AccessLogEntry | None:
    """The end of a request whose Check got no answer in time, or none that its client waited
    for: an error, a client that left, or whatever became of what the failure mode let pass.
    Refused requests were answered, or never asked about."""
    common = entry.common_properties
    response = entry.response
    details = response.response_code_details
    if common.access_log_type not in {_NOT_SET, _DOWNSTREAM_END} or common.intermediate_log_entry:
        return None
    request_id = entry.request.request_id
    if not request_id or details in _REFUSED_DETAILS:
        return None
    client_left, _, _ = _broken_off(common)
    return AccessLogEntry(
        decision_id="",
        status=response.response_code.value,
        final=True,
        periodic=False,
        duration_s=_duration_s(common),
        upstream=_address(common.upstream_remote_address),
        client_left=client_left or details in _CLIENT_LEFT_DETAILS,
        upstream_reset=False,
        response_bytes=response.response_body_bytes,
        request_id=request_id,
    )


def _load_report(common: Any, response: Any) -> tuple[str | None, float]:
    """The report, and how long before the end it was made."""
    # Streamed responses can tell what holds now only when they end, so trailers come first.
    parts = ((True, response.response_trailers), (False, response.response_headers))
    for at_end, fields in parts:
        if not fields:
            continue
        text = fields.get(_LOAD_HEADER)
        binary = None if text else fields.get(f"{_LOAD_HEADER}-bin")
        if text or binary:
            age_s = 0.0 if at_end else _since_answer_s(common)
            return str(text) if text else f"BIN {binary}", age_s
    return None, 0.0


def _since_answer_s(common: Any) -> float:
    """From the first byte that the server answered to the end."""
    if not common.HasField("time_to_first_upstream_rx_byte"):
        return 0.0
    first = common.time_to_first_upstream_rx_byte
    return max(0.0, _duration_s(common) - float(first.seconds + first.nanos / 1e9))


def _grpc_status(response: Any) -> int | None:
    """The status of a gRPC answer; one that fails at once has it among its headers."""
    for fields in (response.response_trailers, response.response_headers):
        text = fields.get(_GRPC_STATUS) if fields else None
        if text and text.isascii() and text.isdigit() and len(text) <= _STATUS_DIGITS:
            return int(text)
    return None


def _sent_after_s(common: Any) -> float | None:
    if not common.HasField("time_to_first_upstream_tx_byte"):
        return None
    first = common.time_to_first_upstream_tx_byte
    return max(0.0, float(first.seconds + first.nanos / 1e9))


def _broken_off(common: Any) -> tuple[bool, bool, bool]:
    """Whether the flags say so of the client, of the server, and of the time."""
    if not common.HasField("response_flags"):
        return False, False, False
    flags = common.response_flags
    client = flags.downstream_connection_termination or flags.downstream_remote_reset
    server = (
        flags.upstream_remote_reset
        or flags.upstream_connection_termination
        or flags.upstream_connection_failure
    )
    time = (
        flags.upstream_request_timeout
        or flags.stream_idle_timeout
        or flags.upstream_max_stream_duration_reached
        or flags.duration_timeout
    )
    return client, server, time


def _decision_id(filter_metadata: Any) -> str:
    # Not by index: that adds to a protobuf map what is missing.
    said = filter_metadata.get(_METADATA_NAMESPACE)
    decision_id = None if said is None else said.fields.get("decision_id")
    return "" if decision_id is None else str(decision_id.string_value)


def _duration_s(common: Any) -> float:
    duration = (
        common.duration if common.HasField("duration") else common.time_to_last_downstream_tx_byte
    )
    return max(0.0, float(duration.seconds + duration.nanos / 1e9))


def _address(address: Any) -> str | None:
    socket = address.socket_address
    host = socket.address
    if not host:
        return None
    return f"[{host}]:{socket.port_value}" if ":" in host else f"{host}:{socket.port_value}"
