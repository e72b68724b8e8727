"""The text of the Envoy bootstrap, section by section, as templates.

PURE. Text rather than a dumped tree, because a dump would lose the comments, and an edge config
without its reasons gets "simplified" into a hole. `$name` is filled in by `envoy.py`.
"""

from __future__ import annotations

BOOTSTRAP = """\
# Rendered by ext-authz for Envoy 1.40 or later; change the configuration it comes from instead.
# Fields an older Envoy refuses: enable_retry_after_header, clear_route_cache_headers.
node: {id: ext-authz-edge, cluster: ext-authz-edge}
admin:
  # Loopback only: the admin port can drain and stop this process.
  address: {socket_address: {address: 127.0.0.1, port_value: $admin_port}}
overload_manager:
  resource_monitors:
  # Every other bound here is per request or per key; this one is per socket.
  - name: envoy.resource_monitors.global_downstream_max_connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: 50000
static_resources:
  listeners:
$listener
  clusters:
$clusters
"""  # noqa: E501

LISTENER = """\
- name: edge
  address: {socket_address: {address: $host, port_value: $port}}
  # A body longer than this answers 413 before any check, even when a partial one would do.
  per_connection_buffer_limit_bytes: $buffer_bytes
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: edge
        # The peer is the client: x-request-id is made here, and no x-envoy-* that steers retries or
        # timeouts is taken from outside. Nobody is internal: without the range, which nobody can have,
        # callers on private addresses would be.
        use_remote_address: true
        internal_address_config: {cidr_ranges: [{address_prefix: 255.255.255.255, prefix_len: 32}]}
        # The gate and the server behind it must read the same path.
        normalize_path: true
        merge_slashes: true
        upgrade_configs: [{upgrade_type: websocket}]
        # What one HTTP/2 connection may make this process hold before anybody checked its key.
        http2_protocol_options:
          max_concurrent_streams: 100
          initial_stream_window_size: 65536
          initial_connection_window_size: 1048576
        # A client that never finishes its headers, and a stream on which nothing moves.
        request_headers_timeout: 10s
        stream_idle_timeout: 300s
        # Only the gate may say these. Stripped before routing and before every filter: a filter in
        # the chain would come too late, as the route is already chosen by then.
        early_header_mutation_extensions:
        - name: envoy.http.early_header_mutation.header_mutation
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
            mutations:
            - {remove_on_match: {key_matcher: {prefix: x-gpu-, ignore_case: true}}}
            # Envoy's own words to the gate (partial body) and to the upstream (failure mode).
            - {remove_on_match: {key_matcher: {prefix: x-envoy-auth-, ignore_case: true}}}
$local_replies
$access_log
        http_filters:
$filters
        - name: envoy.filters.http.router
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
$routes
"""  # noqa: E501

LOCAL_REPLIES = """\
# Envoy's own refusals (edge bucket, full breaker, gate or upstream gone) get a Retry-After and a
# body that SDKs can read. A denial by the gate keeps its own body and headers: nothing here
# replaces a header, and bodies are given only to replies that are not the gate's.
local_reply_config:
  mappers:
  # A gRPC caller reads its body as grpc-message, so JSON would be noise there.
  - filter:
      and_filter:
        filters:
        - &not_the_gate
          extension_filter:
            name: envoy.access_loggers.extension_filters.cel
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter
              # Every answer of the gate that has a body names its content type.
              expression: "response.code_details != 'ext_authz_denied' && !('content-type' in response.headers)"
        - &temporary
          or_filter:
            filters:
            - {status_code_filter: {comparison: {op: EQ, value: {default_value: 429, runtime_key: edge.status_429}}}}
            - {status_code_filter: {comparison: {op: EQ, value: {default_value: 503, runtime_key: edge.status_503}}}}
            - {status_code_filter: {comparison: {op: EQ, value: {default_value: 504, runtime_key: edge.status_504}}}}
        - {header_filter: {header: {name: content-type, string_match: {prefix: application/grpc}}}}
    headers_to_add:
    - &retry_after {header: {key: retry-after, value: "1"}, append_action: ADD_IF_ABSENT}
    - {header: {key: grpc-retry-pushback-ms, value: "1000"}, append_action: ADD_IF_ABSENT}
  - filter:
      and_filter:
        filters:
        - *not_the_gate
        - {status_code_filter: {comparison: {op: EQ, value: {default_value: 429, runtime_key: edge.status_429}}}}
    headers_to_add: [*retry_after]
    body_format_override:
      content_type: application/json
      text_format_source: {inline_string: '{"type":"error","error":{"type":"rate_limit_error","code":"edge_rate_limit","message":"Too many requests; retry after the time given.","param":null}}'}
  - filter: {and_filter: {filters: [*not_the_gate, *temporary]}}
    headers_to_add: [*retry_after]
    body_format_override:
      content_type: application/json
      text_format_source: {inline_string: '{"type":"error","error":{"type":"overloaded_error","code":"edge_unavailable","message":"The service cannot take this request now; retry after the time given.","param":null}}'}
  # Also a gate that forgot its Retry-After.
  - filter: *temporary
    headers_to_add: [*retry_after]
"""  # noqa: E501

