"""What a policy may look at: one request against one endpoint of one pool, read only."""

from __future__ import annotations

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.shares import Flow, Shares
from ext_authz.model import Evidence, InferenceRequest, WorkEstimate, value
from ext_authz.settings import Pool, RequestType, Tenant


@value
class Ask:
    """One request with everything resolved that does not depend on load.

    `pools` is where it may run in order of preference: the first, then its chain of demotion.
    `slo_s` is the end-to-end promise (a client's deadline may have shortened it), None if none.
    """

    id: str
    tenant: Tenant
    type: RequestType
    request: InferenceRequest
    estimate: WorkEstimate
    pools: tuple[Pool, ...]
    slo_s: float | None


class PoolState:
    """One pool's live numbers. Only the controller changes them."""

    __slots__ = ("endpoints", "shares", "spec")

    def __init__(self, spec: Pool, endpoints: tuple[EndpointState, ...]) -> None:
        self.spec = spec
        self.endpoints = endpoints
        self.shares = Shares(spec.slots)


class View:
    """An ask, the pool and the endpoint it would go to, with predictions filled in.

    `allowed` is how many slots the flow may hold (see `Shares.allowance`).
    """

    __slots__ = (
        "allowed",
        "ask",
        "endpoint",
        "execution_s",
        "fallback",
        "flow",
        "margin_s",
        "occupied",
        "pool",
        "pool_load",
        "reserve_ratio",
        "wait_s",
    )

    def __init__(self, ask: Ask, pool: PoolState, endpoint: EndpointState, flow: Flow) -> None:
        self.ask = ask
        self.pool = pool
        self.endpoint = endpoint
        self.flow = flow
        self.pool_load = 0.0
        self.allowed = 0.0
        self.occupied = 0.0
        self.margin_s = 0.0
        self.reserve_ratio = 0.0
        self.wait_s = 0.0
        self.execution_s: float | None = None
        self.fallback = False

    @property
    def slots(self) -> int:
        """Slots of the pool's endpoints that can be used now."""
        return self.pool.shares.slots

    @property
    def hopeless(self) -> bool:
        """Whether it would be late without any wait: room kept for its like would stand idle."""
        if self.ask.slo_s is None or self.execution_s is None:
            return False
        return self.execution_s > self.ask.slo_s - self.margin_s

    def evidence(self) -> Evidence:
        """The numbers looked at, for the journal and `explain`."""
        return Evidence(
            in_flight=self.pool_load,
            slots=self.slots,
            wait_s=self.wait_s if self.execution_s is not None else None,
            execution_s=self.execution_s,
            budget_s=None if self.ask.slo_s is None else self.ask.slo_s - self.margin_s,
            tenant_in_flight=self.flow.used,
            tenant_limit=self.allowed,
        )
