"""Envoy external authorization from live GPU state. `ext-authz --help` is the way in."""
