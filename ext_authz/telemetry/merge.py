"""Several sources, one truth: for each number the freshest that anybody gave.

PURE. The last sample of every (endpoint, source) is kept, and each field is taken from the one
measured last, with its origin; running and waiting requests are taken together. What is merely
assumed (source `static`) counts only where nobody measured. Devices are merged the same way, and
what they tell of clocks becomes a factor on the execution time of the endpoints that run on them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import fields, replace
from math import inf
from types import MappingProxyType
from typing import Any, TypeVar

from ext_authz.snapshot import DeviceSample, EndpointSample, Origin, Report, Snapshot

# Reported of throttled H100s: execution up to 40 % longer.
MOST_THERMAL_FACTOR = 1.4
ASSUMED = "static"
# The slowest way to learn of a card, an exporter that reads it every 30 s and is scraped every
# 15 s, twice over and some: what is older says nothing of the card any more.
DEVICE_KEPT_S = 120.0
# Reports may name devices that no endpoint uses; a host has tens of cards and slices.
MOST_DEVICES = 4096

_MEASURED = tuple(
    f.name
    for f in fields(EndpointSample)
    if f.name not in {"endpoint", "at_s", "source", "origins", "by_model"}
    and f.name not in {"thermal_factor", "device_lost", "device_memory_ratio", "device_at_s"}
)
_OF_DEVICE = tuple(
    f.name
    for f in fields(DeviceSample)
    if f.name not in {"device", "at_s", "source", "lost", "origins"}
)
_LOAD = ("running", "waiting")

Dated = TypeVar("Dated", EndpointSample, DeviceSample)


class Merger:
    """Keeps what each source said last, and the snapshot made of it.

    `endpoints` are the configured addresses with the device a configuration put them on, if it
    did; what is said of others is dropped and counted in `strangers`.
    """

    def __init__(self, endpoints: Mapping[str, str | None]) -> None:
        self.snapshot = Snapshot()
        self.strangers = 0
        self._configured: Mapping[str, str | None] = {}
        self._said: dict[str, dict[str, EndpointSample]] = {}
        self._load_told_s: dict[str, float] = {}
        self._devices: dict[str, dict[str, DeviceSample]] = {}
        self._full_until_s = -inf
        self.reconfigure(endpoints)

    def reconfigure(
        self, endpoints: Mapping[str, str | None], sources: Container[str] | None = None
    ) -> None:
        """Keep what is known of endpoints that stay, forget the others; likewise what was said
        by a source that is none of `sources` any more (None: all stay)."""
        self._configured = endpoints
        self._said = {
            name: {by: s for by, s in said.items() if sources is None or by in sources}
            for name, said in self._said.items()
            if name in endpoints
        }
        self._load_told_s = {n: t for n, t in self._load_told_s.items() if n in endpoints}
        samples = {n: s for n, s in self.snapshot.samples.items() if n in endpoints}
        self.snapshot = replace(self.snapshot, samples=MappingProxyType(samples))

    def take(self, report: Report) -> tuple[EndpointSample, ...]:
        """Take in a report; the merged samples of the endpoints it changed."""
        touched: dict[str, None] = {}
        for device in report.devices:
            if self._take_device(device):
                touched.update(dict.fromkeys(self._on(device.device)))
        for sample in report.endpoints:
            if sample.endpoint not in self._configured:
                self.strangers += 1
                continue
            said = self._said.setdefault(sample.endpoint, {})
            before = said.get(sample.source)
            if before is None or sample.at_s >= before.at_s:
                said[sample.source] = sample
                touched[sample.endpoint] = None
        merged = {name: self._merge(name) for name in touched if self._said.get(name)}
        if merged:
            samples = MappingProxyType({**self.snapshot.samples, **merged})
            self.snapshot = replace(self.snapshot, samples=samples)
        return tuple(merged.values())

    def _take_device(self, sample: DeviceSample) -> bool:
        if sample.device not in self._devices and len(self._devices) >= MOST_DEVICES:
            self.strangers += 1
            if not self._forget_oldest_device(sample.at_s):
                return False
        said = self._devices.setdefault(sample.device, {})
        before = said.get(sample.source)
        if before is not None and sample.at_s < before.at_s:
            return False
        said[sample.source] = sample
        newest = _newest_first(said.values())
        values, origins = _pick_all(newest, _OF_DEVICE)
        merged = replace(newest[0], origins=origins, **values)
        devices = MappingProxyType({**self.snapshot.devices, sample.device: merged})
        self.snapshot = replace(self.snapshot, devices=devices)
        return True

    def _forget_oldest_device(self, now: float) -> bool:
        """Make room: slices get new names whenever a card is cut anew. False where all are of
        late."""
        if now <= self._full_until_s:
            return False
        devices = self.snapshot.devices
        oldest = min(devices.values(), key=lambda device: device.at_s)
        self._full_until_s = oldest.at_s + DEVICE_KEPT_S
        if now <= self._full_until_s:
            return False
        del self._devices[oldest.device]
        kept = {name: one for name, one in devices.items() if name != oldest.device}
        self.snapshot = replace(self.snapshot, devices=MappingProxyType(kept))
        return True

    def _on(self, device: str) -> list[str]:
        """Endpoints that run on `device`, as configured or as a source said."""
        return [
            name
            for name, configured in self._configured.items()
            if configured == device
            or any(sample.device == device for sample in self._said.get(name, {}).values())
        ]

    def _merge(self, name: str) -> EndpointSample:
        newest = _newest_first(self._said[name].values())
        values, origins = _pick_all(_with_whole_loads(newest), _MEASURED)
        values["device"] = self._configured[name] or values.get("device")
        loads = [origins[signal] for signal in _LOAD if signal in origins]
        teller = max(loads, key=lambda origin: origin.at_s, default=None)
        if teller is not None:
            self._load_told_s[name] = teller.at_s
        by_model = self._said[name][teller.source].by_model if teller else newest[0].by_model
        device = self.snapshot.devices.get(values["device"] or "")
        if device is not None and newest[0].at_s - device.at_s > DEVICE_KEPT_S:
            device = None
        return EndpointSample(
            name,
            at_s=self._dated(name, newest),
            source=teller.source if teller else newest[0].source,
            by_model=by_model,
            origins=origins,
            thermal_factor=thermal_factor(device) if device else 1.0,
            device_lost=device is not None and device.lost,
            device_memory_ratio=memory_ratio(device) if device else None,
            device_at_s=device.at_s if device else None,
            **values,
        )

    def _dated(self, name: str, newest: list[EndpointSample]) -> float:
        """When the load was last told. Where it never was, a configured assumption vouches for
        the endpoint, and nothing else does."""
        assumed = (sample.at_s for sample in newest if sample.source == ASSUMED)
        return self._load_told_s.get(name, max(assumed, default=-inf))


def memory_ratio(device: DeviceSample) -> float | None:
    """The part of a card's memory in use; None if it was not told."""
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return used / total if used is not None and total else None


