"""C-backed message classes, compiled from envoy-data-plane's dataclasses when the server starts.

The dataclasses stay the one source of truth for fields and numbers, but decoding with them costs
hundreds of microseconds a request; protobuf's C runtime needs a few. Each dataclass field says
its number, type, map and oneof, which is enough to write a descriptor.
"""

from __future__ import annotations

import dataclasses
import graphlib
import sys
import typing
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import betterproto2
from google.protobuf import (  # noqa: F401  registers the well-known types in the default pool
    any_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import Message

with warnings.catch_warnings():
    # Its generated validators are of a kind that newer pydantic deprecates; nothing to do here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.service.accesslog import v3 as accesslog
    from envoy_data_plane.envoy.service.auth import v3 as auth
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
    from envoy_data_plane.message_pool import default_message_pool

_WELL_KNOWN_PACKAGE = "google.protobuf"
_ROOTS: tuple[type[betterproto2.Message], ...] = (
    auth.CheckRequest,
    auth.CheckResponse,
    accesslog.StreamAccessLogsMessage,
    accesslog.StreamAccessLogsResponse,
    ext_proc.ProcessingRequest,
)


class _Service(typing.Protocol):
    """A generated service: every method's path with its types and streaming."""

    def __mapping__(self) -> Mapping[str, typing.Any]: ...


_SERVICES: tuple[type[_Service], ...] = (
    auth.AuthorizationBase,
    accesslog.AccessLogServiceBase,
    ext_proc.ExternalProcessorBase,
)


@dataclass(frozen=True, slots=True)
class Wire:
    """The compiled message classes, the private pool they live in and the services it describes.

    Give `pool` and `services` to server reflection. File names in the pool follow the packages,
    and enum types lose the capitals of acronyms (`HttpVersion`): the dataclasses do not keep
    either. Neither is on the wire.
    """

    pool: descriptor_pool.DescriptorPool
    services: tuple[str, ...]
    check_request: type[Message]
    check_response: type[Message]
    access_logs: type[Message]
    access_logs_reply: type[Message]
    processing_request: type[Message]


def compile_messages() -> Wire:
    """Compile all messages of the services into a pool of their own.

    Raises TypeError if the descriptors do not fit together, which a new envoy-data-plane could
    cause and the first start would show.
    """
    files = _Files()
    for root in _ROOTS:
        files.add_message(root)
    services = tuple(files.add_service(base) for base in _SERVICES)
    pool = files.load()

    def message_class(root: type[betterproto2.Message]) -> type[Message]:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(_full_name(root)))

    return Wire(pool, services, *(message_class(root) for root in _ROOTS))


