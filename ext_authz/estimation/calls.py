"""What the method and the headers alone say of a call.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping

from ext_authz.estimation.shapes.document import Body
from ext_authz.model import HttpCall

BODILESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
# What a call has that carries something beside its headers, however little of it has been seen.
_GROWS = frozenset({"content-type", "transfer-encoding", "upgrade"})


def is_grpc(headers: Mapping[str, str]) -> bool:
    """Whether the caller speaks gRPC, whatever message format it names."""
    return headers.get("content-type", "").lstrip().lower().startswith("application/grpc")


def is_preflight(call: HttpCall) -> bool:
    """Whether a browser asks what it may send: the only call that comes without credentials.

    A real one is nothing but headers. Whatever carries a body, or may still grow one, could hold a
    place before a server for as long as its sender likes, so it needs a key like any other call.
    """
    headers = call.headers
    return (
        call.method == "OPTIONS"
        and bool(headers.get("origin"))
        and bool(headers.get("access-control-request-method"))
        and call.body_bytes == 0
        and not call.body
        and not call.partial
        and _GROWS.isdisjoint(headers)
    )


def runs_nothing(call: HttpCall, body: Body) -> bool:
    """Whether a call carries no body and cannot grow one: a listing, a health check."""
    headers = call.headers
    return (
        call.method in BODILESS_METHODS
        and body.whole_bytes == 0
        and not body.cut
        and "upgrade" not in headers
        and "transfer-encoding" not in headers
        # Envoy asks about these before anything of their body is there.
        and not is_grpc(headers)
    )
