"""The rendered Envoy where endpoints are found, and where they are asked for their load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_authz.deploy.envoy import render_envoy
from ext_authz.settings import DiscoverySettings, Pool
from tests.support.envoy import validate
from tests.support.settings import make_pool, make_settings


def tree(pool: Pool) -> Any:
    return yaml.load(render_envoy(make_settings([pool])), yaml.CSafeLoader)["static_resources"]


def cluster_of(pool: Pool) -> dict[str, Any]:
    """The cluster of the one pool."""
    clusters = {one["name"]: one for one in tree(pool)["clusters"]}
    cluster: dict[str, Any] = clusters[f"pool_{pool.name}"]
    return cluster


def found(name: str, *addresses: str, name_url: str | None = None) -> Pool:
    """A pool of endpoints that are found, eight requests each, and the given ones beside."""
    pool = make_pool(name, *addresses, slots=8)
    return replace(pool, discovery=DiscoverySettings(object(), 1.0, 8, name_url))


def test_endpoints_that_only_the_gate_finds() -> None:
    """The gate's word is the address; Envoy has no list, so that no stale one can be used."""
    cluster = cluster_of(found("f", "10.0.0.1:80"))
    assert (cluster["type"], cluster["lb_policy"]) == ("ORIGINAL_DST", "CLUSTER_PROVIDED")
    assert cluster["original_dst_lb_config"] == {
        "use_http_header": True,
        "http_header_name": "x-gpu-endpoint",
    }
    assert "load_assignment" not in cluster


def test_endpoints_behind_one_name() -> None:
    """Envoy resolves the name too, both families, and picks the address that the gate names."""
    pool = found("f", "10.0.0.1:80", name_url="https://models.example:443")
    cluster = cluster_of(pool)
    assert (cluster["type"], cluster["dns_lookup_family"]) == ("STRICT_DNS", "ALL")
    (locality,) = cluster["load_assignment"]["endpoints"]
    sockets = [e["endpoint"]["address"]["socket_address"] for e in locality["lb_endpoints"]]
    assert [(s["address"], s["port_value"]) for s in sockets] == [
        ("10.0.0.1", 80),
        ("models.example", 443),
    ]
    (policy,) = cluster["load_balancing_policy"]["policies"]
    name = policy["typed_extension_config"]["name"]
    assert name == "envoy.load_balancing_policies.override_host"
    assert "transport_socket_matches" in cluster


def test_a_breaker_does_not_choke_what_may_grow() -> None:
    """Nobody knows how many endpoints there will be: the backstop is said to be off, not 1."""
    for pool in (found("f"), found("f", name_url="http://m:80")):
        text = render_envoy(make_settings([pool]))
        limits, *_ = cluster_of(pool)["circuit_breakers"]["thresholds"]
        assert limits["max_requests"] == 8 * 1024
        assert "the breaker below holds back nothing" in text


@pytest.mark.parametrize(
    ("engine", "asks"), [("vllm", True), ("triton", True), ("triton-trtllm", True), ("tgi", False)]
)
def test_engines_that_tell_their_load_are_asked_to(engine: str, asks: bool) -> None:
    """The pool's route adds the wish, over what a caller may have wished."""
    (listener,) = tree(replace(make_pool("only", "127.0.0.1:8000"), engine=engine))["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    (route,) = [route for route in routes if route.get("name") == "pool_only"]
    added = route.get("request_headers_to_add", [])
    header = {"key": "endpoint-load-metrics-format", "value": "text"}
    assert (header in [one["header"] for one in added]) is asks
    assert all(one["append_action"] == "OVERWRITE_IF_EXISTS_OR_ADD" for one in added)


@pytest.mark.slow
def test_envoy_accepts_it(tmp_path: Path) -> None:
    """The real Envoy finds nothing wrong and nothing deprecated."""
    pools = [
        found("a"),
        found("b", "10.0.0.1:80"),
        replace(found("c", name_url="https://m:1"), http2=True),
        replace(found("d"), engine="tgi", http2=True),
    ]
    verdict = validate(render_envoy(make_settings(pools)), tmp_path)
    assert verdict.returncode == 0, verdict.stderr
    assert "[warning]" not in verdict.stderr, verdict.stderr
