"""The backend's own account of what it served: the truth a load test is judged against."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice

from loadtest.backend.engine import Finished

KEPT = 10_000
PATHS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a request went. `first_token_unix_ms` is comparable with a client's clock
    on the same machine, which is how a client that cannot read a stream live learns its TTFT."""

    queue_ms: float
    ttft_ms: float
    execution_ms: float
    e2e_ms: float
    first_token_unix_ms: float


def timing(ended: list[Finished], unix_offset_s: float) -> Timing:
    """The timing of a request made of `ended` (at least one): from the first arrival to the last
    end. `unix_offset_s` is Unix time minus the engine's clock."""
    arrived = min(one.arrived_s for one in ended)
    started = min(one.ended_s if one.started_s is None else one.started_s for one in ended)
    first = min(one.ended_s if one.first_token_s is None else one.first_token_s for one in ended)
    end = max(one.ended_s for one in ended)
    return Timing(
        queue_ms=round((started - arrived) * 1000.0, 3),
        ttft_ms=round((first - arrived) * 1000.0, 3),
        execution_ms=round((end - started) * 1000.0, 3),
        e2e_ms=round((end - arrived) * 1000.0, 3),
        first_token_unix_ms=round((first + unix_offset_s) * 1000.0, 3),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that ended. `status` is 200, 499 when the client left, or the refusal sent;
    `in_flight` counts the requests inside when it came, itself included. `sent_id` is what a load
    generator calls it."""

    path: str
    status: int
    arrived_unix_ms: float
    ended_unix_ms: float
    in_flight: int
    request_id: str | None = None
    sent_id: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    timing: Timing | None = None


class Record:
    """The last `KEPT` entries, and since the start a count of each status and of each path that
    was asked for by whoever is not the load test itself."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._by_status: dict[int, int] = {}
        self._asked: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        """Keep `entry`, dropping the oldest when full."""
        self._entries.append(entry)
        self._by_status[entry.status] = self._by_status.get(entry.status, 0) + 1

    def note(self, path: str) -> None:
        """Count one request for a path; paths beyond `PATHS_KEPT` are counted as `other`."""
        if path not in self._asked and len(self._asked) >= PATHS_KEPT:
            path = "other"
        self._asked[path] = self._asked.get(path, 0) + 1

    def summary(self, limit: int) -> dict[str, object]:
        """Counts by status and the latest `limit` entries, newest first."""
        latest = islice(reversed(self._entries), limit)
        return {
            "by_status": {str(status): count for status, count in sorted(self._by_status.items())},
            "asked": dict(sorted(self._asked.items())),
            "latest": [asdict(entry) for entry in latest],
        }