ACCESS_LOG = """\
# Periodic entries renew the lease of a long stream.
access_log_options: {access_log_flush_interval: $periodic}
access_log:
# The outcome loop: how each admitted request ended, sent to the gate.
- name: envoy.access_loggers.http_grpc
  # Only what may be booked: a flood of refusals must not cost the gate a second message each.
  filter:
    or_filter:
      filters:
      # Admitted.
      - metadata_filter:
          matcher: {filter: envoy.filters.http.ext_authz, path: [{key: decision_id}], value: {present_match: true}}
          match_if_key_not_found: false
      # Perhaps admitted, but by an answer that came too late or to nobody: refused or let pass by
      # the failure mode, or left by its client. Without these every overload of the gate would
      # fill the pools with bookings of requests that never ran.
      - and_filter:
          filters:
          - {response_flag_filter: {flags: [UAEX]}}
          - {status_code_filter: {comparison: {op: EQ, value: {default_value: 503, runtime_key: ext_authz.status_on_error}}}}
      - {header_filter: {header: {name: x-envoy-auth-failure-mode-allowed, present_match: true}}}
      - {response_flag_filter: {flags: [DC, DR]}}
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
    common_config:
      log_name: ext_authz
      transport_api_version: V3
      grpc_service: {envoy_grpc: {cluster_name: ext_authz_access_log}}
      # A late outcome is load that is no longer there.
      buffer_flush_interval: $flush
      # Also the cap beyond which entries are dropped without a word.
      buffer_size_bytes: 1048576
    # What a server says of its load: plain, or as a message in base64. How a gRPC call ended,
    # which stands among the headers if it failed at once.
    additional_response_headers_to_log: [endpoint-load-metrics, endpoint-load-metrics-bin, grpc-status]
    additional_response_trailers_to_log: [endpoint-load-metrics, endpoint-load-metrics-bin, grpc-status]
"""  # noqa: E501

ROUTES = """\
route_config:
  name: edge
  virtual_hosts:
  - name: all
    domains: ["*"]
    routes:
    # This process is alive. Free of buckets, so that a flood without keys cannot fail the probes.
    - match: {path: /healthz}
      direct_response: {status: 200}
      typed_per_filter_config:
        ext_authz.edge_total: &off {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}
        ext_authz.edge: *off
        envoy.filters.http.ext_authz: *off
    # Timeouts: an answer may stream for as long as it moves; idle_timeout ends one that does not.
    # No retries anywhere: a second attempt would be load that no reservation covers.
    # Engines that tell their load with each answer (ORCA) are asked to, whatever a caller wished,
    # and in lower case, which is all that some of them understand.
$pool_routes
    # From here on no pool was named: how a request looks to the filters before the gate speaks, and
    # where it goes when the gate is off or gone and failure_mode_allow is set.
$default_routes
"""  # noqa: E501

POOL_ROUTE = """\
- name: $name
  match: {prefix: /, headers: [{name: x-gpu-pool, string_match: {exact: $pool}}]}
  route: {cluster: $cluster, timeout: 0s, idle_timeout: 300s}
$load_report
"""

ASK_FOR_LOAD = """\
request_headers_to_add: [{header: {key: endpoint-load-metrics-format, value: text}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}]
"""  # noqa: E501

DEFAULT_ROUTES = """\
# A gRPC call of one message: the check waits for it, as for any body, and prices its tensors.
- name: unary_inference
  match: {path: /inference.GRPCInferenceService/ModelInfer, grpc: {}}
  route: {cluster: $cluster, timeout: 0s, idle_timeout: 300s}
# Any other gRPC: the check must not wait for the end of a stream, so none of it is read.
- name: default_grpc
  match: {prefix: /, grpc: {}}
  route: {cluster: $cluster, timeout: 0s, idle_timeout: 300s}
  typed_per_filter_config:
    envoy.filters.http.ext_authz:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute
      check_settings: {disable_request_body_buffering: true}
# What a browser asks before it sends anything, without a key. HIGH is no privilege: it
# names the breaker that nothing else uses.
- name: preflight
  match:
    prefix: /
    headers:
    - {name: ":method", string_match: {exact: OPTIONS}}
    - {name: access-control-request-method, present_match: true}
  route: {cluster: $cluster, priority: HIGH, timeout: 5s, idle_timeout: 5s}
- name: default
  match: {prefix: /}
  route: {cluster: $cluster, timeout: 0s, idle_timeout: 300s}
"""

NO_POOL_ROUTE = """\
# No pool is configured: nothing to send requests to.
- name: default
  match: {prefix: /}
  direct_response: {status: 503}
"""
