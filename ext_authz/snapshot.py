"""Dated telemetry: what was last seen of each endpoint, and how old that is.

PURE. Every number here may be `None`, which means *unknown*: never zero and never full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import MappingProxyType


class Freshness(StrEnum):
    """How much a sample is worth. Different states; what follows from each is configuration."""

    FRESH = "fresh"
    HELD = "held"
    DECAYED = "decayed"
    STALE = "stale"
    NEVER = "never"


# No engine holds more at once.
MOST_REQUESTS = 100_000.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """How belief in a load fades with its age.

    Up to `fresh_s` it is believed; for `hold_s` more it is held as it was; over `decay_s` more it
    moves in a straight line to `floor_ratio` of the endpoint's slots (1: as good as full, 0: as
    good as idle). After that, beyond the age of `lifetime_s`, it is stale: the endpoint counts as
    lost.
    """

    fresh_s: float
    hold_s: float = 0.0
    decay_s: float = 0.0
    floor_ratio: float = 1.0
    lifetime_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lifetime_s", self.fresh_s + self.hold_s + self.decay_s)

    def grade(self, age_s: float) -> Freshness:
        """The state of a sample of this age."""
        if age_s <= self.fresh_s:
            return Freshness.FRESH
        if age_s <= self.fresh_s + self.hold_s:
            return Freshness.HELD
        if age_s <= self.lifetime_s:
            return Freshness.DECAYED
        return Freshness.STALE

    def believed(self, load: float, slots: int, age_s: float) -> float | None:
        """The load to act on, None when it is stale."""
        state = self.grade(age_s)
        if state is Freshness.STALE:
            return None
        if state is not Freshness.DECAYED:
            return load
        part = (age_s - self.fresh_s - self.hold_s) / self.decay_s
        return load + part * (self.floor_ratio * slots - load)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who gave a number, and when it was measured (monotonic seconds)."""

    source: str
    at_s: float


@dataclass(frozen=True, slots=True)
class ModelSample:
    """Gauges of one served model on one endpoint, all engines of the endpoint together."""

    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class EndpointSample:
    """One reading of one endpoint.

    `at_s` is monotonic seconds at which the reading was asked for, so that its age is never
    understated. `running` and `waiting` are requests, summed over models and engines;
    `kv_usage_ratio` is 0..1 (the fullest engine); `kv_capacity_tokens` is the sum over engines;
    `mean_execution_s` is time in the engine without its queue, over the requests that finished
    since the sample before, `None` when none did. `source` is who said so; `device` the UUID of
    the card it runs on, where the source knows it. After merging, `origins` tells of each known
    number who gave it, `at_s` is the date of the last known load (see `telemetry.merge`),
    `thermal_factor` is by how much throttled clocks lengthen execution, and with `device_lost`
    the card it runs on can be reached no longer, so that its load means nothing;
    `device_memory_ratio` is the part of the card's memory in use at `device_at_s`.

    `mean_wait_s` is time in the engine's own queue and `mean_batch` requests in one batch, over
    what finished since the sample before, `mean_ttft_s` the time from arrival to the first token,
    over those that came; the rates are over the same time, and unknown where a
    restart lies in it. `slots` is how many requests the engine says it runs at once.
    """

    endpoint: str
    at_s: float
    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: float | None = None
    mean_execution_s: float | None = None
    by_model: Mapping[str, ModelSample] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    device: str | None = None
    mean_wait_s: float | None = None
    mean_batch: float | None = None
    mean_ttft_s: float | None = None
    slots: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    rejections_per_s: float | None = None
    thermal_factor: float = 1.0
    device_lost: bool = False
    device_memory_ratio: float | None = None
    device_at_s: float | None = None
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))

    def told_s(self, signal: str) -> float:
        """When the number named `signal` was measured (monotonic seconds)."""
        origin = self.origins.get(signal)
        return self.at_s if origin is None else origin.at_s

    @property
    def load(self) -> float | None:
        """Requests the engine holds, or unknown if it named neither gauge. With one of the two
        it is the least there can be. No more than `MOST_REQUESTS`, whatever a gauge says: one
        absurd page must not be remembered for minutes."""
        if self.running is None and self.waiting is None:
            return None
        return min((self.running or 0.0) + (self.waiting or 0.0), MOST_REQUESTS)


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One reading of one GPU or MIG slice.

    `device` is its UUID (or the name a configuration gave it), `host` where it sits: the two
    identify it, an index or a pod does not. `utilization_ratio` 0..1; clocks in MHz;
    `throttled`: the driver names a thermal or hardware slowdown, the power cap under load is
    not one. `lost`: the driver can no longer reach the card, so that it can serve nothing.
    `origins` as in `EndpointSample`, after merging.
    """

    device: str
    at_s: float
    source: str
    host: str | None = None
    model: str | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_c: float | None = None
    slowdown_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttled: bool | None = None
    lost: bool = False
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Report:
    """What one source learned at one time: any number of endpoints and devices.

    `missing` names the signals that should have been there and were not; `dropped` counts
    unusable samples by reason.
    """

    endpoints: tuple[EndpointSample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    missing: frozenset[str] = frozenset()
    dropped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest of every endpoint and device that was ever heard of, merged over sources.

    Immutable: swapped, not changed.
    """

    samples: Mapping[str, EndpointSample] = field(default_factory=lambda: MappingProxyType({}))
    devices: Mapping[str, DeviceSample] = field(default_factory=lambda: MappingProxyType({}))

    def freshness(self, endpoint: str, now: float, staleness: Staleness) -> Freshness:
        """What `endpoint`'s last sample is worth at `now`."""
        sample = self.samples.get(endpoint)
        if sample is None or sample.at_s == -inf:
            return Freshness.NEVER
        if sample.device_lost:
            return Freshness.STALE
        return staleness.grade(now - sample.at_s)
