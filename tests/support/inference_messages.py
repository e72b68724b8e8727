"""KServe's inference request as a real protobuf class, to write what the reader reads."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "float": _FIELD.TYPE_FLOAT,
    "double": _FIELD.TYPE_DOUBLE,
}
# Message: field: (number, type, repeated).
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "Parameter": {
        "bool_param": (1, "bool", False),
        "int64_param": (2, "int64", False),
        "string_param": (3, "string", False),
        "double_param": (4, "double", False),
        "uint64_param": (5, "uint64", False),
    },
    # What a map is on the wire.
    "Entry": {"key": (1, "string", False), "value": (2, "Parameter", False)},
    "Contents": {
        "bool_contents": (1, "bool", True),
        "int_contents": (2, "int32", True),
        "int64_contents": (3, "int64", True),
        "uint_contents": (4, "uint32", True),
        "uint64_contents": (5, "uint64", True),
        "fp32_contents": (6, "float", True),
        "fp64_contents": (7, "double", True),
        "bytes_contents": (8, "bytes", True),
    },
    "Tensor": {
        "name": (1, "string", False),
        "datatype": (2, "string", False),
        "shape": (3, "int64", True),
        "parameters": (4, "Entry", True),
        "contents": (5, "Contents", False),
    },
    "Request": {
        "model_name": (1, "string", False),
        "model_version": (2, "string", False),
        "id": (3, "string", False),
        "parameters": (4, "Entry", True),
        "inputs": (5, "Tensor", True),
        "outputs": (6, "Tensor", True),
        "raw_input_contents": (7, "bytes", True),
    },
}


@cache
def classes() -> dict[str, Any]:
    """The message classes by name, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if kind in _TYPES:
                added.type = _TYPES[kind]
            else:
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in _MESSAGES
    }


def request(**fields: Any) -> bytes:
    """An inference request; messages are given as mappings."""
    return bytes(classes()["Request"](**fields).SerializeToString())


def frame(message: bytes, flag: int = 0) -> bytes:
    """`message` as it goes over the wire."""
    return bytes([flag]) + len(message).to_bytes(4, "big") + message
