"""What teaches an endpoint how much it may carry: its counters, its outcomes, promises kept.

PURE.
"""

from __future__ import annotations

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.ledger import Reservation
from ext_authz.admission.limits import PROMPT_TOKEN
from ext_authz.admission.view import PoolState
from ext_authz.estimation.latency.features import Work
from ext_authz.estimation.latency.queueing import FIXED_SHAPE
from ext_authz.snapshot import EndpointSample


def told(endpoint: EndpointState, sample: EndpointSample) -> None:
    """Telemetry of the endpoint has come. What one of several on a device does depends on the
    others, so that they are not taught."""
    if not endpoint.peers:
        endpoint.knee.told(sample, endpoint.execution_s, endpoint.foreign)
        endpoint.bound()


def ended(pool: PoolState, reservation: Reservation, seconds: float, work: Work) -> None:
    """A request that turned out to be `work` was served in `seconds`."""
    stay, endpoint = reservation.stay, reservation.endpoint
    if stay is None or endpoint.peers:
        return
    done = 1.0
    if pool.spec.engine not in FIXED_SHAPE:
        done = work.output_tokens + PROMPT_TOKEN * work.prompt_tokens
    load, life_s = stay.lived.in_flight + 1.0, endpoint.execution_s or seconds
    endpoint.knee.ended(load, done, seconds, life_s, reservation.opened_s + seconds)
    endpoint.bound()


def judged(reservation: Reservation, kept: bool) -> None:
    """A request with a promise is over."""
    stay, endpoint = reservation.stay, reservation.endpoint
    endpoint.knee.judged(kept)
    endpoint.trials.judged(kept, None if stay is None else stay.tried)
