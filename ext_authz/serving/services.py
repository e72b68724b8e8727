"""The gRPC services that every host serves, by the names Envoy calls them."""

from __future__ import annotations

AUTHORIZATION = "envoy.service.auth.v3.Authorization"
ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"
TAP = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = "grpc.health.v1.Health"
