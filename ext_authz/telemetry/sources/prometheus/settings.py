"""What a Prometheus source is told: where the server is, what to look for, within what bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ext_authz.telemetry.pages.mappings import ENGINES


@dataclass(frozen=True, slots=True)
class PrometheusTarget:
    """An endpoint to look for.

    `address` is `Endpoint.address`; `engine` whose series are read, None for no engine's;
    `label_values` what Prometheus calls it, by default its address, or its host with the ports
    where such engines show their metrics; `device` the card it runs on, by default the one whose
    workload bears its host's name.
    """

    address: str
    engine: str | None = None
    label_values: tuple[str, ...] = ()
    device: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """What Prometheus calls it."""
        mapping = ENGINES.get(self.engine or "")
        if self.label_values or mapping is None or not mapping.ports:
            return self.label_values or (self.address,)
        host = self.address.rpartition(":")[0]
        return tuple(f"{host}:{port}" for port in mapping.ports)


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """How a server is read.

    `interval_s` 0.2 to 300 is between two polls, each of which takes at most `timeout_s` (0.05
    to 60). `scrape_interval_s` (0.1 to 300) is the server's own: the age that the result of a
    computed query is given, since the server does not tell of which samples it is made.
    `endpoint_label` names the endpoint of a series, `matchers` are labels every series must
    bear. `queries` are PromQL by signal, one of `SIGNALS`; they come before what an engine's own
    series say. `devices` and `engines`: whether to look for GPUs, and for the engines' own series
    (a server that scrapes none would miss them all). `ignored_labels` tell by whom a series was
    scraped: two that differ only in them are one, of which the newer counts. Answers beyond
    `max_response_bytes` (10 kB to 20 MB; each MB stalls the process for about 10 ms) are refused.
    """

    url: str = field(repr=False)
    targets: tuple[PrometheusTarget, ...] = ()
    interval_s: float = 5.0
    timeout_s: float = 2.0
    scrape_interval_s: float = 15.0
    max_response_bytes: int = 4_000_000
    endpoint_label: str = "instance"
    matchers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    queries: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices: bool = True
    engines: bool = True
    ignored_labels: frozenset[str] = frozenset({"job", "prometheus", "prometheus_replica"})
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    bearer_token_file: Path | None = None
    ca_file: Path | None = None
