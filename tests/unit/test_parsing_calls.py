"""Calls that are told by method and headers: gRPC, preflights, calls without a body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_authz.estimation.calls import is_preflight
from ext_authz.estimation.parsing import parse
from ext_authz.model import Api, HttpCall, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT = "/v1/chat/completions"
RULES = CostRules()


def call(body: bytes, path: str = CHAT, **headers: str) -> HttpCall:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpCall("POST", path, named, body, len(body), partial=False)


def said(*content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m1", "messages": [{"role": "user", "content": c} for c in content], **more}


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "Application/gRPC"])
@pytest.mark.parametrize(
    ("path", "model"),
    [("/inference.GRPCInferenceService/ModelInfer", "resnet"), ("/vllm.grpc.VllmEngine/Go", None)],
)
@pytest.mark.parametrize("seen", [0, 3, 13])
def test_a_grpc_call_costs_the_configured_price(
    kind: str, path: str, model: str | None, seen: int
) -> None:
    """O-18: a frame is never read as JSON and has the price of a call where it holds no tensor,
    whether it is an inference request, another service's or has not arrived."""
    frame = b"\x00\x00\x00\x00\x08\x0a\x06resnet"
    headers = {"content-type": kind, "te": "trailers"}
    request = parse(HttpCall("POST", path, headers, frame[:seen], seen or -1, partial=seen < 13))
    assert (request.api, request.operation) == (Api.GRPC, Operation.OPAQUE)
    assert (request.model, request.unread) == (model if seen == 13 else None, Unread.GRPC)
    assert estimate(request, RULES).tokens == RULES.opaque_tokens


def test_a_frame_whose_size_looks_like_a_bracket_is_no_json() -> None:
    """O-18: 123 bytes announce themselves with the sign that opens a JSON object."""
    frame = b"\x00\x00\x00\x00{" + b'"max_tokens":9000}'.ljust(123)
    request = parse(call(frame, content_type="application/grpc"))
    assert (request.unread, request.output_cap_tokens) == (Unread.GRPC, None)
    assert estimate(request, RULES).tokens == RULES.opaque_tokens


def test_json_that_claims_to_be_grpc_is_not_cheaper() -> None:
    """The content type alone does not hide a cap."""
    body = json.dumps(said("x", max_tokens=9000)).encode()
    request = parse(call(body, content_type="application/grpc"))
    assert (request.api, request.opaque) == (Api.GRPC, True)
    assert request.output_cap_tokens == 9000


def test_a_call_without_body_costs_next_to_nothing() -> None:
    """A listing or health check runs no model; an upgrade or an empty POST might."""
    for method, path in (("GET", "/v1/models"), ("HEAD", "/health"), ("OPTIONS", CHAT)):
        request = parse(HttpCall(method, path, {}, b"", 0, partial=False))
        assert not request.opaque
        assert estimate(request, RULES) == WorkEstimate(1, 0)
    for method, headers in (("POST", {}), ("GET", {"upgrade": "websocket"})):
        request = parse(HttpCall(method, "/v1/realtime", headers, b"", 0, partial=False))
        assert estimate(request, RULES).tokens == RULES.opaque_tokens
    grpc = HttpCall("GET", "/a.B/C", {"content-type": "application/grpc"}, b"", 0, partial=False)
    assert estimate(parse(grpc), RULES).tokens == RULES.opaque_tokens
    unseen = HttpCall("GET", CHAT, {"content-length": "40000"}, b"", -1, partial=False)
    assert estimate(parse(unseen), RULES).prompt_tokens == 10_000


ORIGIN = {"origin": "https://app.example", "access-control-request-method": "POST"}


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("OPTIONS", ORIGIN, True),
        ("OPTIONS", {}, False),
        ("OPTIONS", {"origin": "https://app.example"}, False),
        ("OPTIONS", {**ORIGIN, "origin": ""}, False),
        ("POST", ORIGIN, False),
        ("options", ORIGIN, False),
    ],
)
def test_only_a_real_preflight_is_one(method: str, headers: dict[str, str], expected: bool) -> None:
    """OPTIONS with both headers is a preflight; nothing else is."""
    assert is_preflight(HttpCall(method, CHAT, headers, b"", 0, partial=False)) is expected


@pytest.mark.parametrize(
    ("headers", "body", "size", "partial"),
    [
        ({}, b"{}", 2, False),
        ({}, b"", 5_000_000, True),
        ({}, b"", -1, True),
        ({"transfer-encoding": "chunked"}, b"", 0, False),
        ({"content-type": "application/grpc"}, b"", 0, False),
        ({"upgrade": "websocket"}, b"", 0, False),
    ],
)
def test_a_preflight_is_nothing_but_headers(
    headers: dict[str, str], body: bytes, size: int, partial: bool
) -> None:
    """What has a body, or may grow one, needs a key: it could hold a server's place for ever."""
    assert not is_preflight(HttpCall("OPTIONS", CHAT, {**ORIGIN, **headers}, body, size, partial))
