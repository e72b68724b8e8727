"""From a described HTTP call to what it asks for, measured.

PURE. `parse` answers for any bytes, headers and path: what is not understood is opaque, priced
from its size and never below what a recognised path would have cost for the same body.

Known limits. Of duplicate names the last wins for the model (as in Python, Go and JavaScript
servers) and the largest for caps; a name repeated beyond the part that is looked at is not seen.
A compressed body is priced from its size alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from ext_authz.estimation.calls import is_grpc, runs_nothing
from ext_authz.estimation.paths import clean
from ext_authz.estimation.shapes.document import (
    Body,
    Document,
    body_of,
    looks_like_json,
    read,
)
from ext_authz.estimation.shapes.kserve import infer
from ext_authz.estimation.shapes.openai import completion, conversation, embedding
from ext_authz.estimation.shapes.tally import (
    SMALLEST_IMAGE_BYTES,
    Tally,
    add_caps,
    add_prompts,
    add_text,
)
from ext_authz.model import Api, HttpCall, InferenceRequest, Operation, Unread, value

MAX_MODEL_CHARS = 256
# Longer paths are not remembered.
MAX_KNOWN_CHARS = 256
MAX_SEQUENCES = 1_000_000
MAX_MEASURE = 1 << 44
# JSON text compresses to between a third and a tenth.
COMPRESSED_EXPANSION = 8

# Reads a document into a tally; False when the document contradicts itself.
Shape = Callable[[Document, Tally], bool]


@dataclass(frozen=True, slots=True)
class Route:
    """Which paths an operation is found under; a group `model` in the pattern names the model."""

    operation: Operation
    api: Api
    pattern: re.Pattern[str]
    shape: Shape


def _route(operation: Operation, api: Api, pattern: str, shape: Shape) -> Route:
    return Route(operation, api, re.compile(pattern, re.IGNORECASE), shape)


_V1 = "(?:/openai)?(?:/v1)?"
_DEPLOYMENT = "/openai/deployments/(?P<model>[^/]+(?:/[^/]+)?)"
_MODEL = "/v2/models/(?P<model>[^/]+)(?:/versions/[^/]+)?"

ROUTES: tuple[Route, ...] = (
    _route(Operation.CHAT, Api.OPENAI, _V1 + "/chat/completions", conversation),
    _route(Operation.CHAT, Api.OPENAI, _DEPLOYMENT + "/chat/completions", conversation),
    _route(Operation.COMPLETION, Api.OPENAI, _V1 + "/completions", completion),
    _route(Operation.COMPLETION, Api.OPENAI, _DEPLOYMENT + "/completions", completion),
    _route(Operation.EMBEDDING, Api.OPENAI, _V1 + "/embeddings", embedding),
    _route(Operation.EMBEDDING, Api.OPENAI, _DEPLOYMENT + "/embeddings", embedding),
    _route(Operation.CHAT, Api.OPENAI, _V1 + "/responses", conversation),
    _route(Operation.CHAT, Api.ANTHROPIC, "/v1/messages", conversation),
    _route(Operation.INFER, Api.KSERVE, _MODEL + "/infer", infer),
)


@value
class Target:
    """What the path and the headers alone say of a call."""

    api: Api
    path: str
    route: Route | None
    model: str | None
    unread: Unread | None


def parse(call: HttpCall) -> InferenceRequest:
    """Measure what `call` asks for. Never raises; what is not understood is `opaque`."""
    try:
        return _parse(call)
    except Exception:
        # Not reached as far as anybody knows; a fault here must not turn into a free request.
        return InferenceRequest(
            api=Api.OTHER,
            operation=Operation.OPAQUE,
            path="/",
            model=None,
            text_bytes=min(max(len(call.body), call.body_bytes), MAX_MEASURE),
            partial=call.partial,
            opaque=True,
            unread=Unread.FAULT,
        )


def api_of(call: HttpCall) -> Api:
    """The API a call is addressed to, from its path and headers alone. Never raises."""
    try:
        return _target(call).api
    except Exception:
        return Api.OTHER


def _parse(call: HttpCall) -> InferenceRequest:
    body = body_of(call)
    target = _target(call)
    if runs_nothing(call, body):
        return _request(target, Operation.OPAQUE, body, Tally(cap_tokens=0))
    if target.api is Api.GRPC and not looks_like_json(body.window):
        # A frame is not read, so it costs the same however much of it arrived.
        seen = replace(body, cut=False, size_unknown=False)
        return _opaque(target, seen, Unread.GRPC)
    if body.whole_bytes == 0 and not body.cut:
        return _opaque(target, body, Unread.EMPTY)
    if call.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        return _opaque(target, body, Unread.ENCODED)
    if target.route is None or target.unread is not None:
        return _opaque(target, body, target.unread or Unread.UNKNOWN_PATH)
    if target.route.operation is Operation.INFER:
        return _infer(call, target, body)
    document = read(body)
    if document is None:
        return _opaque(target, body, Unread.NOT_JSON)
    if document.odd:
        return _opaque(target, body, Unread.ODD_JSON)
    tally = Tally()
    target.route.shape(document, tally)
    return _request(target, target.route.operation, body, tally, document)


def _target(call: HttpCall) -> Target:
    """Find the route of a call and the API whose error shape its sender understands."""
    grpc = is_grpc(call.headers)
    path = call.path
    return _known_target(path, grpc) if len(path) <= MAX_KNOWN_CHARS else _find_target(path, grpc)


def _find_target(path: str, grpc: bool) -> Target:
    place = clean(path)
    unread = Unread.AMBIGUOUS_PATH if place.ambiguous else None
    for route in ROUTES:
        match = route.pattern.fullmatch(place.path)
        if match is not None:
            model = _model_name(match.groupdict().get("model"))
            if grpc:
                return Target(Api.GRPC, place.path, None, model, Unread.UNKNOWN_PATH)
            return Target(route.api, place.path, route, model, unread)
    api = Api.GRPC if grpc else _family(place.path.lower())
    return Target(api, place.path, None, None, unread)


# Nearly all calls have one of a few paths.
_known_target = lru_cache(maxsize=512)(_find_target)


def _family(path: str) -> Api:
    """The API that most likely lives under an unrecognised path."""
    if path.startswith("/v1/messages"):
        return Api.ANTHROPIC
    if path.startswith(("/v1/", "/openai/")):
        return Api.OPENAI
    return Api.KSERVE if path.startswith("/v2/") else Api.OTHER


def _infer(call: HttpCall, target: Target, body: Body) -> InferenceRequest:
    """KServe v2: JSON, after which raw tensor bytes follow when a header says where."""
    header = call.headers.get("inference-header-content-length")
    head, raw_bytes = body, 0 if not body.size_unknown else None
    if header is not None:
        if not (header.isascii() and header.isdecimal() and len(header) <= 18):
            return _opaque(target, body, Unread.BAD_TENSOR)
        size = int(header)
        if size > body.whole_bytes:
            return _opaque(target, body, Unread.BAD_TENSOR)
        head = body.head(size)
        raw_bytes = None if body.size_unknown else body.whole_bytes - size
    document = read(head)
    if document is None or document.odd:
        return _opaque(target, body, Unread.NOT_JSON if document is None else Unread.ODD_JSON)
    tally = Tally()
    if not infer(replace(document, raw_bytes=raw_bytes), tally):
        return _opaque(target, body, Unread.BAD_TENSOR)
    return _request(target, Operation.INFER, head, tally, document)


def _opaque(target: Target, body: Body, why: Unread) -> InferenceRequest:
    """Measure a body as the costliest of all shapes, and at least as if all of it were text."""
    document = read(body) if looks_like_json(body.window) else None
    whole = _everything(document) if document is not None else Tally()
    if body.cut and body.window:
        whole.images = -(-whole.images * body.whole_bytes // len(body.window))
    size = body.whole_bytes * (COMPRESSED_EXPANSION if why is Unread.ENCODED else 1)
    whole.text_bytes = max(size, whole.text_bytes + body.beyond_bytes)
    request = _bounded(target, Operation.OPAQUE, body, whole, document)
    return replace(request, opaque=True, unread=why)


def _everything(document: Document) -> Tally:
    """What a document would cost under whichever shape counts most of it."""
    root = document.root
    spoken, listed, tensors = Tally(), Tally(), Tally()
    conversation(document, spoken)
    for name in ("prompt", "input", "suffix"):
        add_text(root.get(name), spoken)
    for name in ("prompt", "input"):
        add_prompts(root.get(name), listed)
    infer(document, tensors)
    add_caps(root, tensors)
    return Tally(
        text_bytes=max(spoken.text_bytes, listed.text_bytes, tensors.text_bytes),
        token_ids=listed.token_ids + tensors.token_ids,
        images=max(spoken.images, listed.images),
        prompts=max(listed.prompts, tensors.prompts),
        choices=tensors.choices,
        cap_tokens=tensors.cap_tokens or None,
        items=max(spoken.items, listed.items),
    )


def _request(
    target: Target, operation: Operation, body: Body, tally: Tally, document: Document | None = None
) -> InferenceRequest:
    """The request a tally describes, with what lies beyond the cut scaled from what was seen.

    Every byte beyond is text, except for the part that was picture data before the cut. Pictures
    are scaled only where several of like size were seen: one large one most likely goes on.
    """
    seen = len(body.window)
    if body.cut and seen:
        beyond = max(0, body.beyond_bytes - tally.announced_bytes)
        text_bytes = max(0, seen - tally.media_bytes)
        tally.text_bytes += -(-beyond * text_bytes // seen)
        if 2 * tally.largest_media_bytes <= tally.media_bytes:
            tally.images = -(-tally.images * body.whole_bytes // seen)
    return _bounded(target, operation, body, tally, document)


def _bounded(
    target: Target, operation: Operation, body: Body, tally: Tally, document: Document | None
) -> InferenceRequest:
    root = document.root if document is not None else {}
    if tally.overfull:
        tally.text_bytes = max(tally.text_bytes, body.whole_bytes)
        tally.images = max(tally.images, body.whole_bytes // SMALLEST_IMAGE_BYTES)
    return InferenceRequest(
        api=target.api,
        operation=operation,
        path=target.path,
        model=target.model or _model_name(root.get("model")),
        text_bytes=min(tally.text_bytes, MAX_MEASURE),
        token_ids=min(tally.token_ids, MAX_MEASURE),
        images=min(tally.images, MAX_MEASURE),
        sequences=min(tally.prompts * tally.choices, MAX_SEQUENCES),
        prompts=min(tally.prompts, MAX_SEQUENCES),
        output_cap_tokens=tally.cap_tokens,
        stream=root.get("stream") is True,
        partial=body.cut,
        size_unknown=body.size_unknown,
    )


def _model_name(value: object) -> str | None:
    """A usable model name: printable and not over-long, else None."""
    if isinstance(value, str) and 0 < len(value) <= MAX_MODEL_CHARS and value.isprintable():
        return value
    return None
