"""Faults a load test can switch on while it runs.

PURE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from loadtest.backend.asks import BadAskError, Json


class MetricsMode(StrEnum):
    """What /metrics answers: the truth, the last page before the change for ever, or 404."""

    LIVE = "live"
    FROZEN = "frozen"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the backend now. `error_ratio` of all arrivals get 503 at once."""

    error_ratio: float = 0.0
    metrics: MetricsMode = MetricsMode.LIVE


@dataclass(frozen=True, slots=True)
class Command:
    """A control message: the faults from now on and perhaps a thermal change after a delay."""

    faults: Faults
    thermal_factor: float | None
    after_s: float


_FIELDS = frozenset({"thermal_factor", "after_s", "error_ratio", "metrics"})


def parse_command(body: Json, faults: Faults) -> Command:
    """What `body` changes about `faults`; fields left out stay as they are. Raises BadAskError."""
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise BadAskError(f"unknown field; known are {', '.join(sorted(_FIELDS))}", unknown[0][:64])
    if "error_ratio" in body:
        faults = replace(faults, error_ratio=_number(body, "error_ratio", 1.0))
    if "metrics" in body:
        mode = body["metrics"]
        if mode not in tuple(MetricsMode):
            raise BadAskError("metrics must be live, frozen or missing", "metrics")
        faults = replace(faults, metrics=MetricsMode(cast(str, mode)))
    factor = _number(body, "thermal_factor", 100.0) if "thermal_factor" in body else None
    after_s = _number(body, "after_s", 86_400.0) if "after_s" in body else 0.0
    return Command(faults, factor, after_s)


def _number(body: Json, field: str, most: float) -> float:
    value = body[field]
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0.0 <= cast(float, value) <= most:
        raise BadAskError(f"{field} must be a number between 0 and {most:g}", field)
    return float(cast(float, value))
