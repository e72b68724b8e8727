"""Settings to a complete Envoy bootstrap: the edge that counts, asks the gate, and routes.

PURE.
"""

from __future__ import annotations

import ipaddress
import json
from fractions import Fraction
from string import Template
from textwrap import indent

from ext_authz.deploy import envoy_cluster_parts as cluster_parts
from ext_authz.deploy import envoy_filter_parts as filter_parts
from ext_authz.deploy import envoy_parts as parts
from ext_authz.errors import ExtAuthzError
from ext_authz.overload import Rule
from ext_authz.settings import DiscoverySettings, EdgeSettings, Endpoint, Pool, Settings

# Envoy's own default; a smaller one would turn large uploads into 413 before any check.
_BUFFER_BYTES = 1024 * 1024
# Stands for the number of endpoints where nobody knows it.
_MANY = 1024
# Engines that tell their load in a response header when they are asked to (ORCA).
_TELL_LOAD = frozenset({"vllm", "triton", "triton-trtllm"})


class RenderError(ExtAuthzError):
    """Settings that have no Envoy configuration."""


def render_envoy(settings: Settings, admin_port: int = 9901) -> str:
    """The bootstrap YAML of an Envoy 1.40 that enforces `settings`.

    The first pool is the one that serves when no pool is named: the gate is disabled, or gone and
    `edge.failure_mode_allow` is set. `admin_port` is Envoy's admin port on loopback. Raises
    `RenderError` if a listen address or an endpoint's address is not host:port with a port to
    connect to, `edge.listen` is a host name, or a name has characters that do not print.
    """
    return _fill(
        parts.BOOTSTRAP,
        admin_port=admin_port,
        listener=indent(_listener(settings), "  "),
        clusters=indent(_clusters(settings), "  "),
    )


def cluster_name(pool: Pool) -> str:
    """The name of a pool's cluster, in Envoy's statistics and in access-log entries."""
    return f"pool_{pool.name}"


def _fill(template: str, **values: object) -> str:
    """Fill in a template, closing the gaps that empty or newline-ended sections leave."""
    text = Template(template).substitute({name: str(value) for name, value in values.items()})
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


def _quoted(text: str) -> str:
    """A YAML scalar that can only be read as this text: JSON strings are YAML."""
    if not text.isprintable():
        raise RenderError(f"not printable: {text!r}")
    return json.dumps(text, ensure_ascii=False)


