"""A checked file to `Settings`. Nothing here can fail; defaults that hang on others live here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ext_authz.config.discovery import discovery_settings
from ext_authz.config.enforcing import enforcing_of
from ext_authz.config.fairness import share_rules
from ext_authz.config.hold import degrade_rule, hold_rules, overflow_to
from ext_authz.config.journal import journal_settings
from ext_authz.config.memory import device_guard_ratio, memory_rules
from ext_authz.config.model_shapes import kv_token_bytes
from ext_authz.config.modes import hybrid_rules, reactive_rules
from ext_authz.config.pipelines import pipeline_settings
from ext_authz.config.promises import PathTargets, SloSection, Targets
from ext_authz.config.schema import (
    AdmissionControl,
    Learning,
    LimitsBody,
    PoolBody,
    TenantBody,
    TypeBody,
)
from ext_authz.config.sources import source_settings, stale_after_s
from ext_authz.overload import Demotion, Mode, RetryRules
from ext_authz.settings import (
    AdmissionSettings,
    CostRules,
    EdgeSettings,
    Endpoint,
    FallbackAction,
    LearningSettings,
    Pool,
    PriorityClass,
    RequestType,
    ServerSettings,
    Settings,
    Slo,
    TelemetrySettings,
    Tenant,
    TenantLimits,
    TypeRule,
)
from ext_authz.snapshot import Staleness

DEFAULT_TYPE = "default"
DEFAULT_SLO_MS = 150.0


def build(
    config: AdmissionControl, keys: Mapping[bytes, str], fingerprint: str, base: Path
) -> Settings:
    """The settings a configuration means. Files it names are relative to `base`."""
    server = config.server
    admission = _admission(config, base)
    return Settings(
        admission=admission,
        edge=_edge(config),
        server=ServerSettings(
            grpc_listen=server.grpc_listen,
            admin_listen=server.admin_listen,
            key_headers=tuple(server.api_key_headers),
            drain_s=server.drain,
            max_message_bytes=server.max_message_bytes,
            host=server.host,
        ),
        telemetry=TelemetrySettings(source_settings(config, base)),
        keys=MappingProxyType(dict(keys)),
        fingerprint=fingerprint,
        learning=_learning(config.learning, base),
        journal=journal_settings(config.journal, base),
    )


def least_check_timeout_s(config: AdmissionControl) -> float:
    """Envoy must outwait the longest hold, with time left for the answer."""
    return max(config.hold.limit + 0.3, 0.5)


def lease_s(config: AdmissionControl) -> float:
    """Two lost periodic reports must not end a running stream's reservation."""
    if config.server.lease is not None:
        return config.server.lease
    return max(3 * config.edge.access_log_periodic, 15.0)


def default_e2e_ms(slo: SloSection) -> float | None:
    """The end-to-end promise where no path says otherwise; none where the default promises only
    tokens, as streams do."""
    if slo.default.e2e_ms is not None:
        return slo.default.e2e_ms
    if slo.default_ms is not None:
        return slo.default_ms
    by_token = slo.default.ttft_ms is not None or slo.default.tpot_ms is not None
    return None if by_token else DEFAULT_SLO_MS


def type_names(config: AdmissionControl) -> frozenset[str]:
    """Every request type, the built-in one included."""
    return frozenset({DEFAULT_TYPE, *config.scheduling.types})


def tenant_types(tenant: TenantBody) -> tuple[str, ...]:
    """The types a tenant may use, its default first."""
    if tenant.types is not None:
        return tuple(dict.fromkeys(tenant.types))
    return (tenant.type or DEFAULT_TYPE,)


def _admission(config: AdmissionControl, base: Path) -> AdmissionSettings:
    scheduling = config.scheduling
    bodies = {DEFAULT_TYPE: TypeBody(), **scheduling.types}
    stale_s = stale_after_s(config)
    return AdmissionSettings(
        enabled=config.enabled,
        margin_s=config.safety_margin_ms / 1000,
        fallback=FallbackAction(config.fallback_action),
        default_slo=_slo(config.slo.default, default_e2e_ms(config.slo)),
        path_slos=MappingProxyType(
            {path: _path_slo(targets) for path, targets in config.slo.requests.items()}
        ),
        types=MappingProxyType({name: _type(name, body) for name, body in bodies.items()}),
        type_rules=tuple(
            TypeRule(rule.type, rule.path, rule.model, rule.tenant)
            for rule in scheduling.type_rules
        ),
        type_header=scheduling.type_header,
        deadline_header=scheduling.deadline_header,
        reserve_ratio=scheduling.shared_capacity_reserve,
        pools=MappingProxyType(
            {pool.name: _pool(pool, config, stale_s, base) for pool in config.pools}
        ),
        tenants=MappingProxyType({tenant.name: _tenant(tenant) for tenant in config.tenants}),
        cost=CostRules(**config.cost.model_dump()),
        retry=RetryRules(config.retry.cap, config.retry.tell_admitted),
        lease_s=lease_s(config),
        pipelines=tuple(map(pipeline_settings, config.pipelines)),
        tune_margin=config.learning.tune_margin,
        hold=hold_rules(config.hold),
        target_violation_ratio=config.learning.target_violations,
        tried_ratio=config.learning.tried_refusals,
        reactive=reactive_rules(config.reactive),
        hybrid=hybrid_rules(config.hybrid),
        enforcing=enforcing_of(config),
        shares=share_rules(scheduling.fairness),
        memory=memory_rules(config.memory),
    )