def thermal_factor(device: DeviceSample) -> float:
    """By how much execution takes longer because the driver holds the clocks down, 1 to 1.4.

    A low clock alone says nothing (an idle card rests); only with a thermal or hardware reason
    is the ratio of the clocks taken for the ratio of the speeds.
    """
    if not device.throttled or not device.sm_clock_mhz or not device.sm_clock_max_mhz:
        return 1.0
    return min(MOST_THERMAL_FACTOR, max(1.0, device.sm_clock_max_mhz / device.sm_clock_mhz))


def _newest_first(samples: Iterable[Dated]) -> list[Dated]:
    """Measured before assumed, then by date; of one date by name, so that none flickers."""
    return sorted(samples, key=lambda s: (s.source == ASSUMED, -s.at_s, s.source))


def _with_whole_loads(newest: list[EndpointSample]) -> list[EndpointSample]:
    """The same, without the waiting requests of those who told them later than anybody told the
    running ones beside.

    What runs and what waits are two parts of one load, and requests pass from one to the other:
    added up over different times they show some twice and others not at all, and the sum would
    bear the later date.
    """
    whole = next((s for s in newest if s.running is not None and s.source != ASSUMED), None)
    if whole is None or whole.waiting is None:
        return newest
    at = newest.index(whole)
    return [
        s if place >= at or s.waiting is None else replace(s, waiting=None)
        for place, s in enumerate(newest)
    ]


def _pick_all(
    newest: list[Dated], names: Iterable[str]
) -> tuple[dict[str, Any], Mapping[str, Origin]]:
    """Of each field the first known value, and where it comes from."""
    values: dict[str, Any] = dict.fromkeys(names)
    origins: dict[str, Origin] = {}
    told = [(sample, Origin(sample.source, sample.at_s)) for sample in newest]
    for name in values:
        for sample, origin in told:
            value = getattr(sample, name)
            if value is not None:
                values[name] = value
                origins[name] = origin
                break
    return values, MappingProxyType(origins)
