"""How a request would fare that waits at the gate: how fast room comes free, and how much time it
has.

PURE.
"""

from __future__ import annotations

from itertools import islice
from math import floor, inf, sqrt

from ext_authz.admission.flows import Flow
from ext_authz.admission.routing import Look
from ext_authz.admission.view import Ask, PoolState, View

# Endpoints of a pool that are asked for the mean execution when none was chosen.
MOST_ASKED = 8
# A request waits if it would then be in time more likely than so. Whether its promise holds is
# asked again when there is room for it.
LIKELY = 0.9


def likely_s(turns: int, gap_s: float) -> float:
    """The time in which so many slots come free with a chance of about five in six, if one does
    every `gap_s` on average: ends of requests are as irregular as arrivals, so the time until the
    k-th has a mean of k gaps and a deviation of the root of k."""
    return (turns + sqrt(turns)) * gap_s


def flow_of(ask: Ask, pool: PoolState, now: float) -> Flow:
    """The flow of `ask`, which wants something now."""
    key = (ask.tenant.name, ask.type.name)
    weight = ask.tenant.weight * ask.type.weight
    return pool.shares.flow(key, weight, now, ask.type.priority)


def execution_s(first: Look, pool: PoolState) -> float | None:
    """Mean execution there, None while nobody knows."""
    if first.view is not None:
        return first.view.execution_s
    known = (endpoint.execution_s for endpoint in islice(pool.endpoints, MOST_ASKED))
    return next((seconds for seconds in known if seconds is not None), None)


def load(first: Look, pool: PoolState) -> float:
    """Requests that the pool runs, at least one."""
    load = pool.shares.used if first.view is None else first.view.pool_load
    return max(1.0, load)


def spare_s(ask: Ask, view: View | None, execution_s: float) -> float:
    """How long `ask` could wait and still be in time at the present load."""
    if ask.slo_s is None:
        return inf
    if view is None:
        return ask.slo_s - execution_s
    if view.forecast is None:
        return ask.slo_s - view.margin_s - execution_s
    spread = view.pool.predictor.e2e[view.forecast.queued]
    within = spread.spread(LIKELY) if spread.known else 1.0
    expected_s = view.forecast.e2e_s * view.endpoint.thermal_factor
    return ask.slo_s - view.margin_s - within * expected_s


def most_turns(seconds: float, gap_s: float) -> int:
    """How many slots are likely to come free in `seconds`, if one does every `gap_s`."""
    root = 0.5 * (sqrt(1.0 + 4.0 * seconds / gap_s) - 1.0)
    return floor(root * root + 1e-9)
