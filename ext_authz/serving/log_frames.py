"""Access-log messages, taken apart into entries that nobody has decoded yet.

One message may hold thousands of entries. Decoded whole it would hold up the event loop for a
tenth of a second; taken apart it costs a copy, and the entries are decoded a few at a time, which
is also cheaper: what was decoded is not kept until the last one is read.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message

_PACKAGE = "ext_authz"


def compile_frames(access_logs: type[Message]) -> type[Message]:
    """A class that reads a StreamAccessLogsMessage with its `http_logs.log_entry` as bytes.

    On the wire a message inside another one and a field of bytes are the same. `access_logs` is
    the real message's class, which knows the numbers.
    """
    logs, entry = _fields(access_logs)
    file = FileDescriptorProto(name="log_frames.proto", package=_PACKAGE, syntax="proto3")
    frames = file.message_type.add(name="Frames")
    frames.field.add(
        name=entry.name,
        number=entry.number,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_BYTES,
    )
    message = file.message_type.add(name="Message")
    message.field.add(
        name=logs.name,
        number=logs.number,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.Frames",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Message"))


def entry_class(access_logs: type[Message]) -> type[Message]:
    """The class of one entry."""
    _, entry = _fields(access_logs)
    return message_factory.GetMessageClass(entry.message_type)


def _fields(access_logs: type[Message]) -> tuple[Any, Any]:
    """The descriptors of `http_logs`, and of `log_entry` in it."""
    logs: Any = access_logs.DESCRIPTOR.fields_by_name["http_logs"]
    return logs, logs.message_type.fields_by_name["log_entry"]
