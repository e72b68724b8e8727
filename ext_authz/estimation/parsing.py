"""From a described HTTP call to what it asks for, measured.

PURE. `parse` answers for any bytes, headers and path: what is not understood is opaque, priced
from its size and never below what a recognised path would have cost for the same body.

Known limits. Of duplicate names the last wins for the model (as in Python, Go and JavaScript
servers) and the largest for caps; a name repeated beyond the part that is looked at is not seen.
The prompts of a batch are counted as far as they are looked at. docs/requests.md has all shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ext_authz.estimation.calls import is_grpc, runs_nothing
from ext_authz.estimation.routes import (
    FRAMED_PATHS,
    MAX_MODEL_CHARS,
    SHAPES,
    Target,
    model_name,
    target_of,
)
from ext_authz.estimation.shapes.document import (
    Body,
    Document,
    body_of,
    looks_like_json,
    read,
)
from ext_authz.estimation.shapes.encoded import codings, inflate
from ext_authz.estimation.shapes.form import (
    add_drawing,
    add_form,
    add_speech,
    boundary_of,
    read_form,
)
from ext_authz.estimation.shapes.frames import is_framed, read_frames
from ext_authz.estimation.shapes.kserve import infer
from ext_authz.estimation.shapes.tally import SMALLEST_IMAGE_BYTES, Tally
from ext_authz.model import Api, HttpCall, InferenceRequest, Operation, Unread

__all__ = ["MAX_MODEL_CHARS", "MAX_SEQUENCES", "api_of", "parse"]

MAX_SEQUENCES = 1_000_000
MAX_MEASURE = 1 << 44
# JSON text compresses to between a third and a tenth.
COMPRESSED_EXPANSION = 8
# With an id in every so many bytes, what is beyond a cut is taken to be ids and not text: there
# would be fewer tokens in as much text.
DENSE_ID_BYTES = 4

# As documents and as forms say it.
_YES = (True, "true")


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
        return target_of(call.path, is_grpc(call.headers)).api
    except Exception:
        return Api.OTHER


def _parse(call: HttpCall) -> InferenceRequest:
    body = body_of(call)
    target = target_of(call.path, is_grpc(call.headers))
    if runs_nothing(call, body):
        return _bounded(target, Operation.OPAQUE, body, Tally(cap_tokens=0), {})
    if target.api is Api.GRPC and (is_framed(body.window) or not looks_like_json(body.window)):
        return _framed(call, target, body)
    if body.whole_bytes == 0 and not body.cut:
        return _opaque(call, target, body, Unread.EMPTY)
    encoding = call.headers.get("content-encoding")
    if encoding and (names := codings(encoding)):
        inflated = inflate(body, names)
        if inflated is None:
            return _opaque(call, target, body, Unread.ENCODED)
        body = inflated
    return _plain(call, target, body)


def _plain(call: HttpCall, target: Target, body: Body) -> InferenceRequest:
    """Measure a body that is not packed, in the shape its path says."""
    if target.route is None or target.unread is not None:
        return _opaque(call, target, body, target.unread or Unread.UNKNOWN_PATH)
    operation, shape = target.route.operation, target.route.shape
    if shape is None and operation is not Operation.TOKENIZE:
        return _form(call, target, body)
    if operation is Operation.INFER:
        return _infer(call, target, body)
    document = read(body)
    if document is None:
        return _opaque(call, target, body, Unread.NOT_JSON)
    if document.odd:
        return _opaque(call, target, body, Unread.ODD_JSON)
    if shape is None:
        # It runs no model. What is beyond a cut is no more than what was read.
        return _bounded(target, operation, body, Tally(cap_tokens=0), document.root)
    tally = Tally()
    if not shape(document, tally):
        return _opaque(call, target, body, Unread.ODD_JSON)
    return _request(target, operation, body, tally, document)


def _framed(call: HttpCall, target: Target, body: Body) -> InferenceRequest:
    """gRPC: as far as the frames are inference requests; what is not read has its price."""
    frames = read_frames(body, call.headers.get("grpc-encoding", ""))
    ours = target.unread is None and target.path in FRAMED_PATHS
    streams = ours and target.path.endswith("StreamInfer")
    root: Mapping[str, object] = {"model": frames.model, "stream": streams} if ours else {}
    # How much of a frame arrived makes no difference: it says how large it is.
    unknown = body.size_unknown and streams and frames.open
    whole = Body(body.window, frames.whole_bytes, frames.cut or unknown, unknown)
    tally = frames.tally
    if ours and frames.understood:
        return _bounded(target, Operation.INFER, whole, tally, root)
    tally.cap_tokens = tally.cap_tokens or None
    tally.text_bytes = max(whole.whole_bytes, tally.text_bytes)
    whole = replace(whole, cut=False, size_unknown=False)
    request = _bounded(target, Operation.OPAQUE, whole, tally, root)
    return replace(request, opaque=True, unread=Unread.GRPC)


def _form(call: HttpCall, target: Target, body: Body) -> InferenceRequest:
    boundary = boundary_of(call.headers)
    form = None if boundary is None else read_form(body, boundary)
    if form is None or form.odd or target.route is None:
        return _opaque(call, target, body, Unread.BAD_FORM)
    tally = Tally()
    speech = target.route.operation is Operation.TRANSCRIPTION
    (add_speech if speech else add_drawing)(form, tally)
    return _bounded(target, target.route.operation, body, tally, form.fields)


def _infer(call: HttpCall, target: Target, body: Body) -> InferenceRequest:
    """KServe v2: JSON, after which raw tensor bytes follow when a header says where."""
    parts = _split(call, body)
    if parts is None:
        return _opaque(call, target, body, Unread.BAD_TENSOR)
    head, raw_bytes = parts
    document = read(head)
    if document is None or document.odd:
        why = Unread.NOT_JSON if document is None else Unread.ODD_JSON
        return _opaque(call, target, body, why)
    tally = Tally()
    if not infer(replace(document, raw_bytes=raw_bytes), tally):
        return _opaque(call, target, body, Unread.BAD_TENSOR)
    return _request(target, Operation.INFER, head, tally, document)


def _split(call: HttpCall, body: Body) -> tuple[Body, int | None] | None:
    """The document of a KServe body and the size of what follows it (None when nobody knows), or
    None if the header that says where contradicts the body."""
    header = call.headers.get("inference-header-content-length")
    if header is None:
        return body, 0 if not body.size_unknown else None
    if not (header.isascii() and header.isdecimal() and len(header) <= 18):
        return None
    size = int(header)
    if size > body.whole_bytes:
        return None
    return body.head(size), None if body.size_unknown else body.whole_bytes - size


def _opaque(call: HttpCall, target: Target, body: Body, why: Unread) -> InferenceRequest:
    """Measure a body as the costliest of all shapes, and at least as if all of it were text."""
    whole = Tally()
    root: Mapping[str, object] = {}
    boundary = boundary_of(call.headers)
    if boundary is not None and (form := read_form(body, boundary)) is not None:
        add_form(form, whole)
        root = form.fields
    elif looks_like_json(body.window):
        parts = _split(call, body)
        # Also as one with raw bytes behind it: what the header means depends on the path.
        head = body if parts is None else parts[0]
        for part in (body,) if head is body else (body, head):
            document = read(part)
            if document is not None:
                root = root or document.root
                _cover_all(document, whole)
    text_bytes = whole.text_bytes
    if body.cut and body.window:
        _scale(body, whole)
        whole.images = -(-whole.images * body.whole_bytes // len(body.window))
    size = body.whole_bytes * (COMPRESSED_EXPANSION if why is Unread.ENCODED else 1)
    whole.text_bytes = max(size, whole.text_bytes, text_bytes + body.beyond_bytes)
    request = _bounded(target, Operation.OPAQUE, body, whole, root)
    return replace(request, opaque=True, unread=why)


def _cover_all(document: Document, whole: Tally) -> None:
    for shape in SHAPES:
        one = Tally()
        shape(document, one)
        whole.cover(one)


def _request(
    target: Target, operation: Operation, body: Body, tally: Tally, document: Document
) -> InferenceRequest:
    """The request a tally describes, with what lies beyond the cut scaled from what was seen."""
    seen = len(body.window)
    if body.cut and seen:
        _scale(body, tally)
        # One large picture most likely goes on; several of like size have more behind them.
        if 2 * tally.largest_media_bytes <= tally.media_bytes:
            tally.images = -(-tally.images * body.whole_bytes // seen)
    return _bounded(target, operation, body, tally, document.root)


def _scale(body: Body, tally: Tally) -> None:
    """Add to `tally` what lies beyond a cut with something before it.

    Every byte beyond is like those before it: media, as much as there was of it, else text that is
    repeated as often, or ids where these are denser than text.
    """
    seen = len(body.window)
    beyond = max(0, body.beyond_bytes - tally.announced_bytes)
    written = max(0, seen - tally.media_bytes)
    tally.media_tokens += -(-beyond * tally.media_tokens // seen)
    if DENSE_ID_BYTES * tally.token_ids > max(written, tally.text_bytes):
        tally.token_ids += -(-beyond * tally.token_ids // seen)
    else:
        tally.text_bytes += -(-beyond * max(written, tally.text_bytes) // seen)


def _bounded(
    target: Target, operation: Operation, body: Body, tally: Tally, root: Mapping[str, object]
) -> InferenceRequest:
    if tally.overfull:
        tally.text_bytes = max(tally.text_bytes, body.whole_bytes)
        tally.images = max(tally.images, body.whole_bytes // SMALLEST_IMAGE_BYTES)
    return InferenceRequest(
        api=target.api,
        operation=operation,
        path=target.path,
        model=target.model or model_name(root.get("model")),
        text_bytes=min(tally.text_bytes, MAX_MEASURE),
        token_ids=min(tally.token_ids + tally.media_tokens, MAX_MEASURE),
        images=min(tally.images + tally.drawn, MAX_MEASURE),
        sequences=min(tally.prompts * tally.choices, MAX_SEQUENCES),
        prompts=min(tally.prompts, MAX_SEQUENCES),
        output_cap_tokens=tally.cap_tokens,
        stream=root.get("stream") in _YES or target.path.endswith("_stream"),
        partial=body.cut,
        size_unknown=body.size_unknown,
    )
