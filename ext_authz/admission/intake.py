"""From a parsed request to an `Ask`: tenant, type, pools and promise resolved.

PURE, and compiled once per configuration. What depends on load is none of its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ext_authz.admission.answers import early_refusal
from ext_authz.admission.pipelines import Pipelines, with_stages
from ext_authz.admission.view import NOBODY, Ask, Caller
from ext_authz.estimation.cost import CostBook
from ext_authz.model import Decision, HttpCall, InferenceRequest, Reason
from ext_authz.settings import (
    AdmissionSettings,
    Pool,
    RequestType,
    Slo,
    Tenant,
    TypeRule,
)

# gRPC over HTTP/2, "Requests": TimeoutValue of at most 8 digits and a unit.
_GRPC_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_ENVOY_TIMEOUT_MS = "x-envoy-expected-rq-timeout-ms"


class Intake:
    """The load-independent half of admission, for one configuration."""

    def __init__(self, settings: AdmissionSettings, costs: CostBook) -> None:
        self._settings = settings
        self._costs = costs
        pools = settings.pools
        self._chains = {name: chain_of(pool, pools) for name, pool in pools.items()}
        self._by_model: dict[str, Pool] = {}
        for pool in pools.values():
            for model in pool.models:
                self._by_model.setdefault(model, pool)
        self._any = next((pool for pool in pools.values() if not pool.models), None)
        self._default = next(iter(pools.values()), None)
        self._pipelines = Pipelines(settings.pipelines)
        exact = {p: slo for p, slo in settings.path_slos.items() if not p.endswith("*")}
        self._exact_slos: Mapping[str, Slo] = exact
        prefixes = [(p[:-1], slo) for p, slo in settings.path_slos.items() if p.endswith("*")]
        # The longest prefix says most about a path.
        self._prefix_slos = sorted(prefixes, key=lambda item: -len(item[0]))

    def ask(
        self,
        ask_id: str,
        tenant: Tenant,
        call: HttpCall,
        request: InferenceRequest,
        caller: Caller = NOBODY,
    ) -> Ask | Decision:
        """Everything the controller needs, or the refusal that needs no look at load."""
        type_ = self.type_of(tenant, call, request)
        model = request.model or tenant.default_model
        if model is not None and not _may_use(model, tenant):
            return _refusal(Reason.MODEL_NOT_ALLOWED, tenant, type_, request)
        pipeline = self._pipelines.of(model, request.path)
        if pipeline is None:
            pool = self.pool_of(model, tenant)
        else:
            pool = self._settings.pools[pipeline.stages[0].pool]
            if model is None and not _serves(pool, tenant):
                return _refusal(Reason.MODEL_NOT_ALLOWED, tenant, type_, request)
        if pool is None:
            reason = Reason.UNKNOWN_MODEL if self._settings.pools else Reason.NO_ENDPOINT
            return _refusal(reason, tenant, type_, request)
        slo = self.slo_of(request.path)
        # What nobody configured is one thing to the books, or clients could make them grow.
        priced_as = model if model in self._by_model and model is not None else pool.name
        if pipeline is not None:
            priced_as = pipeline.name
        ask = Ask(
            id=ask_id,
            tenant=tenant,
            type=type_,
            request=request,
            estimate=self._costs.estimate(
                request, tenant.name, priced_as, pool.kv_token_bytes.get(model or "")
            ),
            priced_as=priced_as,
            pools=self._chains[pool.name],
            slo_s=self._promise_s(call, slo),
            ttft_s=slo.ttft_s,
            tpot_s=slo.tpot_s,
            caller=caller,
        )
        return ask if pipeline is None else with_stages(ask, pipeline, self._settings.pools)

    def pool_of(self, model: str | None, tenant: Tenant) -> Pool | None:
        """The first pool in file order that names the model, else the first that serves any.

        A model nobody could read (beyond the body's cut, or a shape without one) goes to the
        first pool that serves something the tenant may use: not knowing is no refusal.
        """
        if model is not None:
            return self._by_model.get(model, self._any)
        if tenant.models is not None:
            for pool in self._settings.pools.values():
                if _serves(pool, tenant):
                    return pool
            return None
        return self._default

    def type_of(self, tenant: Tenant, call: HttpCall, request: InferenceRequest) -> RequestType:
        """First matching rule; else the client's header among the tenant's own types; else the
        tenant's first type. A header can never reach a type the tenant does not have."""
        for rule in self._settings.type_rules:
            if _matches(rule, tenant, request):
                return self._settings.types[rule.type]
        wanted = call.headers.get(self._settings.type_header)
        name = wanted if wanted in tenant.types else tenant.types[0]
        return self._settings.types[name]

    def _promise_s(self, call: HttpCall, slo: Slo) -> float | None:
        """The path's end-to-end promise, shortened (never lengthened) by a client's deadline."""
        promise_s = slo.e2e_s
        for deadline_s in self._deadlines_s(call.headers):
            if promise_s is None or deadline_s < promise_s:
                promise_s = deadline_s
        return promise_s

    def slo_of(self, path: str) -> Slo:
        """What `path` is promised."""
        slo = self._exact_slos.get(path)
        if slo is not None:
            return slo
        for prefix, slo in self._prefix_slos:
            if path.startswith(prefix):
                return slo
        return self._settings.default_slo

    def _deadlines_s(self, headers: Mapping[str, str]) -> list[float]:
        found = [
            grpc_timeout_s(headers.get("grpc-timeout")),
            _milliseconds(headers.get(_ENVOY_TIMEOUT_MS)),
        ]
        if self._settings.deadline_header is not None:
            found.append(_milliseconds(headers.get(self._settings.deadline_header)))
        return [seconds for seconds in found if seconds is not None]


def resolved(ask: Ask, settings: AdmissionSettings) -> Ask | Decision:
    """`ask` as another configuration has its tenant, type and pools, or its refusal there."""
    tenant = settings.tenants.get(ask.tenant.name)
    if tenant is None:
        return early_refusal(ask.tenant, Reason.UNKNOWN_KEY)
    type_ = settings.types[ask.type.name if ask.type.name in tenant.types else tenant.types[0]]
    model = ask.request.model or tenant.default_model
    pool = settings.pools.get(ask.pools[0].name)
    if pool is None:
        return _refusal(Reason.NO_ENDPOINT, tenant, type_, ask.request)
    if not (_serves(pool, tenant) if model is None else _may_use(model, tenant)):
        return _refusal(Reason.MODEL_NOT_ALLOWED, tenant, type_, ask.request)
    return replace(ask, tenant=tenant, type=type_, pools=chain_of(pool, settings.pools))


def chain_of(pool: Pool, pools: Mapping[str, Pool]) -> tuple[Pool, ...]:
    """`pool` and those that it is demoted to, in order."""
    chain = [pool]
    while (name := chain[-1].demote_to) is not None:
        chain.append(pools[name])
    return tuple(chain)


def grpc_timeout_s(value: str | None) -> float | None:
    """Seconds of a `grpc-timeout` header; None if absent or malformed."""
    if not value or value[-1] not in _GRPC_UNITS_S:
        return None
    digits = value[:-1]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 8:
        return None
    return int(digits) * _GRPC_UNITS_S[value[-1]]


def _milliseconds(value: str | None) -> float | None:
    if value is None or not (value.isascii() and value.isdigit()) or len(value) > 10:
        return None
    # Zero is how Envoy writes "no timeout".
    return int(value) / 1000.0 or None


def _may_use(model: str, tenant: Tenant) -> bool:
    return tenant.models is None or model in tenant.models


def _serves(pool: Pool, tenant: Tenant) -> bool:
    """Whether the pool serves something that the tenant may use."""
    return not pool.models or tenant.models is None or bool(pool.models & tenant.models)


def _matches(rule: TypeRule, tenant: Tenant, request: InferenceRequest) -> bool:
    if rule.tenant is not None and rule.tenant != tenant.name:
        return False
    if rule.model is not None and rule.model != request.model:
        return False
    if rule.path is None:
        return True
    if rule.path.endswith("*"):
        return request.path.startswith(rule.path[:-1])
    return request.path == rule.path


def _refusal(
    reason: Reason, tenant: Tenant, type_: RequestType, request: InferenceRequest
) -> Decision:
    return replace(early_refusal(tenant, reason), type=type_.name, model=request.model)
