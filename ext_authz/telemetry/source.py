"""What a collector needs of anything that can tell the state of one endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ext_authz.snapshot import EndpointSample


class Source(Protocol):
    """Reads one endpoint. One poll at a time.

    A source holds its own bounds: a poll ends within them, by a sample or by a TelemetryError.
    """

    @property
    def name(self) -> str:
        """The endpoint's address, as `Endpoint.address` gives it."""

    @property
    def interval_s(self) -> float:
        """Seconds between two polls while all is well."""

    @property
    def missing(self) -> frozenset[str]:
        """Signals that the last good poll should have found and did not."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Samples the last good poll could not use, by reason."""

    async def poll(self, now: float) -> EndpointSample:
        """A sample dated `now` (monotonic seconds, when the poll began). Raises TelemetryError."""

    async def close(self) -> None:
        """Let go of connections. A closed source is not polled again."""
