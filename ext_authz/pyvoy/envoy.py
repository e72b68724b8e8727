"""The Envoy that is our listener: pyvoy's configuration for it, with what a gRPC server needs."""

from __future__ import annotations

from typing import Any

APP = "ext_authz.pyvoy.inside:app"
# Long-lived connections would pin a caller to an old replica for ever.
MAX_CONNECTION_AGE = "900s"
GRACE = "10s"
# Beyond the largest message: its prefix, and the beginning of the next one.
SPARE_BYTES = 1 << 16


def envoy_config(made: dict[str, Any], admin: str, max_message_bytes: int) -> dict[str, Any]:
    """`made`, pyvoy's configuration with one listener, as a gRPC host's. `admin` is the path of the
    socket at which orders to Envoy are taken, from this machine only."""
    (listener,) = made["static_resources"]["listeners"]
    (chain,) = listener["filter_chains"]
    manager = chain["filters"][-1]["typed_config"]
    manager |= {
        "codec_type": "HTTP2",
        # A stream of access logs may be silent for hours.
        "stream_idle_timeout": "0s",
        "drain_timeout": GRACE,
        "common_http_protocol_options": {"max_connection_duration": MAX_CONNECTION_AGE},
        "server_header_transformation": "PASS_THROUGH",
    }
    # A message that does not fit is refused before the host could say what is wrong with it.
    listener["per_connection_buffer_limit_bytes"] = max_message_bytes + SPARE_BYTES
    return {**made, "admin": {"address": {"pipe": {"path": admin, "mode": 0o600}}}}
