"""Reads single fields of a feedback message, believing none of them.

PURE. A field that cannot be used is None, and counted by reason in the counter that is handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

import jiter

from ext_authz.errors import TelemetryError

MAX_BYTES = 64 * 1024
"""Longest heartbeat, encoded."""

MAX_NAME_LENGTH = 256
MAX_AGE_S = 3600.0
"""A measurement older than this, or of no age, is not a measurement."""

MOST = 1e15
_BOUNDS = (
    ("_ratio", 0.0, 1.0),
    ("_per_s", 0.0, MOST),
    ("_s", 0.0, 1e6),
    ("_c", -100.0, 1000.0),
    ("_mhz", 0.0, 1e6),
    ("_w", 0.0, 1e6),
    ("", 0.0, MOST),
)
"""What can be believed of a number, by the unit that its name ends in."""

# A ratio that rounding took past its bound is at the bound.
_ROUNDING = 1.01


@lru_cache(maxsize=256)
def bounds(field: str) -> tuple[float, float]:
    """Least and most that the number called `field` can be."""
    return next((low, high) for unit, low, high in _BOUNDS if field.endswith(unit))


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`. Raises TelemetryError if it is anything else, or too long."""
    if len(data) > MAX_BYTES:
        raise TelemetryError(f"a message longer than {MAX_BYTES} bytes")
    try:
        message = jiter.from_json(data, cache_mode="none")
    except (ValueError, RecursionError) as error:
        raise TelemetryError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise TelemetryError("a message that is not a JSON object")
    return message


def as_entries(value: object, most: int, dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    """The objects in a list; what is none, or too many, is counted."""
    if value is None:
        return
    if not isinstance(value, list):
        dropped["malformed"] += 1
        return
    if len(value) > most:
        dropped["too_many"] += len(value) - most
    for entry in value[:most]:
        if isinstance(entry, dict):
            yield entry
        else:
            dropped["malformed"] += 1


def as_name(value: object) -> str | None:
    """A name fit for logs, labels and keys."""
    fit = isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH and value.isprintable()
    return value if fit and isinstance(value, str) else None


def as_age_s(entry: Mapping[str, object]) -> float | None:
    """The age of what an entry says. None: it cannot be dated, and is of no use."""
    value = entry.get("age_ms")
    if not _is_number(value) or not 0 <= value <= MAX_AGE_S * 1000:
        return None
    return value / 1000


def as_flag(entry: Mapping[str, object], field: str, dropped: Counter[str]) -> bool | None:
    """A yes or no."""
    value = entry.get(field)
    if value is None or isinstance(value, bool):
        return value
    dropped["malformed"] += 1
    return None


def as_number(entry: Mapping[str, object], field: str, dropped: Counter[str]) -> float | None:
    """A finite number within the bounds of its field."""
    value = entry.get(field)
    if value is None:
        return None
    if not _is_number(value):
        dropped["malformed"] += 1
        return None
    low, high = bounds(field)
    # Compared before it is made a float, which an integer may be too long for.
    if not low <= value <= (_ROUNDING if high == 1.0 else high):
        dropped["out_of_range"] += 1
        return None
    return min(float(value), high)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
