"""The filters of the Envoy bootstrap as templates: edge buckets, the call to the gate, the tap.

PURE. `$name` is filled in by `envoy.py`.
"""

from __future__ import annotations

EDGE_BUCKETS = """\
# 1. What all callers together may send: max_keys x rate / (2 x burst) a second. Envoy keeps buckets
# of the $max_keys keys seen last, and a forgotten key starts full again: somebody who invents keys
# fast enough could push a real key out and so refill it. At this rate that takes no less time than
# the bucket needs to fill by itself, so nothing is gained. The price: a flood beyond it is refused
# together with everybody else's requests until it ends. Raise max_keys to allow more.
- name: ext_authz.edge_total
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
    stat_prefix: edge_total
    token_bucket: $total_bucket
$refusal
# 2. Which key this is, whichever header brings it and however "Bearer" is written; otherwise each
# spelling would be a fresh bucket.
- name: ext_authz.edge_key
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
    request_rules:
$key_rules
# 3. The hard cap of one key. No key is listed: a descriptor without a value is a bucket for each.
# A request that brings several keys is charged to all of them: a made-up second one is no escape.
- name: ext_authz.edge
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
    stat_prefix: edge
    # For requests without any key, preflights among them.
    token_bucket: $keyless_bucket
    always_consume_default_token_bucket: false
    max_dynamic_descriptors: $max_keys
    rate_limits:
$key_actions
    descriptors:
    - {entries: [{key: api_key}], token_bucket: $key_bucket}
$refusal
# 4. Forget the key: dynamic metadata is copied into access-log entries.
- name: ext_authz.edge_forget
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata:
    - {metadata_namespace: ext_authz.edge, allow_overwrite: true, value: {$key_blanks}}
"""

# x-ratelimit-* headers stay off: they would stand beside the gate's own on every answer.
REFUSAL = """\
    # Both default to 0 %.
    filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}
    filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}
    enable_x_ratelimit_headers: "OFF"
    enable_retry_after_header: true
    # gRPC: 8 instead of 14, which meshes retry at once. HTTP: the header that stops their retries.
    rate_limited_as_resource_exhausted: true
    response_headers_to_add:
    - {header: {key: x-envoy-ratelimited, value: "true"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
"""

EXT_AUTHZ = """\
- name: envoy.filters.http.ext_authz
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
    transport_api_version: V3
    stat_prefix: gate
    grpc_service:
      timeout: $timeout
      envoy_grpc: {cluster_name: ext_authz}
      # A gate that ends turns away the Checks it has not begun; its successor, or another one,
      # decides them. Nothing is asked again where no server answers: that only takes longer. All
      # tries are within the timeout; as Envoy gives each of them no more than the maximum interval,
      # that is as long. Of a Check of more than 64 KiB Envoy keeps no copy: its second try fails,
      # as it would have without one.
      retry_policy:
        retry_on: refused-stream,unavailable,cancelled
        num_retries: 2
        retry_back_off: {base_interval: 0.01s, max_interval: $timeout}
    # What happens when no answer comes; a denial is never turned into a pass by this.
    failure_mode_allow: $failure_mode_allow
    failure_mode_allow_header_add: true
    # 403, the default, makes SDKs give up.
    status_on_error: {code: ServiceUnavailable}
$body
    # Bytes as the client sent them, and duplicates apart.
    encode_raw_headers: true
    disallowed_headers: {patterns: [{exact: cookie, ignore_case: true}]}
    # Without this the route stays the one chosen before the gate spoke.
    clear_route_cache: true
    clear_route_cache_headers: [x-gpu-pool]
    # The gate may set and remove its own headers and nothing else.
    decoder_header_mutation_rules: {disallow_all: true, allow_expression: {regex: "^x-gpu-.*"}}
    validate_mutations: true
    max_denied_response_body_bytes: 16384
"""

BODY = """\
    # pack_as_bytes: as text, invalid UTF-8 would be replaced and binary tensors corrupted.
    with_request_body: {max_request_bytes: $max_body_bytes, allow_partial_message: true, pack_as_bytes: true}
"""  # noqa: E501

NO_BODY = """\
    # No body is buffered: requests are priced by their headers alone.
"""

ENDPOINT_SUBSET = """\
# Pools of named hosts: the endpoint's name becomes a load-balancing label (see their clusters).
- name: ext_authz.endpoint
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
    request_rules:
    - {header: x-gpu-endpoint, on_header_present: {metadata_namespace: envoy.lb, key: endpoint, type: STRING}, remove: false}
"""  # noqa: E501

TAP = """\
# Shows $parts of a million admitted answers to the gate as they pass: when the first token came, and
# what the engine counted. Envoy waits for nothing here, and carries on when nobody listens. Last, so
# that only what was admitted and answered by a server is seen.
- name: ext_authz.tap
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher
    xds_matcher:
      matcher_list:
        matchers:
        - predicate:
            single_predicate:
              input:
                name: x-gpu-pool
                typed_config: {"@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-gpu-pool}
              value_match: {safe_regex: {google_re2: {}, regex: ".+"}}
          on_match:
            action:
              name: tap
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.http.composite.v3.ExecuteFilterAction
                sample_percent: {default_value: {numerator: $parts, denominator: MILLION}}
                typed_config:
                  name: envoy.filters.http.ext_proc
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                    stat_prefix: tap
                    grpc_service: {envoy_grpc: {cluster_name: ext_authz_tap}}
                    observability_mode: true
                    failure_mode_allow: true
                    # How long what was sent last has to arrive.
                    deferred_close_timeout: 1s
                    processing_mode:
                      request_header_mode: SKIP
                      response_header_mode: SEND
                      response_body_mode: STREAMED
                      response_trailer_mode: SKIP
                    # No cookies and no tokens: what kind of an answer it is.
                    forward_rules: {allowed_headers: {patterns: [{exact: ":status"}, {exact: content-type}, {exact: content-encoding}]}}
                    # Whose answer it is.
                    metadata_options: {forwarding_namespaces: {untyped: [envoy.filters.http.ext_authz]}}
    extension_config:
      name: composite
      typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.composite.v3.Composite}
"""  # noqa: E501
