"""Compiled settings built by hand, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ext_authz.overload import RetryRules
from ext_authz.settings import (
    AdmissionSettings,
    CostRules,
    EdgeSettings,
    Endpoint,
    FallbackAction,
    Pool,
    PriorityClass,
    RequestType,
    ServerSettings,
    Settings,
    Slo,
    TelemetrySettings,
    Tenant,
)
from ext_authz.snapshot import Staleness
from ext_authz.telemetry.sources.scrape import ScrapeSettings


def make_pool(name: str, *addresses: str, slots: int = 16, scheme: str = "http") -> Pool:
    """A pool of endpoints at host:port `addresses`, each running `slots` requests at once."""
    return Pool(
        name=name,
        engine="vllm",
        endpoints=tuple(
            Endpoint(address, f"{scheme}://{address}", slots, device=address)
            for address in addresses
        ),
        models=frozenset(),
        demote_to=None,
        staleness=Staleness(3.0),
        kv_guard_ratio=0.85,
    )


def make_edge(**changes: object) -> EdgeSettings:
    """The defaults of the edge, with `changes`."""
    edge = EdgeSettings(
        listen="127.0.0.1:8080",
        requests_per_second=1000.0,
        burst=200,
        max_keys=10_000,
        keyless_requests_per_second=100.0,
        max_body_bytes=65_536,
        failure_mode_allow=False,
        check_timeout_s=0.5,
        access_log_flush_s=0.02,
        access_log_periodic_s=5.0,
    )
    return replace(edge, **changes)  # type: ignore[arg-type]  # the names are checked by replace


def make_settings(
    pools: Iterable[Pool] = (),
    tenants: Iterable[Tenant] = (),
    edge: EdgeSettings | None = None,
    grpc_listen: str = "127.0.0.1:9001",
) -> Settings:
    """Complete settings around the given pools, tenants and edge."""
    return Settings(
        admission=_admission(pools, tenants),
        edge=edge or make_edge(),
        server=ServerSettings(
            grpc_listen=grpc_listen,
            admin_listen="127.0.0.1:9002",
            key_headers=("authorization", "x-api-key"),
            drain_s=10.0,
            max_message_bytes=8 * 1024 * 1024,
        ),
        telemetry=TelemetrySettings((ScrapeSettings(),)),
        keys={},
        fingerprint="0" * 64,
    )


def _admission(pools: Iterable[Pool], tenants: Iterable[Tenant]) -> AdmissionSettings:
    return AdmissionSettings(
        enabled=True,
        margin_s=0.025,
        fallback=FallbackAction.DEMOTE_LOW_PRIORITY,
        default_slo=Slo(e2e_s=0.15),
        path_slos={},
        types={"default": RequestType("default", 1.0, PriorityClass.MEDIUM, None)},
        type_rules=(),
        type_header="x-request-type",
        deadline_header=None,
        reserve_ratio=0.0,
        pools={pool.name: pool for pool in pools},
        tenants={tenant.name: tenant for tenant in tenants},
        cost=CostRules(),
        retry=RetryRules(),
        lease_s=15.0,
    )
