"""The explicit limits of tenants and types: requests, tokens, concurrency.

PURE. `look` changes nothing; `charge` takes from every limit at once, after all have agreed.
Buckets survive a reload, and for a while the removal of their tenant, so that neither refills.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ext_authz.admission.appointments import Prospect
from ext_authz.admission.buckets import TokenBucket
from ext_authz.admission.ledger import Ledger
from ext_authz.model import LimitState, Reason, WorkEstimate
from ext_authz.settings import RequestType, Tenant, TenantLimits

# A tenant taken out of the configuration and put back within this time keeps its buckets.
REMEMBER_S = 600.0
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that said no, and what there is to wait for."""

    reason: Reason
    prospect: Prospect
    limit: LimitState


class _Account:
    """One tenant's buckets. `is_free`: there is no limit of its own."""

    __slots__ = ("is_free", "removed_s", "requests", "tokens")

    def __init__(self) -> None:
        self.is_free = True
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.removed_s: float | None = None

    def configure(self, limits: TenantLimits, now: float) -> None:
        self.requests = _bucket(
            self.requests, limits.requests_per_second, limits.request_burst, now
        )
        per_s = None if limits.tokens_per_minute is None else limits.tokens_per_minute / MINUTE_S
        self.tokens = _bucket(self.tokens, per_s, limits.token_burst, now)
        capped = limits.max_concurrent is not None
        self.is_free = self.requests is None and self.tokens is None and not capped
        self.removed_s = None


def _bucket(
    bucket: TokenBucket | None, rate: float | None, burst: float, now: float
) -> TokenBucket | None:
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, burst, now)
    bucket.reconfigure(rate, burst, now)
    return bucket


class TenantLimitBook:
    """The accounts of all tenants."""

    def __init__(self, tenants: Mapping[str, Tenant], now: float) -> None:
        self._accounts: dict[str, _Account] = {}
        self.reconfigure(tenants, now)

    def reconfigure(self, tenants: Mapping[str, Tenant], now: float) -> None:
        """Take new limits; levels stay."""
        for name, tenant in tenants.items():
            self._accounts.setdefault(name, _Account()).configure(tenant.limits, now)
        for name in list(self._accounts.keys() - tenants.keys()):
            account = self._accounts[name]
            if account.removed_s is None:
                account.removed_s = now
            elif now - account.removed_s > REMEMBER_S:
                del self._accounts[name]

    def look_early(self, tenant: Tenant, ledger: Ledger, now: float) -> Breach | None:
        """The first limit that any request of the tenant would break, whatever it asks for."""
        cap = tenant.limits.max_concurrent
        if cap is not None and ledger.by_tenant[tenant.name] >= cap:
            return _concurrency(Reason.TENANT_CONCURRENCY, cap)
        bucket = self._accounts[tenant.name].requests
        return None if bucket is None else _rate(Reason.REQUEST_RATE, "requests", bucket, 1.0, now)

    def look(
        self,
        tenant: Tenant,
        type_: RequestType,
        estimate: WorkEstimate,
        ledger: Ledger,
        now: float,
    ) -> Breach | None:
        """The first limit that this request would break, if any."""
        account, cap = self._accounts[tenant.name], type_.max_concurrent
        if account.is_free and cap is None:
            return None
        breach = self.look_early(tenant, ledger, now)
        if breach is not None:
            return breach
        if cap is not None and ledger.by_type[type_.name] >= cap:
            return _concurrency(Reason.TYPE_CONCURRENCY, cap)
        bucket = account.tokens
        if bucket is None:
            return None
        return _rate(Reason.TOKEN_RATE, "tokens", bucket, estimate.tokens, now)

    def charge(self, tenant: str, estimate: WorkEstimate, now: float) -> None:
        """Charge an admitted request; `look` found no breach at this `now`."""
        account = self._accounts[tenant]
        if account.is_free:
            return
        if account.requests is not None:
            account.requests.take(1.0, now)
        if account.tokens is not None:
            account.tokens.take(estimate.tokens, now)

    def standing(self, tenant: str, now: float) -> tuple[LimitState, ...]:
        """What is left of the tenant's own rates."""
        account, states = self._accounts[tenant], []
        for name, bucket in (("requests", account.requests), ("tokens", account.tokens)):
            if bucket is not None:
                states.append(_state(name, bucket, now))
        return tuple(states)

    def settle(self, tenant: str, charged: int, counted: int, at_s: float) -> None:
        """A request that was charged so many tokens was counted to have so many."""
        account = self._accounts.get(tenant)
        if account is not None and account.tokens is not None:
            account.tokens.settle(charged, counted, at_s)


def _concurrency(reason: Reason, cap: int) -> Breach:
    # Nobody knows when one of the caller's own requests ends; a second is the protocol's unit. No
    # window: it is no quota of so many a second.
    state = LimitState(name="concurrency", limit=cap, window_s=0.0, remaining=0.0)
    return Breach(reason, Prospect(reason.value, wait_s=1.0, per_s=float(cap)), state)


def _rate(reason: Reason, name: str, bucket: TokenBucket, cost: float, now: float) -> Breach | None:
    """The breach of a bucket that has not enough for `cost`; None if it has."""
    wait_s = bucket.wait_s(cost, now)
    if wait_s <= 0.0:
        return None
    work = bucket.charge_for(cost)
    prospect = Prospect(reason.value, wait_s, bucket.rate_per_s, work)
    return Breach(reason, prospect, _state(name, bucket, now))


def _state(name: str, bucket: TokenBucket, now: float) -> LimitState:
    """The quota as a client may plan with it: what a full bucket and its refill time allow."""
    window_s = bucket.burst / bucket.rate_per_s
    return LimitState(name, bucket.burst, window_s, bucket.level(now))
