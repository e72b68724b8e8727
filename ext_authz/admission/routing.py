"""Where in a pool a request would go: to the endpoint on which it is least likely to be late.

PURE, and changes nothing but what time has changed. The least pressed endpoint comes first. It is
taken as it is while nothing is to be feared there. Else the next one is looked at as well, and of
two that take the request the one with the lower risk is chosen (the power of two choices, by risk):
it may be of slower silicon, throttled, or full of long prompts. One that objects is passed over
for the next, so that a pool refuses only what none of the endpoints that were looked at would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ext_authz.admission import foresight
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.looking import instead
from ext_authz.admission.roster import FEW
from ext_authz.admission.view import View
from ext_authz.model import Reason

# Reasons that are about one endpoint; all others are about the pool, whichever is chosen.
OF_ENDPOINT = frozenset({Reason.AT_CAPACITY, Reason.SLO_UNREACHABLE})

# Endpoints that have refused before, and of which nothing has changed since, are asked as long as
# no more than so many have refused this request.
MOST_VAIN = 1


@dataclass(slots=True)
class Look:
    """What was found of one pool: the `view`, None if nothing there can take the request; the
    first `objection`, and the first that counts (`binding`). `waived`: a rule that is off would
    have objected."""

    view: View | None
    objection: Reason | None = None
    binding: Reason | None = None
    waived: bool = False


def best(found: Look, judge: Callable[[View], Look], now: float) -> Look:
    """`found` of the least pressed endpoint, or what `judge` finds of a better one."""
    view = found.view
    if view is None or view.fallback:
        return found
    if found.objection is None:
        # A pool that does not act on predictions has no forecast.
        if view.forecast is None or not view.risk or view.is_safest:
            return found
        return _safer(found, view, judge, now)
    if found.objection not in OF_ENDPOINT:
        return found
    _put_off(found)
    for vain, (endpoint, occupied) in enumerate(_others(view, FEW, now)):
        if vain >= MOST_VAIN and view.pool.roster.is_put_off(endpoint):
            break
        other = judge(instead(view, endpoint, occupied, now))
        if other.objection is None:
            return other
        _put_off(other)
        if found.binding is not None and other.binding is None:
            found = other
    return found


def _put_off(found: Look) -> None:
    if found.view is not None and found.objection is Reason.SLO_UNREACHABLE:
        found.view.pool.roster.put_off(found.view.endpoint)


def _safer(found: Look, view: View, judge: Callable[[View], Look], now: float) -> Look:
    """`found`, or what is found of the next endpoint if the risk is lower there."""
    risk = view.risk or 0.0
    for endpoint, occupied in _others(view, 2, now):
        if foresight.glance(view, endpoint, occupied, now) < risk:
            other = judge(instead(view, endpoint, occupied, now))
            if other.objection is None:
                return other
    return found


def _others(view: View, many: int, now: float) -> Iterator[tuple[EndpointState, float]]:
    """Of the first so many endpoints those but the one of `view` that have telemetry, memory and
    a free slot, and the requests on the device of each."""
    roster, tokens = view.pool.roster, view.tokens
    for endpoint in roster.least(many):
        if endpoint is not view.endpoint and endpoint.load + 0.5 <= endpoint.limit:
            occupied = roster.occupying(endpoint, tokens, now)
            if occupied is not None and occupied + 0.5 <= endpoint.limit:
                yield endpoint, occupied
