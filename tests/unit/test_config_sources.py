"""Every kind of telemetry source, from YAML to its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.clock import SystemClock
from ext_authz.config import load
from ext_authz.errors import ConfigError
from ext_authz.settings import Settings
from ext_authz.telemetry.registry import build_sources
from ext_authz.telemetry.sources.feedback.nats import NatsSettings
from ext_authz.telemetry.sources.feedback.stream import StreamSettings
from ext_authz.telemetry.sources.nvml.source import NvmlSettings
from ext_authz.telemetry.sources.orca.source import OrcaSettings, OrcaStreamSettings
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from ext_authz.telemetry.sources.static import AssumeSettings

POOLS = """
  pools:
    - {name: p, engine: sglang, endpoints: [{url: "http://10.0.0.1:8000", device: GPU-1}]}
"""
ALL = """
admission_control:
  metrics_sources:
    - {type: scrape, scrape_interval: 200ms}
    - {type: prometheus, url: "http://p:9090", scrape_interval: 5s, queries: {running: "up"},
       matchers: {cluster: a}, token_file: token}
    - {type: nvml, interval: 2s, host: node-1}
    - {type: stream, feedback_port: 9000, token_file: tokens}
    - {type: nats, servers: ["nats://n:4222"]}
    - {type: orca, port: 9100}
    - {type: static, kv_capacity_tokens: 1000, mean_execution_ms: 400}
"""


def loaded(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "gate.yaml"
    path.write_text(text + POOLS)
    return load(path).settings


def test_every_kind_arrives_in_its_settings(tmp_path: Path) -> None:
    """What is written is what the sources are made of; files are beside the configuration."""
    assert loaded(tmp_path, ALL).telemetry.sources == (
        ScrapeSettings(0.2, 1.0, 4 << 20),
        PrometheusSettings(
            url="http://p:9090",
            interval_s=5.0,
            timeout_s=2.0,
            scrape_interval_s=5.0,
            matchers={"cluster": "a"},
            queries={"running": "up"},
            bearer_token_file=tmp_path / "token",
        ),
        NvmlSettings(2.0, 2.0, host="node-1"),
        StreamSettings("0.0.0.0:9000", 0.05, token_file=tmp_path / "tokens"),
        NatsSettings(("nats://n:4222",)),
        OrcaSettings(9100, OrcaStreamSettings(interval_s=0.25)),
        AssumeSettings(1000.0, 0.4, alone=False),
    )


async def test_every_kind_can_be_built(tmp_path: Path) -> None:
    """The registry makes a source of each, with a name of its own."""
    settings = loaded(tmp_path, ALL)
    pools = settings.admission.pools
    built = build_sources(settings.telemetry.sources, pools, SystemClock())
    sources = [one.source for one in built]
    assert [source.name.partition("/")[0] for source in sources] == [
        "scrape",
        "prometheus",
        "nvml",
        "stream",
        "nats",
        "orca",
        "static",
    ]
    for source in sources:
        await source.close()


def test_a_list_may_not_stand_beside_the_single_source(tmp_path: Path) -> None:
    """Two places for one thing are refused, not merged."""
    text = "admission_control:\n  metrics_source: {}\n  metrics_sources: [{type: scrape}]\n"
    with pytest.raises(ConfigError, match="stands beside metrics_sources"):
        loaded(tmp_path, text)


def test_problems_are_bounded(tmp_path: Path) -> None:
    """Thousands of mistakes give a bounded list that says how much is missing."""
    body = "".join(f"  k{index}: 1\n" for index in range(600))
    rows = "".join(f"    - {{name: t{index}, type: none}}\n" for index in range(600))
    path = tmp_path / "gate.yaml"
    path.write_text(f"admission_control:\n{body}  tenants:\n{rows}")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert len(caught.value.problems) == 1000
    assert "and 201 more problems" in caught.value.problems[-1].message


def test_unreadable_paths_are_problems(tmp_path: Path) -> None:
    """A missing file and a directory are told like any other problem."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path)
