"""The clusters of the Envoy bootstrap as templates: the gate's, and one for each pool.

PURE. `$name` is filled in by `envoy.py`.
"""

from __future__ import annotations

GATE_CLUSTERS = """\
# Raised here only: at the default of 1024 a burst of checks would be refused by Envoy itself.
- name: ext_authz
  type: $type
  dns_lookup_family: V4_PREFERRED
  connect_timeout: 0.25s
  circuit_breakers: {thresholds: [{max_requests: 100000, max_pending_requests: 100000, max_connections: 100000, max_retries: 1024}]}
  typed_extension_protocol_options: &h2
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {http2_protocol_options: {}}
  load_assignment: {cluster_name: ext_authz, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: &gate {address: $host, port_value: $port}}}}]}]}
# The same server; a cluster of its own, so that log streams and checks share no connection or breaker.
- name: ext_authz_access_log
  type: $type
  dns_lookup_family: V4_PREFERRED
  connect_timeout: 0.25s
  typed_extension_protocol_options: *h2
  load_assignment: {cluster_name: ext_authz_access_log, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: *gate}}}]}]}
"""  # noqa: E501

TAP_CLUSTER = """\
# The same server, apart for the same reason. Beyond the breaker answers pass without being shown.
- name: ext_authz_tap
  type: $type
  dns_lookup_family: V4_PREFERRED
  connect_timeout: 0.25s
  circuit_breakers: {thresholds: [{max_requests: 256, max_pending_requests: 256}]}
  # An answer of which more than this was not taken from us yet waits: the one way in which the gate
  # could hold it up. Few are that long; and a gate that hangs is left after two seconds.
  per_connection_buffer_limit_bytes: 4194304
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {http2_protocol_options: {connection_keepalive: {interval: 1s, timeout: 1s}}}
  load_assignment: {cluster_name: ext_authz_tap, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: *gate}}}]}]}
"""  # noqa: E501

POOL_CLUSTER = """\
$note
- name: $cluster
  type: $type
  dns_lookup_family: $family
  connect_timeout: 1s
  # The static backstop, in force even when the gate is off, gone or wrong: as many requests as the
  # servers run at once; one more answers 503 with x-envoy-overloaded. Connections are not the scarce
  # thing: idle ones of other workers must not starve a pool that has room.
  # Preflights, which need no key, have a few places of their own, so that they take no other's.
  circuit_breakers:
    thresholds:
    - {max_requests: $slots, max_pending_requests: $slots, max_connections: $connections}
    - {priority: HIGH, max_requests: 4, max_pending_requests: 4, max_connections: 1024}
$protocol$policy
$tls
$assignment
"""  # noqa: E501

FOUND_BY_NAME = """\
# The addresses of one name, resolved again and again. How many there are is not known here, so that
# the breaker below holds back nothing: set it to what your servers run at once.
"""

FOUND_BY_GATE = """\
# The gate finds the endpoints of this pool and names one for each request: its word is where the
# request goes, and nobody else can say it, as x-gpu-* from outside is stripped. Without a word (a
# preflight, the gate disabled, or gone and its failure mode allows) there is nowhere to go: 503. To
# have a choice then, and TLS, put a cluster of type EDS with your own control plane in its place.
# How many endpoints there are is not known here, so that the breaker below holds back nothing: set
# it to what your servers run at once.
"""

SPARED = """\
# Capacity is not enforced for everybody here: the breaker below holds back nothing, or it would
# refuse in the gate's place. Render again when it is.
"""

ORIGINAL_DST = """\
lb_policy: CLUSTER_PROVIDED
original_dst_lb_config: {use_http_header: true, http_header_name: x-gpu-endpoint}
"""

LOAD_ASSIGNMENT = """\
load_assignment:
  cluster_name: $cluster
  endpoints:
  - lb_endpoints:
$endpoints
"""

HTTP2 = """\
# gRPC inference servers speak nothing else.
typed_extension_protocol_options: *h2
"""

OVERRIDE_HOST = """\
# The endpoint the gate chose; the least loaded one when it named none, or one that is gone.
load_balancing_policy:
  policies:
  - typed_extension_config:
      name: envoy.load_balancing_policies.override_host
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
        override_host_sources: [{header: x-gpu-endpoint}]
        fallback_policy:
          policies:
          - typed_extension_config:
              name: envoy.load_balancing_policies.least_request
              typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest}
"""  # noqa: E501

SUBSET = """\
# The endpoint the gate chose, by label, because override_host knows addresses only and the gate
# knows names; the least loaded one when it named none, or one that is gone.
load_balancing_policy:
  policies:
  - typed_extension_config:
      name: envoy.load_balancing_policies.subset
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.subset.v3.Subset
        fallback_policy: ANY_ENDPOINT
        subset_selectors: [{keys: [endpoint], fallback_policy: ANY_ENDPOINT}]
        subset_lb_policy:
          policies:
          - typed_extension_config:
              name: envoy.load_balancing_policies.least_request
              typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest}
"""  # noqa: E501

TLS = """\
# Endpoints marked tls are spoken to over TLS and must prove the name in their URL.
transport_socket_matches:
- name: tls
  match: {tls: true}
  transport_socket:
    name: envoy.transport_sockets.tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      auto_host_sni: true
      auto_sni_san_validation: true
      common_tls_context: {validation_context: {trusted_ca: {filename: /etc/ssl/certs/ca-certificates.crt}}}
"""  # noqa: E501