def _edge(config: AdmissionControl) -> EdgeSettings:
    edge, learning = config.edge, config.learning
    timeout = least_check_timeout_s(config) if edge.check_timeout is None else edge.check_timeout
    return EdgeSettings(
        listen=edge.listen,
        requests_per_second=edge.requests_per_second,
        burst=edge.burst,
        max_keys=edge.max_keys,
        keyless_requests_per_second=edge.keyless_requests_per_second,
        max_body_bytes=edge.max_body_bytes,
        failure_mode_allow=edge.failure_mode == "allow",
        check_timeout_s=timeout,
        access_log_flush_s=edge.access_log_flush,
        access_log_periodic_s=edge.access_log_periodic,
        preflight_allow=edge.preflight == "allow",
        tapped_ratio=learning.response_tap_share if learning.response_tap else 0.0,
    )


def _learning(learning: Learning, base: Path) -> LearningSettings:
    path = None if learning.state_file is None else str(base / learning.state_file)
    return LearningSettings(path, learning.save_every)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


def _slo(targets: Targets, e2e_ms: float | None) -> Slo:
    return Slo(_seconds(e2e_ms), _seconds(targets.ttft_ms), _seconds(targets.tpot_ms))


def _path_slo(targets: PathTargets) -> Slo:
    return _slo(targets, targets.e2e_ms if targets.slo_ms is None else targets.slo_ms)


def _type(name: str, body: TypeBody) -> RequestType:
    priority = PriorityClass[body.priority_class.upper()]
    return RequestType(name, body.weight, priority, body.max_concurrent, Demotion(body.demote))


def _pool(pool: PoolBody, config: AdmissionControl, stale_s: float, base: Path) -> Pool:
    discover = pool.discover
    return Pool(
        name=pool.name,
        engine=pool.engine,
        endpoints=tuple(
            Endpoint(
                address=(address := address_of(body.url)),
                url=body.url,
                max_concurrency=body.max_concurrency or pool.max_concurrency,
                device=body.device or address,
                region=body.region,
                metrics_url=body.metrics_url,
            )
            for body in pool.endpoints
        ),
        models=frozenset(pool.models),
        demote_to=pool.demote_to,
        staleness=Staleness(
            fresh_s=stale_s if pool.stale_after is None else pool.stale_after,
            hold_s=pool.staleness.hold,
            decay_s=pool.staleness.decay,
            floor_ratio=pool.staleness.floor,
        ),
        kv_guard_ratio=pool.kv_guard,
        device_guard_ratio=device_guard_ratio(pool.device_guard, pool.engine),
        http2=pool.http2,
        instances=pool.instances,
        discovery=None
        if discover is None
        else discovery_settings(discover, pool.max_concurrency, base),
        kv_token_bytes=kv_token_bytes(pool.models, pool.model_shapes),
        mode=Mode(pool.mode or config.mode),
        overflow_to=overflow_to(config, pool),
        degrade=degrade_rule(pool.degrade),
    )


def address_of(url: str) -> str:
    """host:port of a normalised endpoint URL."""
    return url.partition("://")[2]


def _tenant(tenant: TenantBody) -> Tenant:
    return Tenant(
        name=tenant.name,
        weight=tenant.weight,
        types=tenant_types(tenant),
        models=None if tenant.models is None else frozenset(tenant.models),
        default_model=tenant.default_model,
        demotion=Demotion(tenant.demote),
        limits=_limits(tenant.limits),
    )


def _limits(limits: LimitsBody) -> TenantLimits:
    """A bucket holds at least one request, and by default what one period brings."""
    return TenantLimits(
        requests_per_second=limits.requests_per_second,
        request_burst=limits.burst or max(1.0, limits.requests_per_second or 1.0),
        tokens_per_minute=limits.tokens_per_minute,
        token_burst=limits.token_burst or max(1.0, limits.tokens_per_minute or 1.0),
        max_concurrent=limits.max_concurrent,
    )
