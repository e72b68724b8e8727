"""Refusals: when to come back, and what the shares are told of the demand that was not met.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from ext_authz.admission.answers import early_refusal, refusal
from ext_authz.admission.appointments import Appointments, Prospect
from ext_authz.admission.looking import holds
from ext_authz.admission.tenant_limits import Breach
from ext_authz.admission.view import Ask, Caller, PoolState, View
from ext_authz.model import Decision, Reason, RetryHint
from ext_authz.overload import RetryRules
from ext_authz.settings import Tenant

STANDING_BACK = frozenset({Reason.YIELDING, Reason.PAUSED})
# Stands in for the mean execution in a retry hint while nothing has finished yet.
UNKNOWN_EXECUTION_S = 1.0


class Refuser:
    """Makes refusals. `rules` may be replaced; what is remembered of callers stays."""

    def __init__(self, rules: RetryRules, rng: Random) -> None:
        self.rules = rules
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
            least_s = view.pool.shares.delay_s(view.flow, now)
            prospect = replace(prospect, wait_s=max(prospect.wait_s, least_s))
        retry = self._retry(ask.tenant, ask.caller, prospect, now)
        pressed(view, now, retry)
        if view is not None and reason is Reason.SLO_UNREACHABLE and not view.hopeless:
            view.pool.shares.full(view.pool_load, now)
        return refusal(ask, view, reason, retry, None)

    def by_limit(self, ask: Ask, breach: Breach, now: float) -> Decision:
        """Refuse `ask` for a limit of its tenant or type."""
        retry = self._retry(ask.tenant, ask.caller, breach.prospect, now)
        return refusal(ask, None, breach.reason, retry, breach.limit)

    def early(self, tenant: Tenant, caller: Caller, breach: Breach, now: float) -> Decision:
        """Refuse any request of `tenant`, whatever it asks for."""
        retry = self._retry(tenant, caller, breach.prospect, now)
        return early_refusal(tenant, breach.reason, retry, breach.limit)

    def _retry(self, tenant: Tenant, caller: Caller, prospect: Prospect, now: float) -> RetryHint:
        return self._appointments.book(tenant.name, caller, prospect, self.rules.cap_s, now)


def _prospect(ask: Ask, view: View | None, pools: Mapping[str, PoolState]) -> Prospect:
    """A slot of the flow's own share comes free once in a while; of a pool that cannot be looked
    at, any slot."""
    if view is None:
        pool = pools[ask.pools[0].name] if ask.pools else None
        slots = max(1, pool.spec.slots) if pool else 1
        wait_s = UNKNOWN_EXECUTION_S / slots
        return Prospect(f"{pool.spec.name if pool else ''}:", wait_s, 1.0 / wait_s)
    flow = view.flow
    execution_s = view.execution_s or UNKNOWN_EXECUTION_S
    per_s = max(1.0, view.pool.shares.share(flow)) / execution_s
    wait_s = 1.0 / per_s + view.wait_s
    scope = f"{view.pool.spec.name}:{flow.key[1]}"
    return Prospect(scope, wait_s, per_s, 1.0, flow.let_in, flow.since_s)


def pressed(view: View | None, now: float, retry: RetryHint | None = None) -> None:
    """Tell the shares that the flow wanted more than it got."""
    if view is not None and not view.hopeless:
        view.pool.shares.refused(view.flow, retry or RetryHint(0.0, 0.0), now)
