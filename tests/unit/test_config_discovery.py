"""`discover`: from YAML to what finds the endpoints of a pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ext_authz.config import Loaded, load
from ext_authz.settings import DiscoverySettings
from ext_authz.telemetry.discovery.dns import DnsSettings
from ext_authz.telemetry.discovery.kubernetes import KubernetesSettings
from ext_authz.telemetry.discovery.targets import FileTargetsSettings, HttpTargetsSettings


def loaded(tmp_path: Path, pool: str) -> Loaded:
    path = tmp_path / "gate.yaml"
    path.write_text(f"admission_control:\n  pools:\n    - {{name: p, {pool}}}\n")
    return load(path)


@pytest.mark.parametrize(
    ("written", "lookup", "interval_s"),
    [
        ("dns: {host: m.example, port: 80}", DnsSettings("m.example", 80), 15.0),
        ("dns: {host: _h._tcp.x, scheme: https}", DnsSettings("_h._tcp.x", None, "https"), 15.0),
        (
            "kubernetes: {service: vllm, namespace: gpu, port: http}",
            KubernetesSettings("vllm", "gpu", port="http"),
            15.0,
        ),
        (
            "kubernetes: {service: vllm, namespace: gpu, port: 8000, api_url: 'http://k:1'}",
            KubernetesSettings("vllm", "gpu", port=8000, api_url="http://k:1"),
            15.0,
        ),
        (
            "targets_url: http://sd/targets, interval: 1m",
            HttpTargetsSettings("http://sd/targets"),
            60,
        ),
    ],
)
def test_each_way_arrives_in_its_settings(
    tmp_path: Path, written: str, lookup: object, interval_s: float
) -> None:
    """What is written is what endpoints are looked up with; each runs what the pool says."""
    text = f"max_concurrency: 5, discover: {{{written}}}"
    pool = loaded(tmp_path, text).settings.admission.pools["p"]
    assert pool.discovery is not None
    assert replace(pool.discovery, name_url=None) == DiscoverySettings(lookup, interval_s, 5)
    resolvable = isinstance(lookup, DnsSettings) and lookup.port is not None
    assert pool.discovery.name_url == ("http://m.example:80" if resolvable else None)
    assert pool.endpoints == ()


def test_target_files_are_beside_the_configuration(tmp_path: Path) -> None:
    """One file or several, relative to the file that names them, and read often."""
    one = loaded(tmp_path, "discover: {targets_file: t.json}").settings.admission.pools["p"]
    assert one.discovery == DiscoverySettings(
        FileTargetsSettings((str(tmp_path / "t.json"),)), 2.0, 16
    )
    two = loaded(tmp_path, "discover: {targets_file: [a/*.yml, /b.json]}")
    discovery = two.settings.admission.pools["p"].discovery
    assert discovery is not None
    assert discovery.lookup == FileTargetsSettings((str(tmp_path / "a/*.yml"), "/b.json"))


def test_named_endpoints_may_stand_beside(tmp_path: Path) -> None:
    """Both are the pool's; a name among them is doubtful, as the edge picks by address."""
    text = "endpoints: ['http://10.0.0.1:1', 'http://gpu:2'], discover: {dns: {host: m, port: 1}}"
    result = loaded(tmp_path, text)
    pool = result.settings.admission.pools["p"]
    assert [e.address for e in pool.endpoints] == ["10.0.0.1:1", "gpu:2"]
    assert pool.discovery is not None
    told = [str(w) for w in result.warnings if "pools" in w.field]
    assert len(told) == 1
    assert "pools[0].endpoints[1]: is a name" in told[0]


def test_an_interval_that_is_not_used(tmp_path: Path) -> None:
    """An API server tells changes by itself: nobody should believe that it is asked."""
    text = "discover: {kubernetes: {service: s, namespace: n}, interval: 5s}"
    assert any("API server" in w.message for w in loaded(tmp_path, text).warnings)
