"""Which endpoint of a pool a request would go to: the least loaded that can take it.

PURE. Endpoints without fresh telemetry are left out while others have it, unless they go on serving
what they are sent; when none has it, the caller's fallback decides, under the cap of our own work
in flight.
"""

from __future__ import annotations

from operator import itemgetter

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.memory import cache_tokens, room_tokens
from ext_authz.admission.roster import FEW, NO_MEMORY
from ext_authz.admission.view import PoolState
from ext_authz.model import Reason, value
from ext_authz.settings import FallbackAction, PriorityClass


@value
class Choice:
    """An endpoint, or the reason there is none, and the `slots` and the `load` of all that were
    in question, those that are over though nobody has told counted in both: they are still on the
    books. `occupied` are the requests on the endpoint's device, which has memory for so many
    `tokens`. `fallback`: chosen without telemetry, and without a word of memory."""

    endpoint: EndpointState | None
    reason: Reason | None = None
    fallback: bool = False
    slots: int = 0
    load: float = 0.0
    occupied: float = 0.0
    tokens: int = 0


def choose(
    pool: PoolState, tokens: int, now: float, ahead: tuple[EndpointState, ...] = ()
) -> Choice:
    """The endpoint whose device is the least pressed, among those with fresh enough telemetry
    and memory. Those `ahead` hold one request more than they know, each time they are named."""
    roster = pool.roster
    roster.catch_up(now)
    if not roster.told:
        return Choice(None, Reason.TELEMETRY_LOST)
    endpoint = None if ahead else roster.top()
    occupied = None if endpoint is None else roster.occupying(endpoint, tokens, now)
    if endpoint is None or occupied is None:
        # Those ahead change the order.
        places = [(place[1] / place[0].limit, place) for place in usable(pool, tokens, now, ahead)]
        if not places:
            return Choice(None, _why_none(pool, tokens, now))
        endpoint, occupied = min(places, key=itemgetter(0))[1]
    slots, load, untold = roster.slots, roster.load, roster.untold
    if untold:
        slots, load = slots + round(untold), load + untold
    return Choice(endpoint, None, False, slots, load, occupied, tokens)


def usable(
    pool: PoolState, tokens: int, now: float, ahead: tuple[EndpointState, ...] = ()
) -> list[tuple[EndpointState, float]]:
    """Those of the least pressed endpoints that have telemetry and memory for a request, and the
    requests on the device of each; one of the others if none of those has. The roster must be up
    to `now`."""
    roster, found = pool.roster, []
    if tokens > roster.largest:
        return []
    few = roster.least(FEW)
    for endpoint in few:
        occupied = roster.occupying(endpoint, tokens, now)
        if occupied is not None:
            found.append((endpoint, occupied + beside(endpoint, ahead)))
    if not found and len(few) == FEW:
        # Those whose memory seems full come last, and are not worth the walk.
        for endpoint in roster.least(len(roster.endpoints), NO_MEMORY)[FEW:]:
            occupied = roster.occupying(endpoint, tokens, now)
            if occupied is not None:
                return [(endpoint, occupied + beside(endpoint, ahead))]
    return found


def _why_none(pool: PoolState, tokens: int, now: float) -> Reason:
    spec, roster = pool.spec, pool.roster
    for endpoint in roster.endpoints if tokens <= roster.largest else ():
        if endpoint.fits(tokens) and roster.is_believed(endpoint):
            # Of the first that is known: which of them comes free first nobody knows.
            short = tokens > room_tokens(endpoint, *cache_tokens(endpoint, spec, now))
            return Reason.KV_MEMORY if short else Reason.DEVICE_MEMORY
    # It is too large for ever only if it is for the endpoints that are away as well.
    waits = tokens <= roster.largest_away and any(e.fits(tokens) for e in roster.endpoints)
    return Reason.NO_ENDPOINT if waits else Reason.TOO_LARGE


def beside(endpoint: EndpointState, ahead: tuple[EndpointState, ...]) -> int:
    """How many of `ahead` are on the device of `endpoint`, or are it."""
    return sum(other is endpoint or other in endpoint.peers for other in ahead)


def choose_blind(pool: PoolState, now: float) -> Choice:
    """The least pressed endpoint: where none has telemetry one that serves, else that with the
    least of our own work. For the pool only our own books count, not what telemetry said last."""
    roster = pool.roster
    roster.catch_up(now)
    if (best := roster.top()) is not None:
        own, all_own = float(best.own), float(roster.own)
        return Choice(best, fallback=True, slots=roster.most, load=all_own, occupied=own)
    return Choice(None, Reason.NO_ENDPOINT)


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
