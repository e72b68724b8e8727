"""The messages of ORCA, `xds.data.orca.v3` and `xds.service.orca.v3`.

envoy-data-plane does not have them, and the package that does owns the name `envoy`. They are
small and final, so that their fields are written out here, in a descriptor pool of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, Final

from google.protobuf import descriptor_pool, duration_pb2, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError

from ext_authz.errors import TelemetryError

STREAM_METHOD: Final = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
_PLAIN = ("cpu_utilization", "mem_utilization", "rps_fractional", "eps", "application_utilization")
_MAPS = ("request_cost", "utilization", "named_metrics")
_REPORT_NUMBERS = {
    "cpu_utilization": 1,
    "mem_utilization": 2,
    "rps": 3,
    "request_cost": 4,
    "utilization": 5,
    "rps_fractional": 6,
    "eps": 7,
    "named_metrics": 8,
    "application_utilization": 9,
}


class OrcaWire:
    """Encodes requests for reports and decodes reports."""

    def __init__(self) -> None:
        # A pool of its own: another library in the process may bring the same messages.
        pool = descriptor_pool.DescriptorPool()
        duration = FileDescriptorProto()
        duration.ParseFromString(duration_pb2.DESCRIPTOR.serialized_pb)
        for file in (duration, _report_file(), _service_file()):
            pool.Add(file)
        self.report: Any = message_factory.GetMessageClass(
            pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport")
        )
        self.request: Any = message_factory.GetMessageClass(
            pool.FindMessageTypeByName("xds.service.orca.v3.OrcaLoadReportRequest")
        )

    def ask(self, interval_s: float) -> bytes:
        """A request for a report every `interval_s`."""
        request = self.request()
        nanos = ceil(interval_s * 1e9)
        request.report_interval.seconds, request.report_interval.nanos = divmod(nanos, 10**9)
        encoded: bytes = request.SerializeToString()
        return encoded

    def metrics(self, message: bytes) -> Iterator[tuple[str, float]]:
        """What a serialised report sets, by full name. Raises TelemetryError."""
        try:
            report = self.report.FromString(message)
        except DecodeError as error:
            raise TelemetryError("load report is not the message it should be") from error
        for name in (*_PLAIN, "rps"):
            value = float(getattr(report, name))
            if value != 0:
                yield name, value
        for name in _MAPS:
            for key, value in getattr(report, name).items():
                yield f"{name}.{key}", value


def _report_file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="xds/data/orca/v3/orca_load_report.proto",
        package="xds.data.orca.v3",
        syntax="proto3",
    )
    message = file.message_type.add(name="OrcaLoadReport")
    for name, number in _REPORT_NUMBERS.items():
        if name in _MAPS:
            _add_map(message, name, number)
        else:
            kind = (
                FieldDescriptorProto.TYPE_UINT64
                if name == "rps"
                else FieldDescriptorProto.TYPE_DOUBLE
            )
            message.field.add(
                name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL
            )
    return file


def _add_map(message: DescriptorProto, name: str, number: int) -> None:
    """A field `map<string, double>`."""
    entry = message.nested_type.add(name="".join(p.title() for p in name.split("_")) + "Entry")
    entry.options.map_entry = True
    for index, (key, kind) in enumerate(
        (
            ("key", FieldDescriptorProto.TYPE_STRING),
            ("value", FieldDescriptorProto.TYPE_DOUBLE),
        )
    ):
        entry.field.add(
            name=key, number=index + 1, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
    message.field.add(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".xds.data.orca.v3.OrcaLoadReport.{entry.name}",
    )


def _service_file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="xds/service/orca/v3/orca.proto",
        package="xds.service.orca.v3",
        syntax="proto3",
        dependency=["google/protobuf/duration.proto", "xds/data/orca/v3/orca_load_report.proto"],
    )
    message = file.message_type.add(name="OrcaLoadReportRequest")
    message.field.add(
        name="report_interval",
        number=1,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".google.protobuf.Duration",
    )
    message.field.add(
        name="request_cost_names",
        number=2,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_STRING,
    )
    return file
