"""Every field, name and service of the compiled messages is the one Envoy knows."""

from __future__ import annotations

import dataclasses
import datetime
import warnings
from typing import Any

import betterproto2
import pytest
from google.protobuf import descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import DecodeError

from ext_authz.serving.wire import compile_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane import message_pool
    from envoy_data_plane.envoy.service.accesslog import v3 as accesslog
    from envoy_data_plane.envoy.service.auth import v3 as auth
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WIRE = compile_messages()
ROOTS = (
    auth.CheckRequest,
    auth.CheckResponse,
    accesslog.StreamAccessLogsMessage,
    accesslog.StreamAccessLogsResponse,
    ext_proc.ProcessingRequest,
)


def test_repeated_strings_keep_their_order() -> None:
    """A repeated string is written one by one, repetitions included."""
    names = ["b", "a", "b"]
    response = auth.CheckResponse(ok_response=auth.OkHttpResponse(headers_to_remove=names))
    compiled: Any = WIRE.check_response.FromString(bytes(response))
    assert list(compiled.ok_response.headers_to_remove) == names
    assert compiled.SerializeToString() == bytes(response)


def test_the_services_can_be_reflected() -> None:
    """Names, methods and streaming are those Envoy calls, under their real full names."""
    check = WIRE.pool.FindServiceByName("envoy.service.auth.v3.Authorization")
    assert [method.name for method in check.methods] == ["Check"]
    assert check.methods[0].input_type.full_name == "envoy.service.auth.v3.CheckRequest"
    assert check.methods[0].output_type.full_name == "envoy.service.auth.v3.CheckResponse"
    logs = WIRE.pool.FindServiceByName("envoy.service.accesslog.v3.AccessLogService")
    assert [method.name for method in logs.methods] == ["StreamAccessLogs"]
    assert logs.methods[0].client_streaming
    assert not logs.methods[0].server_streaming
    taps = WIRE.pool.FindServiceByName("envoy.service.ext_proc.v3.ExternalProcessor")
    assert [method.name for method in taps.methods] == ["Process"]
    assert taps.methods[0].client_streaming
    assert taps.methods[0].server_streaming
    assert set(WIRE.services) == {check.full_name, logs.full_name, taps.full_name}


@pytest.mark.parametrize(
    "name",
    [
        "envoy.service.auth.v3.AttributeContext.HttpRequest",
        "envoy.service.auth.v3.AttributeContext.TLSSession",
        "envoy.service.accesslog.v3.StreamAccessLogsMessage.HTTPAccessLogEntries",
        "envoy.data.accesslog.v3.HTTPAccessLogEntry",
        "envoy.data.accesslog.v3.ResponseFlags.Unauthorized",
        "envoy.config.core.v3.HeaderValueOption",
        "google.protobuf.Struct",
        "google.rpc.Status",
    ],
)
def test_messages_have_their_real_names(name: str) -> None:
    """Nested and renamed messages are found under the names of the .proto files."""
    assert WIRE.pool.FindMessageTypeByName(name).full_name == name


def test_the_pool_is_private() -> None:
    """Compiling twice gives two worlds, and protobuf's own pool stays untouched."""
    other = compile_messages()
    assert other.pool is not WIRE.pool
    assert other.check_request is not WIRE.check_request
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("envoy.service.auth.v3.CheckRequest")


def test_deep_nesting_is_refused() -> None:
    """A Struct nested beyond the runtime's limit is an error, not a crash."""
    value = b""
    for _ in range(200):
        # Value.list_value (6) of ListValue.values (1), each length-delimited.
        inner = b"\x0a" + _varint(len(value)) + value
        value = b"\x32" + _varint(len(inner)) + inner
    entry = b"\x0a\x01k\x12" + _varint(len(value)) + value
    fields = b"\x0a" + _varint(len(entry)) + entry
    with pytest.raises(DecodeError):
        WIRE.check_response.FromString(b"\x22" + _varint(len(fields)) + fields)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


SAMPLES: dict[str, Any] = {
    "string": "x",
    "bytes": b"\xff",
    "bool": True,
    "int32": -1,
    "int64": -1,
    "uint32": 2**32 - 1,
    "uint64": 2**64 - 1,
    "double": 1.5,
    "Timestamp": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "Duration": datetime.timedelta(milliseconds=1),
    "BoolValue": True,
    "UInt32Value": 7,
}


def reachable() -> list[type[betterproto2.Message]]:
    """Every dataclass that the four roots can contain."""
    found: list[Any] = []
    waiting: list[Any] = list(ROOTS)
    while waiting:
        cls = waiting.pop()
        if cls in found:
            continue
        found.append(cls)
        kinds = cls._betterproto.cls_by_field
        for field in dataclasses.fields(cls):
            kind = kinds.get(f"{field.name}.value") or kinds[field.name]
            if isinstance(kind, type) and issubclass(kind, betterproto2.Message):
                waiting.append(kind)
    return found


def sample(cls: Any, field: Any) -> Any:
    """A value of `field` that is not its default."""
    meta = field.metadata["betterproto"]
    one = meta.map_meta[1] if meta.map_meta else meta
    kinds = cls._betterproto.cls_by_field
    kind = kinds.get(f"{field.name}.value") or kinds[field.name]
    if one.unwrap:
        value = SAMPLES[one.unwrap().__name__]
    elif one.proto_type == "message":
        value = kind()
    elif one.proto_type == "enum":
        value = list(kind)[-1]
    else:
        value = SAMPLES[one.proto_type]
    if meta.map_meta:
        return {"k": value}
    return [value, value] if meta.repeated else value


@pytest.mark.parametrize("cls", reachable(), ids=lambda cls: cls.__name__)
def test_every_field_alone_survives_both_ways(cls: Any) -> None:
    """No field of any message has a number, type or repetition other than its dataclass says."""
    name = message_pool.default_message_pool.type_to_url[cls].rpartition("/")[2]
    descriptor = WIRE.pool.FindMessageTypeByName(name)
    compiled = message_factory.GetMessageClass(descriptor)
    assert {field.number for field in descriptor.fields} == {
        field.metadata["betterproto"].number for field in dataclasses.fields(cls)
    }
    for field in dataclasses.fields(cls):
        message = cls(**{field.name: sample(cls, field)})
        seen: Any = compiled.FromString(bytes(message))
        assert not unknown_fields.UnknownFieldSet(seen)
        assert [found.name for found, _ in seen.ListFields()] == [field.name]
        assert bytes(seen.SerializeToString(deterministic=True)) == bytes(message)
        group = field.metadata["betterproto"].group
        assert group is None or seen.WhichOneof(group) == field.name
