"""Reads the cards of this host through NVML. Blocking: for a worker thread, never a loop.

What a driver cannot tell is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample, Report
from ext_authz.telemetry.sources.nvml.probe import NO_PERMISSION, CardError, Probe

SOURCE: Final = "nvml"

MAX_CARDS: Final = 64
MAX_REINIT_S: Final = 600.0
"""While a card stays lost the driver is started anew ever more rarely, but at least this often."""
_LIBRARY_NOT_FOUND = 12


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over the cards. `processes`: bytes that each process holds, by device and pid."""

    report: Report
    processes: Mapping[str, Mapping[int, float | None]]


@dataclass(slots=True)
class _Pass:
    """What is gathered in one pass. `unnamed`: lost cards whose UUID the driver does not tell."""

    at_s: float
    samples: list[DeviceSample] = field(default_factory=list)
    processes: dict[str, Mapping[int, float | None]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    unnamed: int = 0


class CardReader:
    """Reads all cards through `nvml` (the module pynvml), which it starts when first needed.

    When cards are lost or nothing answers, the driver library is shut down and started again, at
    most once in `reinit_s` and twice as seldom each time that did not help, up to MAX_REINIT_S.
    `host` and `processes` are as in `NvmlSettings`.
    """

    def __init__(self, nvml: Any, host: str | None, processes: bool, reinit_s: float) -> None:
        self._nvml = nvml
        self._host = host
        self._with_processes = processes
        self._reinit_s = reinit_s
        self._up = False
        self._anew = False
        self._trouble = False
        self._attempts = 0
        self._due_s = -math.inf
        self._why = ""
        # Devices of each card seen, by the card's UUID, and the UUID by index since the start.
        self._known: dict[str, tuple[str, ...]] = {}
        self._by_index: dict[int, str] = {}

    def read(self, now: float) -> Reading:
        """All that can be told of the cards, dated `now`. Raises TelemetryError if that is
        nothing."""
        self._start(now)
        found = _Pass(now)
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise self._failed(f"the driver does not count its cards: {_text(error)}") from error
        if count == 0:
            raise self._failed("the driver sees no card")
        present = {uuid for i in range(min(count, MAX_CARDS)) if (uuid := self._card(i, found))}
        absent = self._known.keys() - present
        if len(absent) <= found.unnamed:
            # Every card that fell silent is one of those that were lost.
            for uuid in sorted(absent):
                found.samples += self._lost(uuid, now)
        if len(absent) != found.unnamed:
            found.missing.add("device")
        if self._anew and not found.unnamed:
            for uuid in absent:
                del self._known[uuid]
        self._anew = False
        if not found.samples:
            raise self._failed("no card can be read")
        self._trouble = bool(absent or found.lost or "device" in found.missing)
        self._attempts = self._attempts if self._trouble else 0
        report = Report(
            devices=tuple(found.samples),
            missing=frozenset(found.missing),
            dropped=MappingProxyType(dict(found.dropped)),
        )
        return Reading(report, MappingProxyType(found.processes))

    def stop(self) -> None:
        """Let go of the driver."""
        if self._up:
            self._up = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # It is as good as shut down: every start begins with nvmlInit anyway.

    def _start(self, now: float) -> None:
        """See that the library is initialised. Raises TelemetryError while it is not."""
        if self._up and not self._trouble:
            return
        if now < self._due_s:
            if self._up:
                return
            raise TelemetryError(self._why)
        self._due_s = now + min(self._reinit_s * 2.0 ** min(self._attempts, 10), MAX_REINIT_S)
        self._attempts += 1
        self.stop()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            if error.value == _LIBRARY_NOT_FOUND:
                raise self._failed("libnvidia-ml.so.1 is not installed here") from error
            raise self._failed(f"the driver does not start: {_text(error)}") from error
        self._up = self._anew = True
        self._by_index.clear()

    def _failed(self, why: str) -> TelemetryError:
        self._trouble = True
        self._why = f"NVML: {why}"
        return TelemetryError(self._why)

    def _card(self, index: int, into: _Pass) -> str | None:
        """Read one card; its UUID, or None when not even that is known."""
        uuid = self._by_index.get(index)
        try:
            handle = self._must("nvmlDeviceGetHandleByIndex", index)
            uuid = str(self._must("nvmlDeviceGetUUID", handle))
            self._by_index[index] = uuid
            probe = Probe(self._nvml, into.dropped)
            devices, processes = self._devices(handle, uuid, probe, into.at_s)
        except CardError as error:
            if uuid is not None:
                # Also one that never gave a value: it is there, and it serves nothing.
                self._known.setdefault(uuid, (uuid,))
            if error.code == NO_PERMISSION:
                return uuid  # Not given to this container: nothing is wrong with it.
            if error.lost:
                into.lost += 1
                into.unnamed += uuid is None
                into.samples += self._lost(uuid, into.at_s) if uuid else []
            else:
                into.missing.add("device")
            return uuid
        into.samples += devices
        into.processes.update(processes)
        into.missing |= probe.missing
        self._known[uuid] = tuple(sample.device for sample in devices)
        return uuid

    def _lost(self, uuid: str, at_s: float) -> list[DeviceSample]:
        """The card and the slices it had."""
        devices = self._known.get(uuid, (uuid,))
        return [DeviceSample(name, at_s, SOURCE, self._host, lost=True) for name in devices]

    def _devices(
        self, handle: Any, uuid: str, probe: Probe, at_s: float
    ) -> tuple[list[DeviceSample], dict[str, Mapping[int, float | None]]]:
        """The card's sample and its slices', and who runs there. Raises CardError."""
        mig = probe.mig(handle)
        card = probe.sample(DeviceSample(uuid, at_s, SOURCE, self._host), handle, mig)
        samples, processes = [card], {}
        if self._with_processes and not mig:
            processes[uuid] = probe.processes(handle)
        for slice_ in probe.slices(handle) if mig else ():
            name = probe.ask(slice_, "nvmlDeviceGetUUID")
            if not name:
                probe.missing.add("device")
                continue
            samples.append(probe.slice_sample(card, str(name), slice_))
            if self._with_processes:
                processes[str(name)] = probe.processes(slice_)
        return samples, processes

    def _must(self, function: str, argument: Any) -> Any:
        try:
            return getattr(self._nvml, function)(argument)
        except self._nvml.NVMLError as error:
            raise CardError(error.value) from error
        except UnicodeDecodeError as error:
            raise CardError from error


def _text(error: Any) -> str:
    """NVML's words for its code; without asking the library, which may hang."""
    words = type(error).__name__.partition("_")[2] or "error"
    return f"{words} ({error.value})"
