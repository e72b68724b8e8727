"""What a configuration assumes of endpoints that nobody measures yet.

It lets a gate work from its first day on, on counts of its own requests alone: an assumption
never gets stale, tells no load (the load is not known), and gives way to whatever is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ext_authz.snapshot import EndpointSample, Report

KIND = "static"


@dataclass(frozen=True, slots=True)
class Assumption:
    """What is assumed of one endpoint, by its host:port. None is not assumed."""

    endpoint: str
    slots: float | None = None
    kv_capacity_tokens: float | None = None
    mean_execution_s: float | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class AssumeSettings:
    """The same for every endpoint: what stands in a configuration. Slots and devices are those
    of each endpoint. `alone`: no other source tells a load."""

    kv_capacity_tokens: float | None = None
    mean_execution_s: float | None = None
    alone: bool = True


@dataclass(frozen=True, slots=True)
class StaticSettings:
    """The assumptions, and how often they are renewed: well within any limit of staleness.

    `alone`, they vouch for their endpoints. Beside a source that tells loads they have no date:
    a server that never answered must not look alive because something is assumed of it.
    """

    assumptions: tuple[Assumption, ...]
    interval_s: float = 0.5
    alone: bool = True


class StaticSource:
    """The `PollSource` of assumptions."""

    def __init__(self, settings: StaticSettings) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        """See `PollSource.name`."""
        return KIND

    @property
    def interval_s(self) -> float:
        """See `PollSource.interval_s`."""
        return self._settings.interval_s

    async def poll(self, now: float) -> Report:
        """See `PollSource.poll`. Never fails."""
        return Report(
            endpoints=tuple(
                EndpointSample(
                    endpoint=one.endpoint,
                    at_s=now if self._settings.alone else -inf,
                    source=KIND,
                    slots=one.slots,
                    kv_capacity_tokens=one.kv_capacity_tokens,
                    mean_execution_s=one.mean_execution_s,
                    device=one.device,
                )
                for one in self._settings.assumptions
            )
        )

    async def close(self) -> None:
        """See `PollSource.close`: it holds nothing."""
