"""Refusals: when to come back, and what the shares are told of the demand that was not met.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from ext_authz.admission.answers import early_refusal, refusal
from ext_authz.admission.looking import holds
from ext_authz.admission.retry_after import hint
from ext_authz.admission.tenant_limits import Breach, TenantLimitBook
from ext_authz.admission.view import Ask, PoolState, View
from ext_authz.model import Decision, Reason, RetryHint
from ext_authz.overload import RetryRules
from ext_authz.settings import Tenant

# Stands in for the mean execution in a retry hint while nothing has finished yet.
UNKNOWN_EXECUTION_S = 1.0


class Refuser:
    """Makes refusals. `rules` may be replaced; what is remembered of callers stays."""

    def __init__(self, limits: TenantLimitBook, rules: RetryRules, rng: Random) -> None:
        self.rules = rules
        self._limits = limits
        self._rng = rng

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
        execution_s, slots = UNKNOWN_EXECUTION_S, 1.0
        if view is not None:
            execution_s = view.execution_s or execution_s
            slots = max(1.0, view.pool.shares.share(view.flow))
        # A slot of the flow's own share comes free this often.
        gap_s = execution_s / slots
        wait = gap_s + (view.wait_s if view is not None else 0.0)
        retry = self._retry(ask.tenant, wait, 1.0 / gap_s, now)
        pressed(view, now, retry)
        return refusal(ask, view, reason, retry, None)

    def by_limit(self, ask: Ask, breach: Breach, now: float) -> Decision:
        """Refuse `ask` for a limit of its tenant or type."""
        retry = self._retry(ask.tenant, breach.wait_s, breach.drain_per_s, now)
        return refusal(ask, None, breach.reason, retry, breach.limit)

    def early(self, tenant: Tenant, breach: Breach, now: float) -> Decision:
        """Refuse any request of `tenant`, whatever it asks for."""
        retry = self._retry(tenant, breach.wait_s, breach.drain_per_s, now)
        return early_refusal(tenant, breach.reason, retry, breach.limit)

    def _retry(self, tenant: Tenant, wait: float, drain_per_s: float, now: float) -> RetryHint:
        cap_s = self.rules.cap_s
        herd = self._limits.herd(tenant.name).add(now, drain_per_s, cap_s)
        return hint(wait, herd, drain_per_s, cap_s, self._rng)


def pressed(view: View | None, now: float, retry: RetryHint | None = None) -> None:
    """Tell the shares that the flow wanted more than it got."""
    if view is not None and not view.hopeless:
        view.pool.shares.refused(view.flow, retry or RetryHint(0.0, 0.0), now)
