"""The rendered Envoy bootstrap: read back as YAML, and by Envoy itself."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.config import load
from ext_authz.deploy.envoy import RenderError, render_envoy
from ext_authz.settings import Pool, Settings
from tests.support.envoy import validate
from tests.support.settings import make_edge, make_pool, make_settings

ONE = (make_pool("only", "127.0.0.1:8000", "127.0.0.1:8001", slots=5),)
THREE = (
    make_pool("fast", "vllm-0.gpu.svc:8000", "vllm-1.gpu.svc:8000"),
    make_pool("mixed", "10.0.0.7:8000", "vllm-2.gpu.svc:8000"),
    make_pool("far.away-2", "models.example.com:443", scheme="https"),
)

few = hypothesis.settings(max_examples=40, deadline=None)


def _tree(settings: Settings, admin_port: int = 9901) -> dict[str, Any]:
    tree = yaml.load(render_envoy(settings, admin_port), yaml.CSafeLoader)
    assert isinstance(tree, dict)
    return tree


def _manager(tree: dict[str, Any]) -> dict[str, Any]:
    (listener,) = tree["static_resources"]["listeners"]
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _filters(tree: dict[str, Any]) -> dict[str, Any]:
    return {part["name"]: part["typed_config"] for part in _manager(tree)["http_filters"]}


def _clusters(tree: dict[str, Any]) -> dict[str, Any]:
    return {cluster["name"]: cluster for cluster in tree["static_resources"]["clusters"]}


def _routes(tree: dict[str, Any]) -> list[dict[str, Any]]:
    routes: list[dict[str, Any]] = _manager(tree)["route_config"]["virtual_hosts"][0]["routes"]
    return routes


def _address(socket: dict[str, Any]) -> tuple[str, int]:
    inner = socket["socket_address"]
    return inner["address"], inner["port_value"]


def _endpoints(cluster: dict[str, Any]) -> list[tuple[str, int]]:
    (locality,) = cluster["load_assignment"]["endpoints"]
    return [_address(part["endpoint"]["address"]) for part in locality["lb_endpoints"]]


def test_filters_stand_in_order() -> None:
    """A flood dies in the buckets, the key is forgotten, the gate is asked, the request leaves."""
    assert list(_filters(_tree(make_settings(ONE)))) == [
        "ext_authz.edge_total",
        "ext_authz.edge_key",
        "ext_authz.edge",
        "ext_authz.edge_forget",
        "envoy.filters.http.ext_authz",
        "envoy.filters.http.router",
    ]


def test_every_pool_has_a_route_and_a_cluster() -> None:
    """Pools are reached by their name in x-gpu-pool; the first serves when none is named."""
    tree = _tree(make_settings(THREE))
    by_header = {
        route["match"]["headers"][0]["string_match"]["exact"]: route["route"]["cluster"]
        for route in _routes(tree)
        if str(route.get("name", "")).startswith("pool_")
    }
    assert by_header == {pool.name: f"pool_{pool.name}" for pool in THREE}
    assert {route["route"]["cluster"] for route in _routes(tree)[-3:]} == {"pool_fast"}
    assert set(by_header.values()) < set(_clusters(tree))


def test_no_route_retries_or_times_out() -> None:
    """A retry would be load without a reservation; a stream may last as long as it moves."""
    for route in _routes(_tree(make_settings(THREE))):
        if "route" in route:
            assert "retry_policy" not in route["route"]
            limits = (route["route"]["timeout"], route["route"]["idle_timeout"])
            assert limits == (("5s", "5s") if route["name"] == "preflight" else ("0s", "300s"))


def test_the_backstop_is_the_pools_slots() -> None:
    """A pool's breaker lets through what its endpoints run at once; the gate's lets all through."""
    clusters = _clusters(_tree(make_settings(ONE)))
    backstop, preflights = clusters["pool_only"]["circuit_breakers"]["thresholds"]
    assert (preflights["priority"], preflights["max_requests"]) == ("HIGH", 4)
    assert "priority" not in backstop
    assert (backstop["max_requests"], backstop["max_pending_requests"]) == (10, 10)
    (raised,) = clusters["ext_authz"]["circuit_breakers"]["thresholds"]
    assert (raised["max_requests"], raised["max_pending_requests"]) == (100_000, 100_000)


@pytest.mark.parametrize(
    ("pool", "kind", "policy"),
    [
        (ONE[0], "STATIC", "override_host"),
        (make_pool("six", "[2001:db8::7]:8000"), "STATIC", "override_host"),
        (THREE[0], "STRICT_DNS", "subset"),
        (THREE[1], "STRICT_DNS", "subset"),
    ],
)
def test_addresses_and_names(pool: Pool, kind: str, policy: str) -> None:
    """Addresses are picked by address, names are resolved and picked by label."""
    cluster = _clusters(_tree(make_settings([pool])))[f"pool_{pool.name}"]
    assert cluster["type"] == kind
    (chosen,) = cluster["load_balancing_policy"]["policies"]
    assert chosen["typed_extension_config"]["name"] == f"envoy.load_balancing_policies.{policy}"
    expected = [endpoint.address.rsplit(":", 1) for endpoint in pool.endpoints]
    assert _endpoints(cluster) == [(host.strip("[]"), int(port)) for host, port in expected]


def test_https_endpoints_are_spoken_to_over_tls() -> None:
    """An https endpoint is marked for TLS with a checked name; http pools carry none of it."""
    clusters = _clusters(_tree(make_settings(THREE)))
    assert "transport_socket_matches" not in clusters["pool_fast"]
    (match,) = clusters["pool_far.away-2"]["transport_socket_matches"]
    tls = match["transport_socket"]["typed_config"]
    assert tls["auto_host_sni"] is True
    assert tls["auto_sni_san_validation"] is True
    (locality,) = clusters["pool_far.away-2"]["load_assignment"]["endpoints"]
    labels = locality["lb_endpoints"][0]["metadata"]["filter_metadata"]
    assert labels["envoy.transport_socket_match"] == match["match"]


@pytest.mark.parametrize(
    ("listen", "asked"),
    [
        ("127.0.0.1:9001", ("127.0.0.1", 9001)),
        ("0.0.0.0:9001", ("127.0.0.1", 9001)),
        ("[::]:9001", ("::1", 9001)),
        ("gate.svc:9001", ("gate.svc", 9001)),
    ],
)
def test_where_the_gate_is(listen: str, asked: tuple[str, int]) -> None:
    """Checks and log entries go to the gate's own listener, over clusters of their own."""
    clusters = _clusters(_tree(make_settings(ONE, grpc_listen=listen)))
    assert _endpoints(clusters["ext_authz"]) == [asked]
    assert _endpoints(clusters["ext_authz_access_log"]) == [asked]


