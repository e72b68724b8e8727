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
    signals = _signals(sample, now)
    device = snapshot.devices.get(sample.device or "")
    if device is not None:
        # As old as what is known of the card: the factor is made of its clocks.
        signals["thermal_factor"] = {
            "value": sample.thermal_factor,
            "age_s": _age(device.at_s, now),
            "source": device.source,
        }
    # All models' gauges come from whoever told the load.
    told = {"age_s": _age(sample.at_s, now), "source": sample.source}
    return {
        "state": state,
        "age_s": _age(sample.at_s, now),
        "device": sample.device,
        "signals": signals,
        "models": {
            name: {
                "running": m.running,
                "waiting": m.waiting,
                "kv_usage_ratio": m.kv_usage_ratio,
                **told,
            }
            for name, m in sample.by_model.items()
        },
        "trends": {name: _trend(name, trend, sample, now) for name, trend in trends.items()},
    }


def _trend(name: str, trend: Trend, sample: EndpointSample, now: float) -> dict[str, Any]:
    """A trend, and how old the newest number in it is. Its source is that of this number now."""
    origin = sample.origins.get(name)
    return {
        "mean": trend.mean,
        "slope_per_s": trend.slope_per_s,
        "history_s": trend.history_s,
        "age_s": _age(sample.at_s if origin is None else origin.at_s, now),
        "source": sample.source if origin is None else origin.source,
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
