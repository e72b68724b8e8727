"""The C-backed messages mean what the dataclasses mean, in both directions."""

from __future__ import annotations

import dataclasses
import datetime
import warnings
from typing import Any

import betterproto2
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ext_authz.serving.wire import compile_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.data.accesslog import v3 as accesslog_data
    from envoy_data_plane.envoy.service.accesslog import v3 as accesslog
    from envoy_data_plane.envoy.service.auth import v3 as auth
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WIRE = compile_messages()
CLASSES: dict[type[betterproto2.Message], type[Message]] = {
    auth.CheckRequest: WIRE.check_request,
    auth.CheckResponse: WIRE.check_response,
    accesslog.StreamAccessLogsMessage: WIRE.access_logs,
    accesslog.StreamAccessLogsResponse: WIRE.access_logs_reply,
    ext_proc.ProcessingRequest: WIRE.processing_request,
}
MOST_FIELDS = 5
text = st.text(max_size=8)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": text,
    "bytes": st.binary(max_size=8),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "double": st.floats(allow_nan=False),
}
UNWRAPPED: dict[str, st.SearchStrategy[Any]] = {
    "Timestamp": st.datetimes(
        min_value=datetime.datetime(1970, 1, 1),  # noqa: DTZ001  hypothesis adds the zone
        timezones=st.just(datetime.UTC),
    ),
    # Not negative: the dataclasses themselves misread those with a fraction of a second.
    "Duration": st.timedeltas(datetime.timedelta(), datetime.timedelta(days=9)),
    "BoolValue": st.booleans(),
    "UInt32Value": SCALARS["uint32"],
}


def values(meta: Any, cls: type, depth: int) -> st.SearchStrategy[Any]:
    """Values of one field that is neither a list nor a map."""
    if meta.unwrap:
        return UNWRAPPED[meta.unwrap().__name__]
    if meta.proto_type == "message":
        return messages(cls, depth - 1)
    if meta.proto_type == "enum":
        return st.sampled_from(list(cls))  # type: ignore[call-overload]
    return SCALARS[meta.proto_type]


def of_field(cls: Any, name: str, meta: Any, depth: int) -> st.SearchStrategy[Any]:
    """Values of any field of the dataclass `cls`."""
    if meta.map_meta:
        value_class = cls._betterproto.cls_by_field[f"{name}.value"]
        return st.dictionaries(text, values(meta.map_meta[1], value_class, depth), max_size=3)
    one = values(meta, cls._betterproto.cls_by_field[name], depth)
    return st.lists(one, max_size=3) if meta.repeated else one


@st.composite
def messages(draw: st.DrawFn, cls: Any, depth: int) -> Any:
    """A dataclass with some of its fields set, at most one of each oneof."""
    metas = {field.name: field.metadata["betterproto"] for field in dataclasses.fields(cls)}

    def fits(meta: Any) -> bool:
        kinds = [meta.map_meta[1]] if meta.map_meta else [meta]
        return depth > 0 or all(kind.proto_type != "message" or kind.unwrap for kind in kinds)

    names = sorted(name for name, meta in metas.items() if fits(meta))
    if not names:
        return cls()
    chosen = draw(st.lists(st.sampled_from(names), max_size=MOST_FIELDS, unique=True))
    content: dict[str, Any] = {}
    groups: set[str] = set()
    for name in chosen:
        meta = metas[name]
        if meta.group in groups:
            continue
        if meta.group:
            groups.add(meta.group)
        content[name] = draw(of_field(cls, name, meta, depth))
    return cls(**content)


def check_both_ways(message: Any) -> None:
    cls = type(message)
    compiled = CLASSES[cls]
    seen = compiled.FromString(bytes(message))
    canonical = seen.SerializeToString(deterministic=True)
    assert cls.parse(canonical) == message
    again = compiled.FromString(bytes(cls.parse(canonical)))
    assert again == seen
    assert again.SerializeToString(deterministic=True) == canonical


generous = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@generous
@given(messages(auth.CheckRequest, 6))
def test_check_requests_survive_both_ways(message: auth.CheckRequest) -> None:
    """Any CheckRequest is the same in the dataclass and in the compiled class."""
    check_both_ways(message)


@generous
@given(messages(auth.AttributeContextHttpRequest, 3))
def test_http_requests_survive_both_ways(http: auth.AttributeContextHttpRequest) -> None:
    """The part of a CheckRequest that is read most is covered densely."""
    attributes = auth.AttributeContext(request=auth.AttributeContextRequest(http=http))
    check_both_ways(auth.CheckRequest(attributes=attributes))


@generous
@given(messages(auth.CheckResponse, 5))
def test_check_responses_survive_both_ways(message: auth.CheckResponse) -> None:
    """Any CheckResponse is the same in the dataclass and in the compiled class."""
    check_both_ways(message)


@generous
@given(st.lists(messages(accesslog_data.HttpAccessLogEntry, 5), max_size=2))
def test_access_logs_survive_both_ways(entries: list[accesslog_data.HttpAccessLogEntry]) -> None:
    """Any batch of HTTP access-log entries is the same in both."""
    logs = accesslog.StreamAccessLogsMessageHttpAccessLogEntries(log_entry=entries)
    check_both_ways(accesslog.StreamAccessLogsMessage(http_logs=logs))


@generous
@given(messages(accesslog.StreamAccessLogsMessage, 5))
def test_access_log_messages_survive_both_ways(message: accesslog.StreamAccessLogsMessage) -> None:
    """The identifier and TCP entries, too, are the same in both."""
    check_both_ways(message)


@given(st.binary(max_size=64))
def test_unknown_fields_are_kept(payload: bytes) -> None:
    """A field of a later Envoy is carried along by both, at the end."""
    unknown = b"\xfa\x7f" + bytes([len(payload)]) + payload  # field 2047, length-delimited
    known = bytes(
        auth.CheckRequest(attributes=auth.AttributeContext(context_extensions={"a": "b"}))
    )
    compiled = WIRE.check_request.FromString(known + unknown)
    assert compiled.SerializeToString() == known + unknown
    assert bytes(auth.CheckRequest.parse(compiled.SerializeToString())) == known + unknown


@given(st.binary(max_size=200))
def test_junk_is_refused_or_read_never_worse(data: bytes) -> None:
    """Bytes that are no message raise DecodeError and nothing else."""
    for compiled in CLASSES.values():
        try:
            message = compiled.FromString(data)
        except DecodeError:
            continue
        assert compiled.FromString(message.SerializeToString()) == message
