"""Refusals: when to come back, and what the shares are told of the demand that was not met.

PURE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from random import Random

from ext_authz.admission.answers import early_refusal, refusal
from ext_authz.admission.appointments import Appointments, Prospect
from ext_authz.admission.flows import Flow, FlowKey
from ext_authz.admission.hammering import Hammering, Record, is_excess, note
from ext_authz.admission.looking import holds
from ext_authz.admission.measures import Count
from ext_authz.admission.policies import HOLDABLE, demotion, latency
from ext_authz.admission.tenant_limits import Breach
from ext_authz.admission.view import Ask, Caller, PoolState, View
from ext_authz.model import Decision, Reason, RetryHint
from ext_authz.overload import Demotion, RetryRules
from ext_authz.settings import Tenant

FOR_SLOTS = frozenset({Reason.AT_CAPACITY, Reason.OVER_SHARE})
STANDING_BACK = frozenset({Reason.YIELDING, Reason.PAUSED})
# Stands in for the mean execution in a retry hint while nothing has finished yet.
UNKNOWN_EXECUTION_S = 1.0
# No time to return.
AT_ONCE = RetryHint(0.0, 0.0)


class Refuser:
    """Makes refusals. `rules` may be replaced; what is remembered of callers stays. `waiting_of`
    tells how many of a flow wait for a pool."""

    def __init__(
        self, rules: RetryRules, rng: Random, waiting_of: Callable[[str, FlowKey], int]
    ) -> None:
        self.rules = rules
        self._waiting_of = waiting_of
        self.hammering = Hammering(rng)
        self._appointments = Appointments(rng)

    def refuse(
        self,
        ask: Ask,
        view: View | None,
        reason: Reason,
        pools: Mapping[str, PoolState],
        now: float,
    ) -> Decision:
        """Refuse `ask` for what was seen of a pool, if anything was."""
        if reason is Reason.TOO_LARGE:
            return refusal(ask, view, reason, None, holds(ask, pools))
        prospect = _prospect(ask, view, pools)
        if view is not None and reason in STANDING_BACK:
            shares = view.pool.shares
            least_s = shares.yielding.delay_s(view.flow, shares.rules, now)
            prospect = replace(prospect, wait_s=max(prospect.wait_s, least_s))
        retry, record = self._retry(ask.tenant, ask.caller, prospect, now)
        if view is not None and reason in FOR_SLOTS:
            view.flow.short_s = now
        pressed(view, now, retry)
        if view is not None:
            record.waiting = 0
            if reason in HOLDABLE:
                record.waiting = self._waiting_of(view.pool.spec.name, view.flow.key)
            further = () if demotion(ask) is Demotion.FORBIDDEN else ask.pools[1:]
            note(record, view, [pools[spec.name] for spec in further], reason, now)
            shares = view.pool.shares
            if reason is Reason.SLO_UNREACHABLE and not view.hopeless:
                shares.fullness.felt(view.pool_load, shares.slots, now)
            elif reason is Reason.OVER_SHARE and shares.fullness.known and latency(view) is None:
                shares.fullness.had_room(view.pool_load, shares.slots, now)
        return refusal(ask, view, reason, retry, None)

    def by_limit(self, ask: Ask, breach: Breach, now: float) -> Decision:
        """Refuse `ask` for a limit of its tenant or type."""
        retry, _ = self._retry(ask.tenant, ask.caller, breach.prospect, now)
        return refusal(ask, None, breach.reason, retry, breach.limit)

    def early(self, tenant: Tenant, caller: Caller, breach: Breach, now: float) -> Decision:
        """Refuse any request of `tenant`, whatever it asks for."""
        retry, _ = self._retry(tenant, caller, breach.prospect, now)
        return early_refusal(tenant, breach.reason, retry, breach.limit)

    def unread(
        self, tenant: Tenant, caller: Caller, pools: Mapping[str, PoolState], now: float
    ) -> Decision | None:
        """Refuse what is in excess of a key that hammers; None if it has to be read."""
        record = self.hammering.excess(tenant.name, caller, now)
        if record is None or record.flow is None or (pool := pools.get(record.pool)) is None:
            return None
        # It is demand, and may itself show that there is more to be had.
        last = record.flow
        flow = pool.shares.flow(last.key, last.weight, now, last.priority)
        waiting = self._waiting_of(record.pool, flow.key)
        if not is_excess(record, flow, pool, waiting, now) or self.hammering.is_read(
            tenant.name, caller, record
        ):
            return None
        prospect = _of_flow(pool, flow, record)
        retry, _ = self._retry(tenant, caller, prospect, now)
        pool.shares.refused(flow, retry, now)
        if (endpoint := record.endpoint) is not None:
            endpoint.knee.refused(endpoint.load + 1.0 >= endpoint.limit, now)
        pool.measures.count(Count.REFUSED, now)
        return early_refusal(tenant, Reason.HAMMERING, retry)

    def _retry(
        self, tenant: Tenant, caller: Caller, prospect: Prospect, now: float
    ) -> tuple[RetryHint, Record]:
        retry = self._appointments.book(tenant.name, caller, prospect, self.rules.cap_s, now)
        pace_per_s = prospect.per_s / prospect.work
        return retry, self.hammering.refused(tenant.name, caller, retry, pace_per_s, now)


def _prospect(ask: Ask, view: View | None, pools: Mapping[str, PoolState]) -> Prospect:
    """What `ask` waits for. Where no endpoint could be looked at, for want of memory or of news,
    nobody knows when that ends: not before one request has run, and then for any slot."""
    if view is not None:
        return _of_flow(view.pool, view.flow, view)
    if not ask.pools:
        return Prospect("", UNKNOWN_EXECUTION_S, 1.0 / UNKNOWN_EXECUTION_S)
    pool = pools[ask.pools[0].name]
    known_s = [endpoint.execution_s or 0.0 for endpoint in pool.endpoints]
    execution_s = max(known_s, default=0.0) or UNKNOWN_EXECUTION_S
    return Prospect(f"{pool.spec.name}:", execution_s, max(1, pool.spec.slots) / execution_s)


def _of_flow(pool: PoolState, flow: Flow, seen: View | Record) -> Prospect:
    """A slot of the flow's own share comes free once in a while. Whatever is configured, the pool
    has no more of them than it held just now, or than the endpoint may."""
    most = inf if seen.endpoint is None else max(seen.pool_load, seen.endpoint.limit)
    slots = max(1.0, min(pool.shares.returning_share(flow), most))
    gap_s = (seen.execution_s or UNKNOWN_EXECUTION_S) / slots
    scope = f"{pool.spec.name}:{flow.key[1]}"
    return Prospect(scope, gap_s + seen.wait_s, 1.0 / gap_s, 1.0, slots, flow.let_in, flow.since_s)


def short_of(view: View | None, now: float) -> None:
    """Tell an endpoint that there is more to do than it was given; of shares nothing is said."""
    if view is not None:
        view.endpoint.knee.refused(view.occupied + 1.0 >= view.endpoint.limit, now)


def pressed(view: View | None, now: float, retry: RetryHint | None = None) -> None:
    """Tell the shares that the flow wanted more than it got, and a full endpoint that there is more
    to do."""
    short_of(view, now)
    if view is not None and not view.hopeless:
        view.pool.shares.refused(view.flow, retry or AT_ONCE, now)
