"""What a configuration says of the time when there is not enough for all: frozen values.

PURE. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Bounds of the hint a refused client gets: never under a true wait, never over `cap_s`."""

    cap_s: float = 60.0


class Mode(StrEnum):
    """What decides whether a request will be in time.

    `PREDICTIVE`: what was learned of how long requests take. `REACTIVE`: gauges and means only,
    as they are now. `HYBRID`: the first while it has been right lately, else the second.
    """

    PREDICTIVE = "predictive"
    REACTIVE = "reactive"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class ReactiveRules:
    """More than `most_waiting` requests in an engine's own queue say that it is full, whatever its
    slots; engines of fixed shape may have a batch for each instance besides. With `mean_latency`
    the mean wait and execution must keep the promise as well.

    `most_waiting` 2: a gauge that is read between two steps of an engine shows one or two that
    are about to begin.
    """

    most_waiting: float = 2.0
    mean_latency: bool = True


@dataclass(frozen=True, slots=True)
class HybridRules:
    """When predictions are acted on: once the median of their relative error is at most
    `trust_error_ratio`, until it is over `doubt_error_ratio`.

    What an answer's length will be is not known, which alone makes an error of a third on common
    traffic (docs/prediction.md), so the bounds lie above that.
    """

    trust_error_ratio: float = 0.5
    doubt_error_ratio: float = 0.75
