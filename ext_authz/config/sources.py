"""Where telemetry comes from: the kinds of sources, what each may be told, and what that means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ext_authz.config.locate import Loc
from ext_authz.config.scalars import (
    as_bool,
    as_listen,
    as_text,
    as_url,
    choice,
    duration,
    number,
    whole,
)
from ext_authz.telemetry.sources.feedback.nats import NatsSettings
from ext_authz.telemetry.sources.feedback.stream import StreamSettings
from ext_authz.telemetry.sources.nvml.source import NvmlSettings
from ext_authz.telemetry.sources.orca.source import OrcaSettings, OrcaStreamSettings
from ext_authz.telemetry.sources.prometheus.read import SIGNALS
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from ext_authz.telemetry.sources.static import AssumeSettings

if TYPE_CHECKING:
    from ext_authz.config.report import Report
    from ext_authz.config.schema import AdmissionControl

FEEDBACK_PORT = 8081
# Which keys mean something for which kind, `type` and `stale_after` apart.
FIELDS: dict[str, frozenset[str]] = {
    "scrape": frozenset(
        {"scrape_interval", "timeout", "max_page_bytes", "token_file", "ca_file"}
    ),
    "prometheus": frozenset(
        {"url", "scrape_interval", "interval", "timeout", "max_page_bytes", "endpoint_label",
         "matchers", "queries", "devices", "engines", "token_file", "ca_file"}
    ),
    "nvml": frozenset({"interval", "timeout", "host"}),
    "stream": frozenset({"listen", "feedback_port", "interval", "token_file"}),
    "nats": frozenset({"servers", "subject", "bucket", "token_file", "timeout"}),
    "orca": frozenset({"port", "interval"}),
    "static": frozenset({"kv_capacity_tokens", "mean_execution_ms"}),
}  # fmt: skip
REQUIRED = {"prometheus": ("url",), "nats": ("servers",), "orca": ("port",)}
# Those that may stand there more than once.
SEVERAL = frozenset({"prometheus", "nats"})
# How often a kind speaks where nobody says otherwise, seconds.
INTERVALS_S = {"prometheus": 5.0, "nvml": 1.0, "stream": 0.05, "orca": 0.25}
# Kinds that tell a load: their samples are what `stale_after` is about.
TELLS_LOAD = frozenset({"scrape", "prometheus", "stream", "nats", "orca"})

Text = Annotated[str, BeforeValidator(as_text)]
Seconds = Annotated[float, duration(0.01, 600)]


class SourceBody(BaseModel):
    """One source of any kind; `check_sources` warns of what does not belong to its kind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Annotated[str, choice(*FIELDS)] = "scrape"
    url: Annotated[str, BeforeValidator(as_url)] | None = None
    scrape_interval: Seconds | None = None
    interval: Seconds | None = None
    timeout: Seconds | None = None
    stale_after: Annotated[float, duration(0.1, 3600)] | None = None
    max_page_bytes: Annotated[int, whole(1024, 64 << 20)] | None = None
    streaming_feedback: Annotated[bool, BeforeValidator(as_bool)] = False
    feedback_port: Annotated[int, whole(1, 65535)] | None = None
    listen: Annotated[str, BeforeValidator(as_listen)] | None = None
    token_file: Text | None = None
    ca_file: Text | None = None
    endpoint_label: Text | None = None
    matchers: Annotated[dict[Text, Text], Field(max_length=32)] = Field(default_factory=dict)
    queries: Annotated[dict[Text, Text], Field(max_length=32)] = Field(default_factory=dict)
    devices: Annotated[bool, BeforeValidator(as_bool)] | None = None
    engines: Annotated[bool, BeforeValidator(as_bool)] | None = None
    host: Text | None = None
    servers: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    subject: Text = "gpu.feedback"
    bucket: Text = "gpu_feedback"
    port: Annotated[int, whole(1, 65535)] | None = None
    kv_capacity_tokens: Annotated[float, number(1, 1e12)] | None = None
    mean_execution_ms: Annotated[float, number(0, 3_600_000, above=True)] | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two of its samples: for Prometheus those of the server, which is
        what makes them old."""
        if self.type == "scrape":
            return 1.0 if self.scrape_interval is None else self.scrape_interval
        if self.type == "prometheus":
            return 15.0 if self.scrape_interval is None else self.scrape_interval
        default_s = INTERVALS_S.get(self.type, 1.0)
        return default_s if self.interval is None else self.interval


def all_sources(config: AdmissionControl) -> list[tuple[Loc, SourceBody]]:
    """Every configured source with its place; `streaming_feedback` adds one of its own."""
    if config.metrics_sources:
        placed: list[tuple[Loc, SourceBody]] = [
            (("metrics_sources", index), body) for index, body in enumerate(config.metrics_sources)
        ]
    else:
        placed = [(("metrics_source",), config.metrics_source or SourceBody())]
    for loc, body in list(placed):
        if body.streaming_feedback and body.type != "stream":
            port = body.feedback_port or FEEDBACK_PORT
            extra = SourceBody.model_construct(
                {"type", "feedback_port", "token_file"},
                type="stream",
                feedback_port=port,
                token_file=body.token_file,
            )
            placed.append(((*loc, "streaming_feedback"), extra))
    return placed


def stale_after_s(config: AdmissionControl) -> float:
    """Default age limit: two lost samples of the quickest source that tells a load are
    forgiven."""
    given = [b.stale_after for _, b in all_sources(config) if b.stale_after is not None]
    return max(given) if given else max(1.0, 3 * _quickest_s(config))


def _quickest_s(config: AdmissionControl) -> float:
    """The shortest interval at which any source tells a load; 0 if none does."""
    told = [body.interval_s for _, body in all_sources(config) if body.type in TELLS_LOAD]
    return min(told, default=0.0)


def check_sources(config: AdmissionControl, report: Report) -> None:
    """Note what is wrong with sources, each and together."""
    if not report.whole("metrics_source", "metrics_sources"):
        return
    if config.metrics_sources and config.metrics_source is not None:
        report.problem(
            ("metrics_source",), "stands beside metrics_sources", "move it into that list"
        )
    seen: dict[str, int] = {}
    for loc, body in all_sources(config):
        if body.type in seen and body.type not in SEVERAL:
            report.problem(
                loc, f"there is a source of type {body.type} already, on line {seen[body.type]}",
                "keep one of them",
            )  # fmt: skip
        seen.setdefault(body.type, report.line(loc))
        _check_fields(loc, body, report)
        _check_times(loc, body, report)
    _check_staleness(config, report)


def _check_fields(loc: Loc, body: SourceBody, report: Report) -> None:
    known = FIELDS[body.type] | {"type", "stale_after", "streaming_feedback"}
    if body.streaming_feedback:
        known = known | {"feedback_port", "token_file"}
    for name in sorted(body.model_fields_set - known):
        report.warn((*loc, name), f"is not used by a source of type {body.type}", "delete it")
    for name in REQUIRED.get(body.type, ()):
        if not getattr(body, name):
            report.problem((*loc, "type"), f"{body.type} needs {name}", f"add `{name}:`")
    for signal in body.queries:
        if signal not in SIGNALS:
            signals = ", ".join(sorted(SIGNALS))
            report.problem((*loc, "queries", signal), "is no signal", f"use one of {signals}")


def _check_times(loc: Loc, body: SourceBody, report: Report) -> None:
    if body.type == "scrape" and not 0.1 <= body.interval_s <= 15:
        report.problem(
            (*loc, "scrape_interval"),
            "is not from 100ms to 15s, as scraping needs",
            "write a time from 100ms to 15s",
        )
    if body.type == "scrape" and body.timeout is not None and body.timeout > 30:
        report.problem((*loc, "timeout"), "is longer than 30s", "write at most 30s")


def _check_staleness(config: AdmissionControl, report: Report) -> None:
    quickest_s = _quickest_s(config)
    places: list[tuple[Loc, float | None]] = [
        ((*loc, "stale_after"), body.stale_after) for loc, body in all_sources(config)
    ]
    for index, pool in enumerate(config.pools):
        places.append((("pools", index, "stale_after"), pool.stale_after))
    for loc, stale_s in places:
        if stale_s is not None and stale_s < quickest_s:
            report.problem(
                loc,
                "is shorter than the interval between samples: each would be stale before the next",
                f"write at least {quickest_s:g}s; three intervals forgive two lost samples",
            )


def source_settings(config: AdmissionControl, base: Path) -> tuple[object, ...]:
    """What the sources are made of; of which endpoints they tell is known only while running.
    Files are relative to `base`."""
    bodies = [body for _, body in all_sources(config)]
    alone = not any(body.type in TELLS_LOAD for body in bodies)
    return tuple(_settings(body, base, alone) for body in bodies)


def _settings(body: SourceBody, base: Path, alone: bool) -> object:
    """`alone`: no source tells a load."""
    if body.type == "scrape":
        return ScrapeSettings(
            body.interval_s,
            body.timeout or 1.0,
            body.max_page_bytes or 4 << 20,
            token_file=_file(body.token_file, base),
            ca_file=_file(body.ca_file, base),
        )
    if body.type == "prometheus":
        return _prometheus(body, base)
    if body.type == "nvml":
        return NvmlSettings(body.interval_s, body.timeout or 2.0, host=body.host)
    if body.type == "stream":
        listen = body.listen or f"0.0.0.0:{body.feedback_port or FEEDBACK_PORT}"
        return StreamSettings(listen, body.interval_s, token_file=_file(body.token_file, base))
    if body.type == "nats":
        return NatsSettings(
            tuple(body.servers),
            subject=body.subject,
            bucket=body.bucket,
            connect_timeout_s=body.timeout or 2.0,
            token_file=_file(body.token_file, base),
        )
    if body.type == "orca":
        return OrcaSettings(body.port or 0, OrcaStreamSettings(interval_s=body.interval_s))
    mean_s = None if body.mean_execution_ms is None else body.mean_execution_ms / 1000.0
    return AssumeSettings(body.kv_capacity_tokens, mean_s, alone)


def _prometheus(body: SourceBody, base: Path) -> PrometheusSettings:
    return PrometheusSettings(
        url=body.url or "",
        interval_s=min(5.0, body.interval_s) if body.interval is None else body.interval,
        timeout_s=body.timeout or 2.0,
        scrape_interval_s=body.interval_s,
        max_response_bytes=body.max_page_bytes or 4_000_000,
        endpoint_label=body.endpoint_label or "instance",
        matchers=dict(body.matchers),
        queries=dict(body.queries),
        devices=body.devices is not False,
        engines=body.engines is not False,
        bearer_token_file=_file(body.token_file, base),
        ca_file=_file(body.ca_file, base),
    )


def _file(name: str | None, base: Path) -> Path | None:
    return None if name is None else base / name
