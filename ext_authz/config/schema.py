"""The shape of the file: every key, its kind, its bounds and its default.

Rules that look at more than one key live in `checks.py`; what depends on another key (and so
stands here as None) is filled in by `build.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ext_authz.config.discovery import DiscoverBody
from ext_authz.config.enforcing import EnforcementWord, RuleWords
from ext_authz.config.fairness import FairnessBody
from ext_authz.config.hold import DegradeBody, HoldBody
from ext_authz.config.journal import JournalBody
from ext_authz.config.memory import MemoryBody
from ext_authz.config.model_shapes import ModelShapeBody
from ext_authz.config.modes import HybridBody, ModeWord, ReactiveBody
from ext_authz.config.pipelines import PipelineBody
from ext_authz.config.promises import SloSection
from ext_authz.config.scalars import (
    as_bool,
    as_endpoint_url,
    as_header,
    as_key_text,
    as_listen,
    as_name,
    as_path,
    as_text,
    as_url,
    choice,
    duration,
    fault,
    number,
    whole,
)
from ext_authz.config.sources import SourceBody
from ext_authz.telemetry.pages.mappings import ENGINES

MAX_BODY_BYTES = 65536

_NO_ZERO_WEIGHT = (
    "write a small weight such as 0.001, which still gets its share; to shut somebody out, "
    "take the entry or its keys away"
)

Text = Annotated[str, BeforeValidator(as_text)]
Name = Annotated[str, BeforeValidator(as_name)]
Header = Annotated[str, BeforeValidator(as_header)]
PathPattern = Annotated[str, BeforeValidator(as_path)]
KeyText = Annotated[str, BeforeValidator(as_key_text)]
EndpointUrl = Annotated[str, BeforeValidator(as_endpoint_url)]
Listen = Annotated[str, BeforeValidator(as_listen)]
Flag = Annotated[bool, BeforeValidator(as_bool)]
Weight = Annotated[float, number(0, 1e6, above=True, remedy=_NO_ZERO_WEIGHT)]
Rate = Annotated[float, number(0, 1e12, above=True)]
Burst = Annotated[float, number(1, 1e12)]
Concurrency = Annotated[int, whole(1, 1_000_000)]
StaleAfter = Annotated[float, duration(0.1, 3600)]
Tokens = Annotated[int, whole(1, 10_000_000)]
DemoteWord = Annotated[str, choice("allowed", "preferred", "forbidden")]


class Section(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TypeBody(Section):
    """A kind of work."""

    weight: Weight = 1.0
    priority_class: Annotated[str, choice("low", "medium", "high")] = "medium"
    max_concurrent: Concurrency | None = None
    demote: DemoteWord = "allowed"


class TypeRuleBody(Section):
    """When a request is of a type."""

    type: Name
    path: PathPattern | None = None
    model: Text | None = None
    tenant: Name | None = None


class Scheduling(Section):
    """Types and the part of the capacity that only the high class may fill."""

    types: Annotated[dict[Name, TypeBody], Field(max_length=256)] = Field(default_factory=dict)
    shared_capacity_reserve: Annotated[float, number(0, 0.9)] = 0.0
    type_rules: Annotated[list[TypeRuleBody], Field(max_length=1000)] = Field(default_factory=list)
    fairness: FairnessBody = FairnessBody()
    type_header: Header = "x-request-type"
    deadline_header: Header | None = None


class EndpointBody(Section):
    """One model server."""

    url: EndpointUrl
    device: Text | None = None
    max_concurrency: Concurrency | None = None
    region: Text | None = None
    metrics_url: Annotated[str, BeforeValidator(as_url)] | None = None


def _endpoint(value: object) -> object:
    """A bare URL is short for `{url: ...}`."""
    return value if isinstance(value, dict | list) else {"url": value}


class StalenessBody(Section):
    """What a load is worth after `stale_after`: held, then decayed to a part of the slots."""

    hold: Annotated[float, duration(0, 3600)] = 0.0
    decay: Annotated[float, duration(0, 3600)] = 0.0
    floor: Annotated[float, number(0, 1)] = 1.0


class PoolBody(Section):
    """Servers of the same models."""

    name: Name
    engine: Annotated[str, choice(*ENGINES)] = "vllm"
    endpoints: Annotated[
        list[Annotated[EndpointBody, BeforeValidator(_endpoint)]], Field(max_length=1024)
    ] = Field(default_factory=list)
    discover: DiscoverBody | None = None
    max_concurrency: Concurrency = 16
    models: Annotated[list[Text], Field(max_length=1000)] = Field(default_factory=list)
    demote_to: Name | None = None
    degrade: DegradeBody | None = None
    stale_after: StaleAfter | None = None
    staleness: StalenessBody = StalenessBody()
    kv_guard: Annotated[float, number(0, 1, above=True)] = 0.85
    device_guard: Annotated[float | None, number(0, 1, above=True)] = None
    http2: Flag = False
    instances: Annotated[int, whole(1, 1024)] = 1
    mode: ModeWord | None = None
    enforcement: EnforcementWord | None = None
    model_shapes: Annotated[dict[Text, ModelShapeBody], Field(max_length=1000)] = Field(
        default_factory=dict
    )


class LimitsBody(Section):
    """Explicit limits of a tenant."""

    requests_per_second: Rate | None = None
    burst: Burst | None = None
    tokens_per_minute: Rate | None = None
    token_burst: Burst | None = None
    max_concurrent: Concurrency | None = None


class TenantBody(Section):
    """Who may ask, and for how much."""

    name: Name
    api_key_sha256: Annotated[list[KeyText], Field(max_length=1000)] = Field(default_factory=list)
    api_key_files: Annotated[list[Text], Field(max_length=100)] = Field(default_factory=list)
    weight: Weight = 1.0
    type: Name | None = None
    types: Annotated[list[Name], Field(min_length=1, max_length=256)] | None = None
    models: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    default_model: Text | None = None
    demote: DemoteWord = "allowed"
    enforcement: EnforcementWord | None = None
    limits: LimitsBody = LimitsBody()


def _tenants(value: object) -> object:
    """`{name: body}` is another way to write `[{name: ..., ...}]`."""
    if not isinstance(value, dict):
        return value
    if any(isinstance(body, dict) and "name" in body for body in value.values()):
        raise fault(
            "is a mapping by name, and names a tenant again inside", "delete `name:` inside"
        )
    return [
        {"name": name, **body} if isinstance(body, dict) else body for name, body in value.items()
    ]


class Retry(Section):
    """Bounds of the hint when to come back, and whether who is admitted is told its limits."""

    cap: Annotated[float, duration(1, 3600)] = 60.0
    tell_admitted: Annotated[bool, BeforeValidator(as_bool)] = False


class Cost(Section):
    """Prices before anything is learned."""

    bytes_per_token: Annotated[float, number(0.25, 64)] = 4.0
    image_tokens: Annotated[int, whole(0, 10_000_000)] = 1000
    default_output_tokens: Tokens = 256
    opaque_tokens: Tokens = 2048


class Edge(Section):
    """What Envoy enforces by itself, and how it calls."""

    listen: Listen = "0.0.0.0:8080"
    requests_per_second: Rate = 1000.0
    burst: Annotated[int, whole(1, 1_000_000_000)] = 200
    max_keys: Annotated[int, whole(1, 1_000_000)] = 10_000
    keyless_requests_per_second: Rate = 100.0
    max_body_bytes: Annotated[int, whole(0, MAX_BODY_BYTES)] = MAX_BODY_BYTES
    failure_mode: Annotated[str, choice("deny", "allow")] = "deny"
    preflight: Annotated[str, choice("allow", "deny")] = "allow"
    check_timeout: Annotated[float, duration(0.1, 120)] | None = None
    access_log_flush: Annotated[float, duration(0.001, 60)] = 0.02
    access_log_periodic: Annotated[float, duration(0.1, 600)] = 5.0


class Learning(Section):
    """What is learned, and from what beside the access log and telemetry."""

    response_tap: Flag = False
    response_tap_share: Annotated[float, number(0, 1, above=True)] = 1.0
    tune_margin: Flag = True
    target_violations: Annotated[float, number(0, 0.5, above=True)] = 0.01
    tried_refusals: Annotated[float, number(0, 0.1)] = 0.0
    state_file: Text | None = None
    save_every: Annotated[float, duration(1, 3600)] = 60.0


class Server(Section):
    """Our own listeners."""

    host: Annotated[str, choice("grpc", "pyvoy")] = "grpc"
    grpc_listen: Listen = "0.0.0.0:9001"
    admin_listen: Listen = "127.0.0.1:9002"
    api_key_headers: Annotated[list[Header], Field(min_length=1, max_length=8)] = Field(
        default_factory=lambda: ["authorization", "x-api-key"]
    )
    drain: Annotated[float, duration(0, 600)] = 10.0
    max_message_bytes: Annotated[int, whole(2 * MAX_BODY_BYTES, 64 << 20)] = 8 << 20
    lease: Annotated[float, duration(1, 86_400)] | None = None


class AdmissionControl(Section):
    """Everything below the one top key."""

    enabled: Flag = True
    mode: ModeWord = "predictive"
    reactive: ReactiveBody = ReactiveBody()
    hybrid: HybridBody = HybridBody()
    enforcement: EnforcementWord = "enforce"
    policies: RuleWords = Field(default_factory=dict)
    safety_margin_ms: Annotated[float, number(0, 3_600_000)] = 25.0
    fallback_action: Annotated[
        str, choice("admit_all", "demote_low_priority", "reject_low_priority", "reject_all")
    ] = "demote_low_priority"
    metrics_source: SourceBody | None = None
    metrics_sources: Annotated[list[SourceBody], Field(max_length=32)] = Field(default_factory=list)
    slo: SloSection = SloSection()
    scheduling: Scheduling = Scheduling()
    pools: Annotated[list[PoolBody], Field(max_length=256)] = Field(default_factory=list)
    tenants: Annotated[list[TenantBody], BeforeValidator(_tenants), Field(max_length=10_000)] = (
        Field(default_factory=list)
    )
    pipelines: Annotated[list[PipelineBody], Field(max_length=64)] = Field(default_factory=list)
    memory: MemoryBody = MemoryBody()
    hold: HoldBody = HoldBody()
    retry: Retry = Retry()
    cost: Cost = Cost()
    learning: Learning = Learning()
    journal: JournalBody = JournalBody()
    edge: Edge = Edge()
    server: Server = Server()


class Root(Section):
    """The file."""

    admission_control: AdmissionControl
