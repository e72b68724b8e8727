"""Access-log messages, built with envoy-data-plane's dataclasses and read with the codec.

Some generated fields are deprecated and say so whenever they are set: users ignore that warning.
"""

from __future__ import annotations

import datetime
import warnings
from typing import Any

from ext_authz.serving.codec import Codec
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.wire import compile_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.data.accesslog import v3 as data
    from envoy_data_plane.envoy.service.accesslog import v3 as accesslog
    from envoy_data_plane.google import protobuf

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


def make_entry(
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


def read(data: bytes) -> list[AccessLogEntry | None]:
    codec = Codec(WIRE)
    return [codec.decode_entry(one) for one in codec.split_access_log(data)]


def read_one(**changes: Any) -> AccessLogEntry:
    (one,) = read(message(make_entry(**changes)))
    assert one is not None
    return one