class _Files:
    """One descriptor file per package, growing as messages refer to each other."""

    def __init__(self) -> None:
        self._files: dict[str, FileDescriptorProto] = {}
        self._imports: dict[str, set[str]] = {}
        self._messages: dict[str, DescriptorProto] = {}
        self._enums: set[type] = set()

    def add_message(self, cls: type[betterproto2.Message]) -> DescriptorProto:
        """Describe `cls`, what encloses it and everything it refers to, once each."""
        name = _full_name(cls)
        if name in self._messages:
            return self._messages[name]
        package = _package(cls)
        parent, _, simple = name.rpartition(".")
        if parent == package:
            proto = self._file(package).message_type.add(name=simple)
        else:
            outer = default_message_pool.url_to_type[f"type.googleapis.com/{parent}"]
            proto = self.add_message(outer).nested_type.add(name=simple)
        self._messages[name] = proto
        hints = typing.get_type_hints(cls, vars(sys.modules[cls.__module__]))
        for field in dataclasses.fields(typing.cast(typing.Any, cls)):
            self._add_field(proto, package, field, hints[field.name])
        return proto

    def add_service(self, base: type[_Service]) -> str:
        """Describe the methods of a generated service and give its full name."""
        handlers = base().__mapping__()
        full_name = next(iter(handlers)).split("/")[1]
        package, _, simple = full_name.rpartition(".")
        service = self._file(package).service.add(name=simple)
        for path, handler in handlers.items():
            service.method.add(
                name=path.split("/")[2],
                input_type=f".{self._refer(handler.request_type, package)}",
                output_type=f".{self._refer(handler.reply_type, package)}",
                client_streaming=handler.cardinality.client_streaming,
                server_streaming=handler.cardinality.server_streaming,
            )
        return full_name

    def load(self) -> descriptor_pool.DescriptorPool:
        """A private pool with every file, each after those it imports."""
        pool = descriptor_pool.DescriptorPool()
        for name in graphlib.TopologicalSorter(self._imports).static_order():
            file = self._files.get(name)
            if file is None:
                well_known = descriptor_pool.Default().FindFileByName(name)
                pool.AddSerializedFile(well_known.serialized_pb)
            else:
                file.dependency.extend(sorted(self._imports[name]))
                pool.AddSerializedFile(file.SerializeToString())
        return pool

    def _file(self, package: str) -> FileDescriptorProto:
        name = _file_name(package)
        if name not in self._files:
            self._files[name] = FileDescriptorProto(name=name, package=package, syntax="proto3")
            self._imports[name] = set()
        return self._files[name]

    def _add_field(
        self,
        proto: DescriptorProto,
        package: str,
        field: dataclasses.Field[typing.Any],
        hint: object,
    ) -> None:
        meta: betterproto2.FieldMetadata = field.metadata["betterproto"]
        described = proto.field.add(
            name=field.name,
            number=meta.number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
        if meta.map_meta:
            self._describe_map(proto, package, described, meta.map_meta, hint)
            return
        if meta.repeated:
            described.label = FieldDescriptorProto.LABEL_REPEATED
        self._describe_type(described, package, meta, hint, position=0)
        if meta.group:
            described.oneof_index = _oneof_index(proto, meta.group)
        elif meta.optional and meta.proto_type != betterproto2.TYPE_MESSAGE:
            # Presence of a scalar outside a oneof would need a synthetic oneof; none has it today.
            raise TypeError(f"{proto.name}.{field.name}: explicit presence is not supported")

    def _describe_map(
        self,
        proto: DescriptorProto,
        package: str,
        described: FieldDescriptorProto,
        metas: tuple[betterproto2.FieldMetadata, betterproto2.FieldMetadata],
        hint: object,
    ) -> None:
        entry = proto.nested_type.add(
            name="".join(part.capitalize() for part in described.name.split("_")) + "Entry"
        )
        entry.options.map_entry = True
        for position, (name, meta) in enumerate(zip(("key", "value"), metas, strict=True)):
            member = entry.field.add(
                name=name, number=meta.number, label=FieldDescriptorProto.LABEL_OPTIONAL
            )
            self._describe_type(member, package, meta, hint, position)
        described.label = FieldDescriptorProto.LABEL_REPEATED
        described.type = FieldDescriptorProto.TYPE_MESSAGE
        # A relative name: it resolves inside the enclosing message.
        described.type_name = entry.name

    def _describe_type(
        self,
        described: FieldDescriptorProto,
        package: str,
        meta: betterproto2.FieldMetadata,
        hint: object,
        position: int,
    ) -> None:
        described.type = FieldDescriptorProto.Type.Value(f"TYPE_{meta.proto_type.upper()}")
        if meta.proto_type not in {betterproto2.TYPE_MESSAGE, betterproto2.TYPE_ENUM}:
            return
        # `X | None` and `list[X]` hold X first, `dict[K, X]` second; a bare X has no arguments.
        arguments = typing.get_args(hint)
        target = meta.unwrap() if meta.unwrap else arguments[position] if arguments else hint
        described.type_name = f".{self._refer(target, package)}"

    def _refer(self, target: typing.Any, package: str) -> str:
        """The full name of a message or enum class, described and imported where needed."""
        home = _package(target)
        if issubclass(target, betterproto2.Message):
            name = _full_name(target)
            if home == _WELL_KNOWN_PACKAGE:
                # protobuf brings these itself, with the conveniences tied to their names.
                file = descriptor_pool.Default().FindFileContainingSymbol(name).name
                self._imports[_file_name(package)].add(file)
                self._imports.setdefault(file, set())
                return name
            self.add_message(target)
        else:
            name = self._add_enum(target, home)
        if home != package:
            self._imports[_file_name(package)].add(_file_name(home))
        return name

    def _add_enum(self, cls: type[betterproto2.Enum], package: str) -> str:
        outer = _enclosing_message(cls)
        simple = cls.__name__.removeprefix(outer.__name__) if outer else cls.__name__
        name = f"{_full_name(outer) if outer else package}.{simple}"
        if cls in self._enums:
            return name
        self._enums.add(cls)
        container = self.add_message(outer) if outer else self._file(package)
        container.enum_type.append(_enum(cls, simple))
        return name


def _enum(cls: type[betterproto2.Enum], name: str) -> EnumDescriptorProto:
    proto = EnumDescriptorProto(name=name)
    members: Iterable[betterproto2.Enum] = cls.__members__.values()
    # proto3 requires the zero first.
    for member in sorted(members, key=lambda member: member.value != 0):
        proto.value.add(name=member.proto_name or member.name, number=member.value)
    return proto


def _enclosing_message(cls: type[betterproto2.Enum]) -> type[betterproto2.Message] | None:
    """The message an enum is declared in: its flattened name starts with the message's."""
    module = vars(sys.modules[cls.__module__])
    for length in range(len(cls.__name__) - 1, 0, -1):
        candidate = module.get(cls.__name__[:length])
        if candidate is not None and candidate in default_message_pool.type_to_url:
            return typing.cast(type[betterproto2.Message], candidate)
    return None


def _oneof_index(proto: DescriptorProto, group: str) -> int:
    names = [oneof.name for oneof in proto.oneof_decl]
    if group not in names:
        proto.oneof_decl.add(name=group)
        return len(names)
    return names.index(group)


def _full_name(cls: type[betterproto2.Message]) -> str:
    return default_message_pool.type_to_url[cls].rpartition("/")[2]


def _package(cls: type) -> str:
    """The proto package is the module's path below the distribution."""
    return cls.__module__.removeprefix("envoy_data_plane.")


def _file_name(package: str) -> str:
    return f"{package.replace('.', '/')}.proto"