def test_the_admin_port_is_on_loopback() -> None:
    """Whoever reaches the admin port owns the process, so only this machine does."""
    edge = make_edge(listen="0.0.0.0:80")
    tree = _tree(make_settings(ONE, edge=edge), admin_port=1234)
    assert _address(tree["admin"]["address"]) == ("127.0.0.1", 1234)
    assert _address(tree["static_resources"]["listeners"][0]["address"]) == ("0.0.0.0", 80)


@pytest.mark.parametrize(
    ("rate", "bucket"),
    [
        (1000.0, (1000, "1s")),
        (2.5, (5, "2s")),
        (0.1, (1, "10s")),
        (1 / 3, (1, "3s")),
        (0.0, (1, "1000s")),
    ],
)
def test_rates_as_tokens_and_seconds(rate: float, bucket: tuple[int, str]) -> None:
    """A rate is written as the least whole numbers that give it."""
    edge = make_edge(requests_per_second=rate, burst=7)
    (descriptor,) = _filters(_tree(make_settings(ONE, edge=edge)))["ext_authz.edge"]["descriptors"]
    written = descriptor["token_bucket"]
    assert (written["tokens_per_fill"], written["fill_interval"]) == bucket
    assert written["max_tokens"] == 7


@few
@given(
    rate=st.floats(0.01, 100_000),
    burst=st.integers(1, 100_000),
    keys=st.integers(1, 1_000_000),
)
def test_pushing_a_key_out_takes_as_long_as_waiting(rate: float, burst: int, keys: int) -> None:
    """Sending `max_keys` requests takes at least the time in which a key's own bucket fills."""
    edge = make_edge(requests_per_second=rate, burst=burst, max_keys=keys)
    filters = _filters(_tree(make_settings(ONE, edge=edge)))
    total = filters["ext_authz.edge_total"]["token_bucket"]
    per_second = Fraction(total["tokens_per_fill"], int(total["fill_interval"].rstrip("s")))
    own_key_fits = per_second >= Fraction(rate).limit_denominator(1000) * Fraction(99, 100)
    assert own_key_fits
    assert total["max_tokens"] >= burst
    if keys >= 2 * burst:
        # 2 %: rates are rounded to thousandths of a request.
        assert (keys - total["max_tokens"]) / per_second >= burst / rate * 0.98 - 0.1


