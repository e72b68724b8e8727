"""What a configuration means once compiled: the frozen values every room is given.

PURE. Times are seconds, sizes bytes or tokens, as each name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType

from ext_authz.overload import (
    Degrade,
    Demotion,
    Enforcing,
    HoldRules,
    HybridRules,
    MemoryRules,
    Mode,
    ReactiveRules,
    RetryRules,
    ShareRules,
)
from ext_authz.snapshot import Staleness


class PriorityClass(IntEnum):
    """Order of precedence when there is not enough for all."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


class FallbackAction(StrEnum):
    """What to do when a pool's telemetry is lost; always under the own-in-flight cap."""

    ADMIT_ALL = "admit_all"
    DEMOTE_LOW_PRIORITY = "demote_low_priority"
    REJECT_LOW_PRIORITY = "reject_low_priority"
    REJECT_ALL = "reject_all"


@dataclass(frozen=True, slots=True)
class CostRules:
    """Prices before anything is learned. Natural text has 2.0 to 6.1 UTF-8 bytes a token over
    common tokenisers and languages."""

    bytes_per_token: float = 4.0
    image_tokens: int = 1000
    default_output_tokens: int = 256
    opaque_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Slo:
    """A latency promise; any of the three. Seconds."""

    e2e_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestType:
    """A kind of work: its weight multiplies the tenant's; of demotion the stricter word counts."""

    name: str
    weight: float
    priority: PriorityClass
    max_concurrent: int | None
    demotion: Demotion = Demotion.ALLOWED


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Explicit limits of one tenant; None is unlimited. Bursts are bucket sizes."""

    requests_per_second: float | None = None
    request_burst: float = 1.0
    tokens_per_minute: float | None = None
    token_burst: float = 1.0
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks. `types[0]` is the default type; a client header chooses only among `types`.
    `models` None allows every configured model."""

    name: str
    weight: float
    types: tuple[str, ...]
    models: frozenset[str] | None = None
    default_model: str | None = None
    demotion: Demotion = Demotion.ALLOWED
    limits: TenantLimits = TenantLimits()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model server. `address` is host:port, the name Envoy, the ledger and telemetry share.

    `max_concurrency` is the slots: requests it runs at once before they queue inside it.
    `device` names the card, so that endpoints that share one can be told. `metrics_url` is where
    its metrics page is, if not where its engine puts it."""

    address: str
    url: str
    max_concurrency: int
    device: str
    region: str | None = None
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Endpoints that come and go. `lookup` is a settings object of `telemetry.discovery_*`, whose
    type says how they are found; it is asked at least every `interval_s`. Each endpoint runs
    `max_concurrency` requests at once. `name_url` is the URL whose host resolves to just these
    endpoints, where there is one."""

    lookup: object
    interval_s: float
    max_concurrency: int
    name_url: str | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers of the same models. `models` empty serves any name. `http2`: how Envoy speaks to
    them, as gRPC inference servers need. `instances` of a fixed-shape model run at once on each
    endpoint. `kv_token_bytes`: what a token fills of the KV cache, by model; see `Relief` too."""

    name: str
    engine: str
    endpoints: tuple[Endpoint, ...]
    models: frozenset[str]
    demote_to: str | None
    staleness: Staleness
    kv_guard_ratio: float
    device_guard_ratio: float = field(default=1.0, kw_only=True)
    http2: bool = False
    instances: int = 1
    discovery: DiscoverySettings | None = None
    kv_token_bytes: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    mode: Mode = Mode.PREDICTIVE
    overflow_to: str | None = None
    degrade: Degrade | None = None

    @property
    def slots(self) -> int:
        """Requests the whole pool runs at once."""
        return sum(endpoint.max_concurrency for endpoint in self.endpoints)


@dataclass(frozen=True, slots=True)
class TypeRule:
    """First match wins; a None field matches everything. `path` may end in `*`."""

    type: str
    path: str | None = None
    model: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline, on `pool`: it reads `prompt_ratio` times the prompt of the request
    itself and puts out `output_tokens`, None as many as the request does."""

    pool: str
    prompt_ratio: float = 1.0
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Requests that visit several pools, one after the other, and are decided once.

    A request is one of these if its model is among `models` and its path matches one of `paths`,
    which may end in `*`; none of either matches all. `stages` is in order of visits, never empty.
    """

    name: str
    models: frozenset[str]
    paths: tuple[str, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """All the pure core needs to decide.

    `path_slos` keys are exact paths, or prefixes that end in `*`. `reserve_ratio` is the part of
    each pool's slots that only the high class may fill. `lease_s` ends a reservation whose
    outcome never arrives. With `tune_margin` the margin follows how many promises are broken;
    load may break `target_violation_ratio` of them. Of what would be refused `tried_ratio` are
    let in, to learn what becomes of them. Of `pipelines` the first that matches counts.
    """

    enabled: bool
    margin_s: float
    fallback: FallbackAction
    default_slo: Slo
    path_slos: Mapping[str, Slo]
    types: Mapping[str, RequestType]
    type_rules: tuple[TypeRule, ...]
    type_header: str
    deadline_header: str | None
    reserve_ratio: float
    pools: Mapping[str, Pool]
    tenants: Mapping[str, Tenant]
    cost: CostRules
    retry: RetryRules
    lease_s: float
    tune_margin: bool = True
    target_violation_ratio: float = 0.01
    tried_ratio: float = 0.0
    pipelines: tuple[Pipeline, ...] = ()
    reactive: ReactiveRules = field(default_factory=ReactiveRules)
    hybrid: HybridRules = field(default_factory=HybridRules)
    enforcing: Enforcing = field(default_factory=Enforcing)
    shares: ShareRules = field(default_factory=ShareRules)
    memory: MemoryRules = field(default_factory=MemoryRules)
    hold: HoldRules = field(default_factory=HoldRules)


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What Envoy itself enforces and how it calls us. `failure_mode_allow` is Envoy's word for
    letting requests through when no answer comes. `preflight_allow` lets browsers ask without a
    key what they may send (CORS). Of the answers, `tapped_ratio` are shown to us as they pass."""

    listen: str
    requests_per_second: float
    burst: int
    max_keys: int
    keyless_requests_per_second: float
    max_body_bytes: int
    failure_mode_allow: bool
    check_timeout_s: float
    access_log_flush_s: float
    access_log_periodic_s: float
    preflight_allow: bool = True
    tapped_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Our own listeners. `key_headers` is the order in which a key is looked for; `host` is what
    takes the calls in, `grpc` or `pyvoy`."""

    grpc_listen: str
    admin_listen: str
    key_headers: tuple[str, ...]
    drain_s: float
    max_message_bytes: int
    host: str = "grpc"


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Where what was learned outlives a restart, None if it does not, and how often it is saved."""

    state_file: str | None = None
    save_every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where requests are recorded to be replayed, None if they are not: in two files of at most
    `max_bytes` each, and of all requests `sample_ratio`."""

    file: str | None = None
    max_bytes: int = 64 << 20
    sample_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """One settings object of each source; its type says the kind (see `telemetry.registry`)."""

    sources: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """One compiled configuration. `keys`: tenants by digest; `fingerprint`: digest of the files."""

    admission: AdmissionSettings
    edge: EdgeSettings
    server: ServerSettings
    telemetry: TelemetrySettings
    keys: Mapping[bytes, str]
    fingerprint: str
    learning: LearningSettings = LearningSettings()
    journal: JournalSettings = JournalSettings()
