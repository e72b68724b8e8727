"""The heartbeat of an agent that runs beside a model server: JSON, to and from samples.

PURE. Ages cross the wire, never wall clocks: each measurement says how old it was when the
heartbeat was sent, and the receiver dates it as its own now less that age. The one-way delay is
left out (it is unknown, and small beside what matters here); delay beyond the usual, a heartbeat
that waited in some buffer, is found by `feedback_intake`.

What cannot be used is never a number: a field that is absent, null, of the wrong kind, not finite
or out of range is unknown, and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import isfinite
from types import MappingProxyType
from typing import Any

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample, EndpointSample, ModelSample, Report
from ext_authz.telemetry.sources.feedback.fields import (
    MAX_AGE_S,
    MAX_BYTES,
    MOST,
    as_age_s,
    as_entries,
    as_flag,
    as_name,
    as_number,
    json_object,
)

VERSION = 1
MAX_ENDPOINTS = 64
MAX_DEVICES = 64
MAX_MODELS = 64
"""Most of each in one heartbeat (models: of one endpoint). More are dropped and counted."""


def _numbers(kind: type[EndpointSample | ModelSample | DeviceSample]) -> tuple[str, ...]:
    # The wire speaks the vocabulary: whatever number a sample may bear, by the same name.
    return tuple(field.name for field in fields(kind) if field.type == "float | None")


_ENDPOINT_NUMBERS = _numbers(EndpointSample)
_MODEL_NUMBERS = _numbers(ModelSample)
_DEVICE_NUMBERS = _numbers(DeviceSample)


@dataclass(frozen=True, slots=True)
class Header:
    """Who sends and when.

    `agent` names the sender; `run` differs each time it starts; `seq` rises by one with each
    heartbeat of a run. `sent_ms` is the sender's own monotonic clock, in milliseconds from any
    origin: only differences of it are used.
    """

    agent: str
    run: str
    seq: int
    sent_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat. The samples in `report` are dated relative to its sending: `at_s` is minus
    the age."""

    header: Header
    report: Report

    def dated(self, sent_s: float, source: str) -> Report:
        """The samples dated on the receiver's clock, where the sending was at `sent_s`."""
        report = self.report
        return replace(
            report,
            endpoints=tuple(
                replace(e, at_s=sent_s + e.at_s, source=source) for e in report.endpoints
            ),
            devices=tuple(replace(d, at_s=sent_s + d.at_s, source=source) for d in report.devices),
        )


def encode(header: Header, report: Report, now: float) -> bytes:
    """`report` as the heartbeat sent at `now` (monotonic seconds). Unknown numbers are left out.

    Samples that are older than `MAX_AGE_S` are left out; so are the models where all would be
    longer than `MAX_BYTES`. Raises TelemetryError if it still is.
    """
    data = _encoded(header, report, now)
    if len(data) > MAX_BYTES:
        bare = (replace(e, by_model=MappingProxyType({})) for e in report.endpoints)
        data = _encoded(header, replace(report, endpoints=tuple(bare)), now)
    if len(data) > MAX_BYTES:
        raise TelemetryError(f"a heartbeat would be longer than {MAX_BYTES} bytes")
    return data


def decode(data: bytes) -> Heartbeat:
    """The heartbeat in `data`. Fields that nobody knows are ignored.

    Raises TelemetryError if it is too long, no JSON object, of another version, or does not say
    who sent it. Anything else that is wrong costs only the field or the entry it is in, and is
    counted in the report's `dropped`.
    """
    message = json_object(data)
    version = message.get("v")
    if version != VERSION or isinstance(version, bool):
        raise TelemetryError(f"a heartbeat of a version other than {VERSION}")
    agent, run, seq = as_name(message.get("agent")), as_name(message.get("run")), message.get("seq")
    if agent is None or run is None or type(seq) is not int or not 0 <= seq < MOST:
        raise TelemetryError("a heartbeat without agent, run and sequence number")
    dropped: Counter[str] = Counter()
    sent_ms = as_number(message, "sent_ms", dropped)
    endpoints: dict[str, EndpointSample] = {}
    for entry in as_entries(message.get("endpoints"), MAX_ENDPOINTS, dropped):
        endpoint = _endpoint_in(entry, dropped)
        if (
            endpoint is not None
            and endpoints.setdefault(endpoint.endpoint, endpoint) is not endpoint
        ):
            dropped["duplicate"] += 1
    devices: dict[str, DeviceSample] = {}
    for entry in as_entries(message.get("devices"), MAX_DEVICES, dropped):
        device = _device_in(entry, dropped)
        if device is not None and devices.setdefault(device.device, device) is not device:
            dropped["duplicate"] += 1
    report = Report(
        endpoints=tuple(endpoints.values()),
        devices=tuple(devices.values()),
        dropped=MappingProxyType(dict(dropped)),
    )
    return Heartbeat(Header(agent, run, seq, sent_ms), report)


