"""What stands between the clients and the GPUs, as changes of the Envoy configuration that
`ext-authz render envoy` prints: all comparisons start from that one, so that they differ in nothing
but what they are about. Each function changes what it is given and returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

Config = dict[str, Any]

POOL = "pool_"
_ROUTER = "envoy.filters.http.router"
_LEAST_REQUEST = "load_balancing_policies.least_request"


def without_gate(config: Config) -> Config:
    """Plain Envoy: no edge bucket, no ext_authz, no access log, default breakers, everything
    to the first pool. Nothing tells such an Envoy when to use another one."""
    manager = _manager(config)
    manager.pop("access_log", None)
    manager.pop("access_log_options", None)
    manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] == _ROUTER]
    for route in _routes(manager):
        route.pop("typed_per_filter_config", None)
    for cluster in _pool_clusters(config):
        cluster.pop("circuit_breakers", None)
        cluster["load_balancing_policy"] = {"policies": [_least_loaded()]}
    return config


def with_split(config: Config, weights: Mapping[str, float]) -> Config:
    """What went to the first pool goes to all of them in this proportion. Pools that are not
    named get nothing."""
    total = sum(weights.values())
    # Envoy's weights are whole numbers.
    parts = [(pool, round(1000 * weight / total)) for pool, weight in weights.items()]
    for route in _routes(_manager(config)):
        action = route.get("route", {})
        if action.get("cluster") is not None and not _by_pool(route):
            del action["cluster"]
            action["weighted_clusters"] = {
                "clusters": [{"name": POOL + pool, "weight": weight} for pool, weight in parts]
            }
    return config


def pools(config: Config) -> set[str]:
    """The pools that it has clusters for."""
    return {cluster["name"].removeprefix(POOL) for cluster in _pool_clusters(config)}


def with_endpoints_apart(config: Config) -> Config:
    """A cluster for each endpoint in place of one for each pool: `primary-0` and so on. So each can
    have a part of the traffic and a limit by what it can do."""
    found: list[Config] = config["static_resources"]["clusters"]
    clusters = []
    for cluster in found:
        if not cluster["name"].startswith(POOL):
            clusters.append(cluster)
            continue
        for number, endpoint in enumerate(_endpoints(cluster)):
            one = deepcopy(cluster)
            one["name"] = f"{cluster['name']}-{number}"
            one["load_assignment"]["cluster_name"] = one["name"]
            one["load_assignment"]["endpoints"] = [{"lb_endpoints": [endpoint]}]
            clusters.append(one)
    config["static_resources"]["clusters"] = clusters
    for host in _manager(config)["route_config"]["virtual_hosts"]:
        # Nobody names a pool where there is no gate.
        host["routes"] = [route for route in host["routes"] if not _by_pool(route)]
    return config


def with_limits(config: Config, limits: Mapping[str, int]) -> Config:
    """A fixed number of requests in flight to each pool; one more answers 503 at once."""
    for cluster in _pool_clusters(config):
        limit = limits[cluster["name"].removeprefix(POOL)]
        # Connections are left free: a request that waits for one would not be counted.
        threshold = {"max_requests": limit, "max_pending_requests": limit}
        cluster["circuit_breakers"] = {"thresholds": [threshold]}
    return config


def with_static_limit(
    config: Config, limits: Mapping[str, int], weights: Mapping[str, float]
) -> Config:
    """What an operator can do with Envoy alone: traffic split over the pools by their
    capacity, and a fixed number of requests in flight to each."""
    return with_limits(with_split(without_gate(config), weights), limits)


def with_watched_endpoints(config: Config) -> Config:
    """What does not answer on `/health` gets nothing, or the least loaded endpoint would be the
    dead one. A refused connection is noticed at the next look; one that hangs, after a second."""
    for cluster in _pool_clusters(config):
        cluster["health_checks"] = [
            {
                "timeout": "1s",
                "interval": "0.25s",
                # Before its first request a cluster would be looked at once a minute.
                "no_traffic_interval": "0.25s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ]
    return config


def with_filter(config: Config, http_filter: Config) -> Config:
    """One more filter, before all others."""
    _manager(config)["http_filters"].insert(0, http_filter)
    return config


def with_timeouts(config: Config, timeouts_s: Mapping[str, float]) -> Config:
    """Whatever takes longer is cut off with 504, by prefix of the path; the longest one that
    matches."""
    for host in _manager(config)["route_config"]["virtual_hosts"]:
        host["routes"] = [timed for route in host["routes"] for timed in _timed(route, timeouts_s)]
    return config


def without_access_log(config: Config) -> Config:
    """The gate without its feedback: reservations end by their leases only."""
    _manager(config).pop("access_log")
    return config


def _timed(route: Config, timeouts_s: Mapping[str, float]) -> list[Config]:
    """A route, or what it becomes: one of its kind for each path."""
    if "route" not in route or route["match"].get("prefix") != "/":
        return [route]
    routes = []
    for path in sorted(timeouts_s, key=len, reverse=True):
        one = deepcopy(route)
        one["match"]["prefix"] = path
        one["route"]["timeout"] = f"{timeouts_s[path]:g}s"
        # Two of the same name would be one in Envoy's counts.
        one.pop("name", None)
        routes.append(one)
    return routes if "/" in timeouts_s else [*routes, route]


def _least_loaded() -> Config:
    """To the endpoint with the fewest requests in flight, all of them looked at: Envoy's default
    of two drawn by chance leaves room unused, and no figure here is to come from that. Weights
    for endpoints that can do more would do harm: Envoy then takes turns by them instead, and some
    turns put nine tenths of what is in flight on one of two."""
    typed = f"type.googleapis.com/envoy.extensions.{_LEAST_REQUEST}.v3.LeastRequest"
    return {
        "typed_extension_config": {
            "name": f"envoy.{_LEAST_REQUEST}",
            "typed_config": {"@type": typed, "selection_method": "FULL_SCAN"},
        }
    }


def _by_pool(route: Config) -> bool:
    """Whether it asks for the header by which the gate names a pool."""
    headers = route["match"].get("headers", ())
    return any(header["name"] == "x-gpu-pool" for header in headers)


def _manager(config: Config) -> Config:
    listener = config["static_resources"]["listeners"][0]
    manager: Config = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _routes(manager: Config) -> list[Config]:
    return [r for host in manager["route_config"]["virtual_hosts"] for r in host["routes"]]


def _endpoints(cluster: Config) -> list[Config]:
    places = cluster["load_assignment"]["endpoints"]
    return [endpoint for place in places for endpoint in place["lb_endpoints"]]


def _pool_clusters(config: Config) -> list[Config]:
    clusters: list[Config] = config["static_resources"]["clusters"]
    return [cluster for cluster in clusters if cluster["name"].startswith(POOL)]
