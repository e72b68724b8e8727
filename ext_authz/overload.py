"""What a configuration says of the time when there is not enough for all: frozen values.

PURE. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Bounds of the hint a refused client gets: never under a true wait, never over `cap_s`."""

    cap_s: float = 60.0