def _encoded(header: Header, report: Report, now: float) -> bytes:
    oldest_s = now - MAX_AGE_S
    message = {
        "v": VERSION,
        "agent": header.agent,
        "run": header.run,
        "seq": header.seq,
        "sent_ms": header.sent_ms,
        "endpoints": [_endpoint_out(e, now) for e in report.endpoints if e.at_s >= oldest_s],
        "devices": [_device_out(d, now) for d in report.devices if d.at_s >= oldest_s],
    }
    return json.dumps(_known(message), separators=(",", ":"), allow_nan=False).encode()


def _known(value: Mapping[str, object]) -> dict[str, object]:
    return {
        name: one
        for name, one in value.items()
        if one is not None and not (isinstance(one, float) and not isfinite(one))
    }


def _age_ms(at_s: float, now: float) -> float:
    return round(max(0.0, now - at_s) * 1000, 3)


def _endpoint_out(sample: EndpointSample, now: float) -> dict[str, object]:
    models = {
        name: _known({field: getattr(model, field) for field in _MODEL_NUMBERS})
        for name, model in sample.by_model.items()
    }
    gauges = {field: getattr(sample, field) for field in _ENDPOINT_NUMBERS}
    return _known(
        {
            "address": sample.endpoint,
            "age_ms": _age_ms(sample.at_s, now),
            **gauges,
            "device": sample.device,
            "models": models or None,
        }
    )


def _device_out(sample: DeviceSample, now: float) -> dict[str, object]:
    gauges = {field: getattr(sample, field) for field in _DEVICE_NUMBERS}
    flags = {"throttled": sample.throttled, "lost": sample.lost or None}
    who = {"device": sample.device, "host": sample.host, "model": sample.model}
    return _known({**who, "age_ms": _age_ms(sample.at_s, now), **gauges, **flags})


def _endpoint_in(entry: dict[str, Any], dropped: Counter[str]) -> EndpointSample | None:
    address, aged_s = as_name(entry.get("address")), as_age_s(entry)
    if address is None or aged_s is None:
        dropped["unnamed" if address is None else "undated"] += 1
        return None
    numbers: dict[str, Any] = {f: as_number(entry, f, dropped) for f in _ENDPOINT_NUMBERS}
    return EndpointSample(
        endpoint=address,
        at_s=-aged_s,
        by_model=MappingProxyType(_models_in(entry.get("models"), dropped)),
        device=as_name(entry.get("device")),
        **numbers,
    )


def _models_in(value: object, dropped: Counter[str]) -> dict[str, ModelSample]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        dropped["malformed"] += 1
        return {}
    if len(value) > MAX_MODELS:
        dropped["too_many"] += len(value) - MAX_MODELS
    models: dict[str, ModelSample] = {}
    for name, entry in islice(value.items(), MAX_MODELS):
        if as_name(name) is None or not isinstance(entry, dict):
            dropped["malformed"] += 1
            continue
        models[name] = ModelSample(**{f: as_number(entry, f, dropped) for f in _MODEL_NUMBERS})
    return models


def _device_in(entry: dict[str, Any], dropped: Counter[str]) -> DeviceSample | None:
    device, aged_s = as_name(entry.get("device")), as_age_s(entry)
    if device is None or aged_s is None:
        dropped["unnamed" if device is None else "undated"] += 1
        return None
    numbers: dict[str, Any] = {f: as_number(entry, f, dropped) for f in _DEVICE_NUMBERS}
    return DeviceSample(
        device=device,
        at_s=-aged_s,
        source="",
        host=as_name(entry.get("host")),
        model=as_name(entry.get("model")),
        throttled=as_flag(entry, "throttled", dropped),
        lost=as_flag(entry, "lost", dropped) is True,
        **numbers,
    )
