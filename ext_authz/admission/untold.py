"""What has ended though nobody has told yet: the access log is late, or silent.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import inf, sqrt

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.ledger import Ledger, Reservation
from ext_authz.admission.view import PoolState
from ext_authz.estimation.lag import ReportLag

# Below this lag what has ended is told soon enough not to matter.
MATERIAL_LAG_S = 0.05
# A gauge that is older says nothing of now.
FRESH_GAUGE_S = 0.5
# Of more open requests than this every second, third, ... is asked.
MOST_ASKED = 250
# So many ends that should have been told while nothing was say that the log is silent: by chance
# none of three would be told once in twenty times (exp(-3)).
SILENT_ENDS = 3.0
# Below this part lost entries do not matter; each end counts so much in it.
MATERIAL_LOSS, LOST_WEIGHT = 0.003, 0.005
# A silence is remembered so long: what ran then has been ended by its lease.
LONGEST_LEASE_S = 600.0


class Silence:
    """What is never told: all that ended while nothing was told, from `from_s` to `to_s` (which is
    now while that goes on) and was not told when the log came back, and of all else `lost_ratio`.
    Their leases end them."""

    __slots__ = ("from_s", "lost_ratio", "now", "to_s")

    def __init__(self) -> None:
        self.from_s = self.to_s = -inf
        self.now = False
        self.lost_ratio = 0.0

    def ended(self, opened_s: float, told: bool) -> None:
        """A booking was ended by what was told, or else by its lease."""
        if told or opened_s >= self.to_s:
            self.lost_ratio += LOST_WEIGHT * ((0.0 if told else 1.0) - self.lost_ratio)

    def look(self, told_s: float, heard_within_s: float, now: float) -> None:
        """The last end was told at `told_s`; while that is no longer ago than `heard_within_s` the
        log is not silent."""
        self.now = told_s > -inf and now - told_s > heard_within_s
        if self.now:
            self.from_s, self.to_s = told_s, now

    def over(self, now: float) -> bool:
        """Whether no request can be open that ran meanwhile."""
        return now - self.to_s > LONGEST_LEASE_S


def estimate_untold(
    ledger: Ledger, pools: Mapping[str, PoolState], lag: ReportLag, silence: Silence, now: float
) -> None:
    """How many requests of each endpoint are over though nobody has told yet.

    Matters only where the access log is late, or is or was silent. Two things tell: by its age each
    open request is still running with some chance (`_running`), and a fresh gauge shows what the
    engine holds, to which is added what was let in since, less what has ended since. The gauge is
    more exact where it is alive, but it can be stuck: of what it shows, no less is believed than
    what the ages say, less two standard deviations.
    """
    mean_s = lag.mean_s or 0.0
    if mean_s < MATERIAL_LAG_S:
        mean_s = 0.0
    ages: dict[int, _Ages] = {}
    if mean_s or silence.lost_ratio >= MATERIAL_LOSS or not silence.over(now):
        ages = _asked(ledger, pools, mean_s, silence, now)
    if silence.now and sum(seen.ended for seen in ages.values()) < SILENT_ENDS:
        # Long requests end rarely: that nothing is told means nothing.
        ages = {}
    for pool in pools.values():
        for endpoint in pool.endpoints:
            seen = ages.get(id(endpoint))
            untold = 0.0 if seen is None else endpoint.own - _believed(seen, endpoint, now)
            endpoint.set_untold(max(0.0, untold))


def _asked(
    ledger: Ledger, pools: Mapping[str, PoolState], mean_s: float, silence: Silence, now: float
) -> dict[int, _Ages]:
    """By endpoint, what its open requests say."""
    ages: dict[int, _Ages] = {}
    step = 1 + len(ledger) // MOST_ASKED
    for reservation in islice(ledger, 0, None, step):
        for charge in reservation.later:
            # When a later stage of a pipeline ends nobody knows: it counts.
            ages.setdefault(id(charge.endpoint), _Ages()).running += step
        if reservation.pool in pools and reservation.stay is not None:
            seen = ages.setdefault(id(reservation.endpoint), _Ages())
            pool = pools[reservation.pool]
            chance = _running(reservation, pool, mean_s, silence, now)
            seen.running += step * chance
            seen.ended += step * (1.0 - chance)
            seen.variance += step * chance * (1.0 - chance)
            sample = reservation.endpoint.sample
            if sample is not None:
                seen.since += step * chance * _since(reservation, pool, sample.at_s, now)
    return ages


class _Ages:
    """What the ages of an endpoint's open requests say: expected to run, its variance, expected to
    have ended, and by how many more run than at the last sample."""

    __slots__ = ("ended", "running", "since", "variance")

    def __init__(self) -> None:
        self.running = 0.0
        self.ended = 0.0
        self.variance = 0.0
        self.since = 0.0


def _running(
    reservation: Reservation, pool: PoolState, mean_lag_s: float, silence: Silence, now: float
) -> float:
    """The chance that an open request of age a still runs: S(a), the part of its like that takes
    longer, beside those that ended and are not told of: all that ended in a silence, and of those
    that ended over the last flush interval (twice the mean lag) those whose flush is still to
    come, and those whose entries are lost. After a silence what was told late is known, and only a
    fresh gauge shows how much."""
    stay = reservation.stay
    if stay is None or stay.forecast is None:
        return 1.0
    endpoint, expected_s = reservation.endpoint, stay.forecast.e2e_s
    residuals = pool.predictor.e2e[stay.forecast.queued]

    def beyond(at_s: float) -> float:
        lived_s = at_s - stay.entered_s
        return residuals.beyond(max(0.0, lived_s) / endpoint.thermal_factor, expected_s)

    running, over, told_s = beyond(now), 0.0, -inf
    if stay.entered_s < silence.to_s and (silence.now or _is_fresh(endpoint, now)):
        over, told_s = beyond(silence.from_s) - beyond(silence.to_s), silence.to_s
    if mean_lag_s and not silence.now:
        window_s = min(now - max(stay.entered_s, told_s), 2.0 * mean_lag_s)
        untold = 1.0 - window_s / (4.0 * mean_lag_s)
        over += untold * max(0.0, beyond(now - window_s) - running)
    over = max(over, silence.lost_ratio * (1.0 - running))
    return running / (running + over) if over > 0.0 else 1.0


def _since(reservation: Reservation, pool: PoolState, sampled_s: float, now: float) -> float:
    """What an open request adds to a gauge that was read at `sampled_s`, for each chance that it
    runs now: 1 if it came later, and else less than nothing, for those of its like that have ended
    since."""
    stay = reservation.stay
    if stay is None or stay.entered_s > sampled_s:
        return 1.0
    if stay.forecast is None:
        return 0.0
    cool, expected_s = reservation.endpoint.thermal_factor, stay.forecast.e2e_s
    residuals = pool.predictor.e2e[stay.forecast.queued]
    then = residuals.beyond((sampled_s - stay.entered_s) / cool, expected_s)
    return 1.0 - then / residuals.beyond((now - stay.entered_s) / cool, expected_s)


def _believed(seen: _Ages, endpoint: EndpointState, now: float) -> float:
    """Our own requests that still run."""
    sample = endpoint.sample
    if sample is None or sample.load is None or not _is_fresh(endpoint, now):
        return seen.running
    shown = max(0.0, sample.load - endpoint.foreign + seen.since)
    return max(shown, seen.running - 2.0 * sqrt(seen.variance))


def _is_fresh(endpoint: EndpointState, now: float) -> bool:
    sample = endpoint.sample
    return sample is not None and sample.load is not None and now - sample.at_s <= FRESH_GAUGE_S
