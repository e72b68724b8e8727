"""What stands between the clients and the GPUs in each run, as Envoy configuration.

All variants start from the one that `ext-authz render envoy` prints, so that they differ in
nothing but what they are about.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_ROUTER = "envoy.filters.http.router"


def without_gate(config: Config) -> Config:
    """Plain Envoy: no edge bucket, no ext_authz, no access log, default breakers, everything
    to the primary servers. Nothing tells such an Envoy when to use the economy server."""
    manager = _manager(config)
    manager.pop("access_log", None)
    manager.pop("access_log_options", None)
    manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] == _ROUTER]
    for route in _routes(manager):
        route.pop("typed_per_filter_config", None)
    for cluster in _pool_clusters(config):
        cluster.pop("circuit_breakers", None)
    return config


def with_static_limit(config: Config, limits: dict[str, int], weights: dict[str, int]) -> Config:
    """What an operator can do with Envoy alone: traffic split over both pools by their
    capacity, and a fixed number of requests in flight to each."""
    config = without_gate(config)
    for cluster in _pool_clusters(config):
        limit = limits[cluster["name"].removeprefix("pool_")]
        # Connections are left free: a request that waits for one would not be counted.
        threshold = {"max_requests": limit, "max_pending_requests": limit}
        cluster["circuit_breakers"] = {"thresholds": [threshold]}
    for route in _routes(_manager(config)):
        action = route.get("route", {})
        if action.pop("cluster", None) is not None:
            action["weighted_clusters"] = {
                "clusters": [{"name": f"pool_{p}", "weight": w} for p, w in weights.items()]
            }
    return config


def without_access_log(config: Config) -> Config:
    """The gate without its feedback: reservations end by their leases only."""
    _manager(config).pop("access_log")
    return config


def _manager(config: Config) -> Config:
    listener = config["static_resources"]["listeners"][0]
    manager: Config = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _routes(manager: Config) -> list[Config]:
    return [r for host in manager["route_config"]["virtual_hosts"] for r in host["routes"]]


def _pool_clusters(config: Config) -> list[Config]:
    clusters: list[Config] = config["static_resources"]["clusters"]
    return [cluster for cluster in clusters if cluster["name"].startswith("pool_")]