@few
@given(st.floats(0.000_001, 1_000_000, allow_nan=False))
def test_durations_are_plain_decimals(seconds: float) -> None:
    """Durations are never in exponents and never a different time."""
    edge = make_edge(check_timeout_s=seconds)
    gate = _filters(_tree(make_settings(ONE, edge=edge)))["envoy.filters.http.ext_authz"]
    text = gate["grpc_service"]["timeout"]
    assert text.endswith("s")
    assert "e" not in text
    assert float(text[:-1]) == pytest.approx(seconds, abs=1e-6)


@few
@given(st.text(min_size=1).filter(lambda name: name.isprintable()))
def test_names_cannot_break_out(name: str) -> None:
    """Whatever a pool is called, the file stays the same file with that name in it."""
    tree = _tree(make_settings([replace(ONE[0], name=name)]))
    assert f"pool_{name}" in _clusters(tree)
    assert len(_routes(tree)) == len(_routes(_tree(make_settings(ONE))))


@pytest.mark.parametrize("address", ["", "8080", ":8080", "host:", "host:0", "host:99999", "h:x"])
def test_an_address_that_is_none(address: str) -> None:
    """What is not host:port is refused rather than written."""
    with pytest.raises(RenderError, match="not host:port"):
        render_envoy(make_settings(ONE, edge=make_edge(listen=address)))


def test_only_addresses_can_be_listened_on() -> None:
    """Envoy cannot bind to a name: localhost is translated, any other is refused."""
    tree = _tree(make_settings(ONE, edge=make_edge(listen="localhost:80")))
    assert _address(tree["static_resources"]["listeners"][0]["address"]) == ("127.0.0.1", 80)
    with pytest.raises(RenderError, match="is a name"):
        render_envoy(make_settings(ONE, edge=make_edge(listen="edge.example:80")))


def test_a_name_that_does_not_print() -> None:
    """A line break in a name would be another line of configuration; it is refused."""
    with pytest.raises(RenderError, match="not printable"):
        render_envoy(make_settings([replace(ONE[0], name="a\nb")]))


def test_body_and_failure_mode_follow_the_settings() -> None:
    """No body is asked for at 0; the failure mode is Envoy's own word."""
    for size, allow in ((0, True), (65_536, False)):
        edge = make_edge(max_body_bytes=size, failure_mode_allow=allow)
        gate = _filters(_tree(make_settings(ONE, edge=edge)))["envoy.filters.http.ext_authz"]
        assert gate["failure_mode_allow"] is allow
        assert ("with_request_body" in gate) == (size > 0)


def test_every_section_says_why() -> None:
    """The comments survive: a config without reasons gets simplified into a hole."""
    lines = render_envoy(make_settings(ONE)).splitlines()
    assert sum(line.lstrip().startswith("#") for line in lines) >= 40
    assert max(len(line) for line in lines if line.lstrip().startswith("#")) <= 110
    assert not [line for line in lines if not line.strip() or line != line.rstrip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        make_settings(ONE),
        make_settings(THREE, grpc_listen="0.0.0.0:9001"),
        make_settings(THREE, grpc_listen="gate.svc:9001", edge=make_edge(max_body_bytes=0)),
        make_settings(ONE, edge=make_edge(failure_mode_allow=True, listen="[::]:8080")),
        make_settings(ONE, edge=make_edge(requests_per_second=0.3, burst=1, max_keys=1)),
        make_settings(ONE, edge=make_edge(keyless_requests_per_second=0.0)),
        make_settings(()),
    ],
    ids=["one", "three", "no body", "allow", "tiny", "no keyless", "no pool"],
)
def test_envoy_accepts_it(settings: Settings, tmp_path: Path) -> None:
    """The real Envoy finds nothing wrong and nothing deprecated."""
    verdict = validate(render_envoy(settings), tmp_path)
    assert verdict.returncode == 0, verdict.stderr
    assert "OK" in verdict.stdout
    assert "[warning]" not in verdict.stderr, verdict.stderr


def test_the_example_is_rendered_from_its_configuration() -> None:
    """envoy/envoy.yaml is what the renderer makes of envoy/config.yaml today."""
    folder = Path(__file__).parents[2] / "envoy"
    loaded = load(folder / "config.yaml")
    assert loaded.warnings == ()
    assert (folder / "envoy.yaml").read_text() == render_envoy(loaded.settings)
