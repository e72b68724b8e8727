"""Which endpoint of a pool a request would go to: the least loaded that can take it.

PURE. Endpoints without fresh telemetry are left out while others have it; when none has, the
caller's fallback decides, under the cap of our own work in flight.
"""

from __future__ import annotations

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.view import PoolState
from ext_authz.model import Reason, value
from ext_authz.settings import FallbackAction, PriorityClass


@value
class Choice:
    """An endpoint, or the reason there is none, and the `slots` and the `load` of all that were
    in question, those that are over though nobody has told counted in both: they are still on the
    books. `occupied` are the requests on the endpoint's device. `fallback`: chosen without
    telemetry."""

    endpoint: EndpointState | None
    reason: Reason | None = None
    fallback: bool = False
    slots: int = 0
    load: float = 0.0
    occupied: float = 0.0


def choose(
    pool: PoolState, tokens: int, now: float, ahead: tuple[EndpointState, ...] = ()
) -> Choice:
    """The endpoint whose device is the least occupied, among those with fresh enough telemetry
    and memory. Those `ahead` hold one request more than they know, each time they are named."""
    spec = pool.spec
    staleness = spec.staleness
    since_s = now - staleness.lifetime_s
    best: EndpointState | None = None
    least = load = occupied = untold = 0.0
    slots = 0
    fits = False
    for endpoint in pool.endpoints:
        own_load = endpoint.believed(staleness, now)
        if own_load is None:
            continue
        on_device = own_load + beside(endpoint, ahead) if ahead else own_load
        if endpoint.peers:
            on_device += endpoint.peers_load(staleness, now)
        own_slots = endpoint.spec.max_concurrency
        load += own_load
        slots += own_slots
        untold += endpoint.untold
        if not endpoint.fits(tokens):
            continue
        fits = True
        kv_ratio = endpoint.kv_ratio_with(tokens, since_s)
        # Alone on the endpoint, a request that fits is served however large.
        if kv_ratio is not None and kv_ratio > spec.kv_guard_ratio and endpoint.load >= 0.5:
            continue
        if best is None or on_device / own_slots < least:
            best, least, occupied = endpoint, on_device / own_slots, on_device
    if best is not None:
        booked = slots + round(untold)
        return Choice(best, slots=booked, load=load + untold, occupied=occupied)
    if fits:
        return Choice(None, Reason.KV_MEMORY)
    if slots == 0:
        return Choice(None, Reason.TELEMETRY_LOST)
    # It is too large for ever only if it is for the endpoints that are away as well.
    waits = any(endpoint.fits(tokens) for endpoint in pool.endpoints)
    return Choice(None, Reason.NO_ENDPOINT if waits else Reason.TOO_LARGE)


def beside(endpoint: EndpointState, ahead: tuple[EndpointState, ...]) -> int:
    """How many of `ahead` are on the device of `endpoint`, or are it."""
    return sum(other is endpoint or other in endpoint.peers for other in ahead)


def choose_blind(pool: PoolState) -> Choice:
    """The endpoint with the least of our own work; what telemetry said last is not believed."""
    best = min(pool.endpoints, key=lambda e: e.own / e.spec.max_concurrency, default=None)
    if best is None:
        return Choice(None, Reason.NO_ENDPOINT)
    own = sum(endpoint.own for endpoint in pool.endpoints)
    return Choice(
        best, fallback=True, slots=pool.spec.slots, load=float(own), occupied=float(best.own)
    )


def admits_blind(action: FallbackAction, priority: PriorityClass, demoted: bool) -> bool:
    """Whether `action` lets a request of `priority` into a pool without telemetry.

    `demoted`: it has been sent on from another pool already, which is all that
    `demote_low_priority` asks for.
    """
    if action is FallbackAction.REJECT_ALL:
        return False
    if action is FallbackAction.ADMIT_ALL or priority > PriorityClass.LOW:
        return True
    return action is FallbackAction.DEMOTE_LOW_PRIORITY and demoted
