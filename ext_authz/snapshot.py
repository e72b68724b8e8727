"""Dated telemetry: what was last seen of each endpoint, and how old that is.

PURE. Every number here may be `None`, which means *unknown*: never zero and never full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Freshness(StrEnum):
    """Three different states; what follows from each is configuration."""

    FRESH = "fresh"
    STALE = "stale"
    NEVER = "never"


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
    since the sample before, `None` when none did.
    """

    endpoint: str
    at_s: float
    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: float | None = None
    mean_execution_s: float | None = None
    by_model: Mapping[str, ModelSample] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def load(self) -> float | None:
        """Requests the engine holds, or unknown if it named neither gauge."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0.0) + (self.waiting or 0.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest sample of every endpoint that ever gave one. Immutable: swapped, not changed."""

    samples: Mapping[str, EndpointSample] = field(default_factory=lambda: MappingProxyType({}))

    def freshness(self, endpoint: str, now: float, stale_after_s: float) -> Freshness:
        """Whether `endpoint`'s last sample is young enough to act on at `now`."""
        sample = self.samples.get(endpoint)
        if sample is None:
            return Freshness.NEVER
        return Freshness.FRESH if now - sample.at_s <= stale_after_s else Freshness.STALE

    def with_sample(self, sample: EndpointSample) -> Snapshot:
        """A new snapshot in which `sample` is the latest of its endpoint."""
        return Snapshot(MappingProxyType({**self.samples, sample.endpoint: sample}))
