"""Questions to one card through NVML, and what to believe of the answers.

Codes and units are those of NVIDIA's NVML reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from ext_authz.snapshot import DeviceSample
from ext_authz.telemetry.pages.exposition import DropReason

MAX_SLICES: Final = 16
MAX_PROCESSES: Final = 1024

NO_PERMISSION: Final = 4
_NOT_FOUND = 6
# The driver can no longer reach the card (15), or only after a reset (16).
_LOST = frozenset({15, 16})
# Not supported, function not found, version mismatch: an older call may know.
_TRY_OLDER = frozenset({3, 13, 25})

# Of the clock-event reasons those that mean heat or hardware: hardware slowdown, software and
# hardware thermal slowdown, power brake. The software power cap (4) is normal under load.
_DEGRADED = 0x08 | 0x20 | 0x40 | 0x80

# What a sane card may say; the blank values that drivers use (all ones, 2147483632 and up) are
# far outside. Memory up to 1 PiB, power up to 10 kW in mW.
_PERCENT = (0.0, 100.0)
_CELSIUS = (-50.0, 200.0)
_THRESHOLD_C = (1.0, 200.0)
_MHZ = (1.0, 20_000.0)
_MILLIWATT = (1.0, 1e7)
_BYTES = (1.0, 2.0**50)
_REASONS = (0.0, 2.0**31)


class CardError(Exception):
    """A card cannot be read; `code` is NVML's, 0 when it answered with nothing usable."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)
        self.code = code

    @property
    def lost(self) -> bool:
        """Whether the driver says that it cannot reach the card."""
        return self.code in _LOST


class Probe:
    """Questions to one card and its slices. Each answers None when the driver cannot tell, and
    raises CardError once it says that the card is lost."""

    def __init__(self, nvml: Any, dropped: Counter[str]) -> None:
        self._nvml = nvml
        self._dropped = dropped
        self.missing: set[str] = set()

    def ask(self, handle: Any, *functions: str, arguments: tuple[Any, ...] = ()) -> Any:
        """What the first of `functions` that this driver has says."""
        for function in functions:
            call = getattr(self._nvml, function, None)
            try:
                if call is not None:
                    return call(handle, *arguments)
            except self._nvml.NVMLError as error:
                if error.value in _LOST:
                    raise CardError(error.value) from error
                if error.value not in _TRY_OLDER:
                    return None
            except UnicodeDecodeError:
                return None
        return None

    def mig(self, handle: Any) -> bool:
        """Whether the card is cut into slices now."""
        modes = self.ask(handle, "nvmlDeviceGetMigMode")
        return bool(modes) and modes[0] == 1

    def slices(self, handle: Any) -> Iterator[Any]:
        """Handles of the slices; slots that hold none are passed over."""
        slots = self.ask(handle, "nvmlDeviceGetMaxMigDeviceCount") or 0
        for index in range(min(int(slots), MAX_SLICES)):
            try:
                yield self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except self._nvml.NVMLError as error:
                if error.value in _LOST:
                    raise CardError(error.value) from error
                if error.value != _NOT_FOUND:
                    self.missing.add("device")

    def sample(self, blank: DeviceSample, handle: Any, mig: bool) -> DeviceSample:
        """`blank` filled with what the card says. Raises CardError if that is nothing."""
        nvml = self._nvml
        rates = self.ask(handle, "nvmlDeviceGetUtilizationRates")
        heat = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        limits = (nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,)
        clock = (nvml.NVML_CLOCK_SM,)
        read: dict[str, Any] = {
            "utilization_ratio": _part(self._sane(getattr(rates, "gpu", None), _PERCENT), 100),
            "temperature_c": self._sane(
                self.ask(handle, *heat, arguments=(nvml.NVML_TEMPERATURE_GPU,)), _CELSIUS
            ),
            "slowdown_c": self._sane(
                self.ask(handle, "nvmlDeviceGetTemperatureThreshold", arguments=limits),
                _THRESHOLD_C,
            ),
            "sm_clock_mhz": self._sane(
                self.ask(handle, "nvmlDeviceGetClockInfo", arguments=clock), _MHZ
            ),
            "sm_clock_max_mhz": self._sane(
                self.ask(handle, "nvmlDeviceGetMaxClockInfo", arguments=clock), _MHZ
            ),
            "power_w": self._watts(handle, "nvmlDeviceGetPowerUsage"),
            "power_limit_w": self._watts(handle, "nvmlDeviceGetEnforcedPowerLimit"),
            "throttled": self._throttled(handle),
            **self._memory(handle),
        }
        if all(value is None for value in read.values()):
            raise CardError
        # The driver has no utilisation of a card that is cut into slices: none is missing.
        self._miss(read, {"utilization_ratio"} if mig else set())
        return replace(blank, model=self._model(handle), **read)

    def slice_sample(self, card: DeviceSample, name: str, handle: Any) -> DeviceSample:
        """A slice has its own memory and shares its card's clock and heat. NVML tells neither
        its utilisation nor its part of the power."""
        read = self._memory(handle)
        self._miss(read, set())
        return replace(
            card,
            device=name,
            model=self._model(handle) or card.model,
            utilization_ratio=None,
            power_w=None,
            power_limit_w=None,
            **read,
        )

    def processes(self, handle: Any) -> Mapping[int, float | None]:
        """Bytes held by each process that computes there."""
        versions = [f"nvmlDeviceGetComputeRunningProcesses_v{number}" for number in (3, 2)]
        found = self.ask(handle, *versions)
        if found is None:
            self.missing.add("processes")
            return {}
        return MappingProxyType(
            {int(one.pid): _bytes_or_unknown(one.usedGpuMemory) for one in found[:MAX_PROCESSES]}
        )

    def _memory(self, handle: Any) -> dict[str, Any]:
        """Version 2 tells what the driver reserves; the older call counts that as used."""
        info = self.ask(
            handle, "nvmlDeviceGetMemoryInfo", arguments=(self._nvml.nvmlMemory_v2,)
        ) or self.ask(handle, "nvmlDeviceGetMemoryInfo")
        total = self._sane(getattr(info, "total", None), _BYTES)
        room = (0.0, total or 0.0)
        return {
            "memory_total_bytes": total,
            "memory_used_bytes": self._sane(getattr(info, "used", None), room) if total else None,
            "memory_reserved_bytes": (
                self._sane(getattr(info, "reserved", None), room) if total else None
            ),
        }

    def _throttled(self, handle: Any) -> bool | None:
        reasons = self.ask(
            handle,
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        known = self._sane(reasons, _REASONS)
        return None if known is None else bool(int(known) & _DEGRADED)

    def _watts(self, handle: Any, function: str) -> float | None:
        return _part(self._sane(self.ask(handle, function), _MILLIWATT), 1000)

    def _model(self, handle: Any) -> str | None:
        name = self.ask(handle, "nvmlDeviceGetName")
        return str(name) if name else None

    def _sane(self, value: Any, bounds: tuple[float, float]) -> float | None:
        if value is None:
            return None
        if not bounds[0] <= value <= bounds[1]:
            self._dropped[DropReason.OUT_OF_RANGE] += 1
            return None
        return float(value)

    def _miss(self, read: Mapping[str, Any], excused: set[str]) -> None:
        self.missing |= {name for name, value in read.items() if value is None} - excused


def _part(value: float | None, of: float) -> float | None:
    return None if value is None else value / of


def _bytes_or_unknown(value: int | None) -> float | None:
    return None if value is None or value > _BYTES[1] else float(value)
