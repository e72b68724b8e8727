"""What is known, as JSON-ready values: every number with its age and who gave it.

PURE. Numbers are finite or left out: this is what scripts read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ext_authz.settings import Pool
from ext_authz.snapshot import DeviceSample, EndpointSample, Snapshot
from ext_authz.telemetry.window import Trend


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source is doing."""

    reports: int
    failures: int
    missing: tuple[str, ...]


def describe(
    snapshot: Snapshot,
    pools: Mapping[str, Pool],
    sources: Mapping[str, SourceState],
    trends: Mapping[str, Mapping[str, Trend]],
    now: float,
) -> dict[str, Any]:
    """Pools with their endpoints, devices, sources; ages in seconds at `now`."""
    return {
        "pools": {
            name: {
                endpoint.address: _endpoint(
                    snapshot, endpoint.address, pool, trends.get(endpoint.address, {}), now
                )
                for endpoint in pool.endpoints
            }
            for name, pool in pools.items()
        },
        "devices": {name: _device(device, now) for name, device in snapshot.devices.items()},
        "sources": {
            name: {"reports": s.reports, "failures": s.failures, "missing": list(s.missing)}
            for name, s in sources.items()
        },
    }


def _endpoint(
    snapshot: Snapshot, address: str, pool: Pool, trends: Mapping[str, Trend], now: float
) -> dict[str, Any]:
    state = snapshot.freshness(address, now, pool.staleness)
    sample = snapshot.samples.get(address)
    if sample is None:
        return {"state": state, "age_s": None, "signals": {}}
    return {
        "state": state,
        "age_s": _age(sample.at_s, now),
        "device": sample.device,
        "thermal_factor": sample.thermal_factor,
        "signals": _signals(sample, now),
        "models": {
            name: {"running": m.running, "waiting": m.waiting, "kv_usage_ratio": m.kv_usage_ratio}
            for name, m in sample.by_model.items()
        },
        "trends": {
            name: {"mean": t.mean, "slope_per_s": t.slope_per_s, "history_s": t.history_s}
            for name, t in trends.items()
        },
    }


def _device(device: DeviceSample, now: float) -> dict[str, Any]:
    return {"age_s": _age(device.at_s, now), "lost": device.lost, "signals": _signals(device, now)}


def _signals(sample: EndpointSample | DeviceSample, now: float) -> dict[str, Any]:
    return {
        name: {
            "value": getattr(sample, name),
            "age_s": _age(origin.at_s, now),
            "source": origin.source,
        }
        for name, origin in sample.origins.items()
    }


def _age(at_s: float, now: float) -> float | None:
    """Seconds; None where nobody told the load yet."""
    return round(max(0.0, now - at_s), 3) if isfinite(at_s) else None
