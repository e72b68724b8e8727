"""Heartbeats to send, and what a gate made of them."""

from __future__ import annotations

import json
from typing import Any

from ext_authz.snapshot import EndpointSample, Report

HOME = "127.0.0.1:8000"
OTHER = "127.0.0.1:8001"


class ManualClock:
    """A clock that a test sets, and that passes by itself where it is told to."""

    def __init__(self, time_s: float = 1000.0) -> None:
        self.time_s = time_s

    def now(self) -> float:
        return self.time_s

    def wall(self) -> float:
        return self.time_s


class Reports:
    """What a source emitted, in order."""

    def __init__(self) -> None:
        self.all: list[Report] = []

    def __call__(self, report: Report) -> None:
        self.all.append(report)

    @property
    def samples(self) -> list[EndpointSample]:
        return [sample for report in self.all for sample in report.endpoints]

    @property
    def running(self) -> list[float | None]:
        return [sample.running for sample in self.samples]

    def dropped(self, reason: str) -> int:
        return sum(report.dropped.get(reason, 0) for report in self.all)


def message(seq: int, running: float = 3, **changes: Any) -> dict[str, Any]:
    """A proper heartbeat; `changes` replace or add top-level fields, `address` and `age_ms`
    those of its one endpoint."""
    endpoint = {
        "address": changes.pop("address", HOME),
        "age_ms": changes.pop("age_ms", 20),
        "running": running,
        "waiting": 2,
        "kv_usage_ratio": 0.25,
        "models": {"m1": {"running": running, "waiting": 2, "kv_usage_ratio": 0.25}},
    }
    proper = {"v": 1, "agent": "a", "run": "r1", "seq": seq, "endpoints": [endpoint]}
    return {**proper, **changes}


def heartbeat(seq: int, running: float = 3, **changes: Any) -> bytes:
    """`message` as it crosses the wire."""
    return json.dumps(message(seq, running, **changes)).encode()