def _duration(seconds: float) -> str:
    """A protobuf duration; plain decimals, since exponents are not accepted."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _bucket(rate: float, burst: int) -> str:
    """A token bucket of `rate` per second; the least whole tokens per whole seconds that give it.

    Envoy refills in between as well, so the interval is no window. It knows no empty bucket: a
    rate of 0 becomes one request in 1000 seconds.
    """
    exact = max(Fraction(rate).limit_denominator(1000), Fraction(1, 1000))
    return (
        f"{{max_tokens: {max(1, burst)}, tokens_per_fill: {exact.numerator}, "
        f"fill_interval: {exact.denominator}s}}"
    )


def _total_bucket(edge: EdgeSettings) -> str:
    """The bucket of all requests together.

    To push one key out, `max_keys` others must arrive after its last request. With a rate of
    max_keys x r / 2b and a burst of max_keys / 2 that takes at least
    (max_keys - max_keys / 2) / rate = b / r seconds: as long as the key's own bucket needs to
    fill from empty. A fresh bucket is then no more than what it would have had anyway.
    """
    burst = max(1, edge.burst)
    rate = max(edge.max_keys / (2 * burst), 1.0) * edge.requests_per_second
    return _bucket(rate, max(burst, edge.max_keys // 2))


def _listener(settings: Settings) -> str:
    edge = settings.edge
    host, port = _host_port(edge.listen)
    host = "127.0.0.1" if host == "localhost" else host
    if not _is_ip(host):
        # Envoy binds sockets to addresses only.
        raise RenderError(f"edge.listen is a name: {edge.listen!r}; write an address")
    access_log = _fill(
        parts.ACCESS_LOG,
        periodic=_duration(edge.access_log_periodic_s),
        flush=_duration(edge.access_log_flush_s),
    )
    return _fill(
        parts.LISTENER,
        host=_quoted(host),
        port=port,
        buffer_bytes=max(_BUFFER_BYTES, edge.max_body_bytes),
        local_replies=indent(_fill(parts.LOCAL_REPLIES), " " * 8),
        access_log=indent(access_log, " " * 8),
        filters=indent(_filters(settings), " " * 8),
        routes=indent(_routes(settings), " " * 8),
    )


def _filters(settings: Settings) -> str:
    edge = settings.edge
    body = Template(filter_parts.BODY if edge.max_body_bytes else filter_parts.NO_BODY)
    filters = _edge_buckets(settings) + _fill(
        filter_parts.EXT_AUTHZ,
        timeout=_duration(edge.check_timeout_s),
        failure_mode_allow=str(edge.failure_mode_allow).lower(),
        body=body.substitute(max_body_bytes=edge.max_body_bytes),
    )
    if any(_is_named(pool) for pool in settings.admission.pools.values()):
        filters += filter_parts.ENDPOINT_SUBSET
    if edge.tapped_ratio > 0:
        filters += _fill(filter_parts.TAP, parts=max(1, round(edge.tapped_ratio * 1_000_000)))
    return filters


def _edge_buckets(settings: Settings) -> str:
    edge, headers = settings.edge, settings.server.key_headers
    actions = [
        "- actions: [{metadata: {descriptor_key: api_key, source: DYNAMIC, metadata_key: "
        f"{{key: ext_authz.edge, path: [{{key: key_{place}}}]}}}}}}]"
        for place in range(len(headers))
    ]
    return _fill(
        filter_parts.EDGE_BUCKETS,
        max_keys=edge.max_keys,
        total_bucket=_total_bucket(edge),
        key_bucket=_bucket(edge.requests_per_second, edge.burst),
        keyless_bucket=_bucket(
            edge.keyless_requests_per_second, round(edge.keyless_requests_per_second)
        ),
        key_rules=indent("\n".join(map(_key_rule, range(len(headers)), headers)), " " * 4),
        key_actions=indent("\n".join(actions), " " * 4),
        key_blanks=", ".join(f'key_{place}: ""' for place in range(len(headers))),
        refusal=filter_parts.REFUSAL,
    )


def _key_rule(place: int, header: str) -> str:
    rewrite = ""
    if header.lower() == "authorization":
        rewrite = (
            ', regex_value_rewrite: {pattern: {regex: "(?i)^bearer[ \\\\t]+"}, substitution: ""}'
        )
    return (
        f"- {{header: {_quoted(header.lower())}, remove: false, on_header_present: "
        f"{{metadata_namespace: ext_authz.edge, key: key_{place}, type: STRING{rewrite}}}}}"
    )


def _routes(settings: Settings) -> str:
    pools = tuple(settings.admission.pools.values())
    routes = "".join(
        _fill(
            parts.POOL_ROUTE,
            name=_quoted(cluster_name(pool)),
            pool=_quoted(pool.name),
            cluster=_quoted(cluster_name(pool)),
            load_report=indent(_asks_for_load(pool), "  "),
        )
        for pool in pools
    )
    if pools:
        default = _fill(parts.DEFAULT_ROUTES, cluster=_quoted(cluster_name(pools[0])))
    else:
        default = parts.NO_POOL_ROUTE
    return _fill(
        parts.ROUTES,
        pool_routes=indent(routes, " " * 4),
        default_routes=indent(default, " " * 4),
    )


def _asks_for_load(pool: Pool) -> str:
    return parts.ASK_FOR_LOAD if pool.engine in _TELL_LOAD else ""


def _clusters(settings: Settings) -> str:
    host, port = _host_port(settings.server.grpc_listen)
    kind = "STATIC" if _is_ip(host) else "STRICT_DNS"
    gate = _fill(
        cluster_parts.GATE_CLUSTERS,
        type=kind,
        # A server that listens everywhere is asked on loopback.
        host=_quoted({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)),
        port=port,
    )
    if settings.edge.tapped_ratio > 0:
        gate += _fill(cluster_parts.TAP_CLUSTER, type=kind)
    enforcing, pools = settings.admission.enforcing, settings.admission.pools.values()
    return gate + "".join(_pool_cluster(p, enforcing.spares(Rule.CAPACITY, p.name)) for p in pools)


def _pool_cluster(pool: Pool, spared: bool) -> str:
    if pool.discovery is not None:
        return _found_cluster(pool, pool.discovery)
    note = cluster_parts.SPARED if spared else ""
    if _is_named(pool):
        return _cluster(pool, "STRICT_DNS", cluster_parts.SUBSET, pool.endpoints, note)
    return _cluster(pool, "STATIC", cluster_parts.OVERRIDE_HOST, pool.endpoints, note)


def _found_cluster(pool: Pool, discovery: DiscoverySettings) -> str:
    """A cluster for endpoints that are not known yet."""
    url = discovery.name_url
    if url is None:
        note = cluster_parts.FOUND_BY_GATE
        return _cluster(pool, "ORIGINAL_DST", cluster_parts.ORIGINAL_DST, (), note)
    named = Endpoint(url.partition("://")[2], url, discovery.max_concurrency, device="")
    endpoints = (*pool.endpoints, named)
    note = cluster_parts.FOUND_BY_NAME
    # The gate looks up both families, and names addresses.
    return _cluster(pool, "STRICT_DNS", cluster_parts.OVERRIDE_HOST, endpoints, note)


def _cluster(
    pool: Pool, kind: str, policy: str, endpoints: tuple[Endpoint, ...], note: str = ""
) -> str:
    known = pool.discovery.max_concurrency if pool.discovery else pool.slots
    slots = known * _MANY if note else known
    tls = any(endpoint.url.startswith("https:") for endpoint in endpoints)
    assignment = ""
    if endpoints:
        assignment = _fill(
            cluster_parts.LOAD_ASSIGNMENT,
            cluster=_quoted(cluster_name(pool)),
            endpoints=indent("\n".join(map(_endpoint, endpoints)), " " * 4),
        )
    return _fill(
        cluster_parts.POOL_CLUSTER,
        note=note,
        cluster=_quoted(cluster_name(pool)),
        type=kind,
        family="V4_PREFERRED" if pool.discovery is None else "ALL",
        slots=max(1, slots),
        connections=max(1024, 4 * slots),
        policy=indent(policy, "  "),
        protocol=indent(cluster_parts.HTTP2, "  ") if pool.http2 else "",
        tls=indent(cluster_parts.TLS, "  ") if tls else "",
        assignment=indent(assignment, "  "),
    )


def _endpoint(endpoint: Endpoint) -> str:
    host, port = _host_port(endpoint.address)
    labels = []
    if not _is_ip(host):
        labels.append(f"envoy.lb: {{endpoint: {_quoted(endpoint.address)}}}")
    if endpoint.url.startswith("https:"):
        labels.append("envoy.transport_socket_match: {tls: true}")
    return (
        f"- {{endpoint: {{hostname: {_quoted(host)}, address: {{socket_address: "
        f"{{address: {_quoted(host)}, port_value: {port}}}}}}}, "
        f"metadata: {{filter_metadata: {{{', '.join(labels)}}}}}}}"
    )


def _is_named(pool: Pool) -> bool:
    """Whether its endpoints are picked by label. Those that are found are addresses."""
    return pool.discovery is None and not all(
        _is_ip(_host_port(endpoint.address)[0]) for endpoint in pool.endpoints
    )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_port(address: str) -> tuple[str, int]:
    """Split host:port; an IPv6 host stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise RenderError(f"not host:port: {address!r}; write one such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)
