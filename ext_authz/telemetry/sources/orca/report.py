"""Understands ORCA load reports: what a model server says of itself in a response header.

Three encodings are in use: `TEXT name=value, ...` (with `:` instead of `=` from older servers),
`JSON {...}` and `BIN` base64 of an `xds.data.orca.v3.OrcaLoadReport`. Servers with several
engines repeat a name once for each. Everything is bounded, and what cannot be used is counted.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, isnan
from types import MappingProxyType

import jiter

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.pages.exposition import DropReason, number
from ext_authz.telemetry.pages.mappings import Combine
from ext_authz.telemetry.sources.orca.wire import OrcaWire

KIND = "orca"
MAX_HEADER_BYTES = 8192
MAX_METRICS = 256
"""Metrics of one report; a report with more is refused."""

MAX_NAME_CHARACTERS = 128
_GROUPS = ("named_metrics", "utilization", "request_cost")
_ROUNDING = 1.01


@dataclass(frozen=True, slots=True)
class _Field:
    """A number of a sample: the metrics that tell it, and how those of several engines combine."""

    name: str
    metrics: tuple[str, ...]
    combine: Combine = Combine.SUM
    upper: float | None = None


_FIELDS = (
    _Field("running", ("named_metrics.num_requests_running",)),
    _Field("waiting", ("named_metrics.num_requests_waiting",)),
    _Field(
        "kv_usage_ratio",
        (
            "named_metrics.kv_cache_usage_perc",
            "named_metrics.gpu_cache_usage_perc",
            "named_metrics.kv_cache_utilization",
        ),
        Combine.MAX,
        upper=1.0,
    ),
    _Field("kv_capacity_tokens", ("named_metrics.max_token_capacity",)),
    _Field("requests_per_s", ("rps_fractional", "rps")),
)


@dataclass(frozen=True, slots=True)
class OrcaLoad:
    """One report: the values of each metric by its full name (`named_metrics.x`,
    `cpu_utilization`), in the order they came in; None is a value that cannot be used.
    `dropped` counts those by reason."""

    metrics: Mapping[str, tuple[float | None, ...]]
    dropped: Mapping[str, int]

    def report(self, endpoint: str, at_s: float) -> Report:
        """What this says of `endpoint` at `at_s` (monotonic seconds): no sample where it says
        nothing of load or memory."""
        dropped = Counter(self.dropped)
        values = {field.name: self._value(field, dropped) for field in _FIELDS}
        if all(value is None for value in values.values()):
            return Report(dropped=MappingProxyType(dict(dropped)))
        sample = EndpointSample(
            endpoint=endpoint,
            at_s=at_s,
            source=KIND,
            running=values["running"],
            waiting=values["waiting"],
            kv_usage_ratio=values["kv_usage_ratio"],
            kv_capacity_tokens=values["kv_capacity_tokens"],
            requests_per_s=values["requests_per_s"],
        )
        return Report(endpoints=(sample,), dropped=MappingProxyType(dict(dropped)))

    def _value(self, field: _Field, dropped: Counter[str]) -> float | None:
        for name in field.metrics:
            values = self.metrics.get(name, ())
            known = [value for value in values if value is not None]
            # Leaving an engine's unusable value out would count it as empty.
            if not known or len(known) < len(values):
                continue
            value = sum(known) if field.combine is Combine.SUM else max(known)
            if not isfinite(value) or (field.upper and value > field.upper * _ROUNDING):
                dropped[DropReason.OUT_OF_RANGE] += 1
                continue
            return value if field.upper is None else min(value, field.upper)
        return None


def parse_header(value: str, wire: OrcaWire) -> OrcaLoad:
    """Read the value of a response header `endpoint-load-metrics`.

    A value without the name of its encoding is JSON if it looks like it, else text. Raises
    TelemetryError if it is too long, holds too many metrics, or cannot be read at all.
    """
    if len(value) > MAX_HEADER_BYTES:
        raise TelemetryError(f"load report is longer than {MAX_HEADER_BYTES} bytes")
    encoding, _, rest = value.strip().partition(" ")
    match encoding.upper():
        case "TEXT":
            return _load(_from_text(rest))
        case "JSON":
            return _load(_from_json(rest))
        case "BIN":
            return parse_binary_header(rest, wire)
    return _load(_from_json(value) if value.lstrip().startswith("{") else _from_text(value))


def parse_binary_header(value: str, wire: OrcaWire) -> OrcaLoad:
    """Read base64 of a message, as in a header `endpoint-load-metrics-bin`. Raises
    TelemetryError."""
    if len(value) > MAX_HEADER_BYTES:
        raise TelemetryError(f"load report is longer than {MAX_HEADER_BYTES} bytes")
    text = value.strip()
    try:
        # gRPC leaves the padding of binary headers out.
        message = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise TelemetryError("load report is not the base64 it should be") from error
    return parse_message(message, wire)


def parse_message(message: bytes, wire: OrcaWire) -> OrcaLoad:
    """Read a serialised OrcaLoadReport. A plain field of value 0 is one that was not set. Raises
    TelemetryError."""
    return _load(wire.metrics(message))


def _load(pairs: Iterable[tuple[str, float | None]]) -> OrcaLoad:
    metrics: dict[str, tuple[float | None, ...]] = {}
    dropped: Counter[str] = Counter()
    count = 0
    for name, value in pairs:
        count += 1
        if count > MAX_METRICS:
            raise TelemetryError(f"load report has more than {MAX_METRICS} metrics")
        if not name or len(name) > MAX_NAME_CHARACTERS:
            dropped[DropReason.MALFORMED] += 1
            continue
        usable, reason = _usable(value)
        if reason is not None:
            dropped[reason] += 1
        metrics[name] = (*metrics.get(name, ()), usable)
    if not any(value is not None for values in metrics.values() for value in values):
        raise TelemetryError("load report holds no readable metric")
    return OrcaLoad(MappingProxyType(metrics), MappingProxyType(dict(dropped)))


def _usable(value: float | None) -> tuple[float | None, DropReason | None]:
    if value is None:
        return None, DropReason.MALFORMED
    if isnan(value):
        return None, DropReason.NAN
    if not isfinite(value):
        return None, DropReason.INFINITE
    return (value, None) if value >= 0 else (None, DropReason.OUT_OF_RANGE)


def _from_text(text: str) -> Iterator[tuple[str, float | None]]:
    for part in text.split(","):
        item = part.strip()
        # Proxies join a header that was sent twice.
        if item[:5].upper() == "TEXT ":
            item = item[5:].lstrip()
        if not item:
            continue
        mark = min((i for i in (item.find("="), item.find(":")) if i >= 0), default=len(item))
        yield item[:mark].strip(), number(item[mark + 1 :].strip())


def _from_json(text: str) -> Iterator[tuple[str, float | None]]:
    try:
        tree = jiter.from_json(text.encode("utf-8", "replace"))
    except ValueError as error:
        raise TelemetryError("load report is not the JSON it should be") from error
    if not isinstance(tree, dict):
        raise TelemetryError("load report is not a JSON object")
    for key, value in tree.items():
        name = _snake(key)
        if name in _GROUPS and isinstance(value, dict):
            for inner, number_ in value.items():
                yield f"{name}.{inner}", _json_number(number_)
        else:
            yield name, _json_number(value)


def _json_number(value: object) -> float | None:
    # JSON of a protobuf message spells what JSON has no numbers for, and all 64-bit integers.
    if isinstance(value, str):
        return number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _snake(name: str) -> str:
    """`namedMetrics`, as JSON of protobuf messages has it, is `named_metrics`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name[:MAX_NAME_CHARACTERS])
