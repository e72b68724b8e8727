"""Which paths ask what of a model, and in which shape.

PURE. A path in its one spelling (`paths`) either is one of these or is unknown; the letter case of
all but model names is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ext_authz.estimation.paths import clean
from ext_authz.estimation.shapes.document import Document
from ext_authz.estimation.shapes.kserve import infer
from ext_authz.estimation.shapes.openai import (
    comparison,
    completion,
    conversation,
    drawing,
    embedding,
    generation,
)
from ext_authz.estimation.shapes.tally import Tally
from ext_authz.model import Api, Operation, Unread, value

# Longer paths are not remembered.
MAX_KNOWN_CHARS = 256
MAX_MODEL_CHARS = 256

# Reads a document into a tally; False when the document contradicts itself.
Shape = Callable[[Document, Tally], bool]


@dataclass(frozen=True, slots=True)
class Route:
    """Which paths an operation is found under; a group `model` in the pattern names the model.

    Without a `shape` no document is expected: a form, or what runs no model.
    """

    operation: Operation
    api: Api
    pattern: re.Pattern[str]
    shape: Shape | None


def _route(operation: Operation, api: Api, pattern: str, shape: Shape | None) -> Route:
    return Route(operation, api, re.compile(pattern, re.IGNORECASE), shape)


_V1 = "(?:/openai)?(?:/v1)?"
_DEPLOYMENT = "/openai/deployments/(?P<model>[^/]+(?:/[^/]+)?)"
_MODEL = "/v2/models/(?P<model>[^/]+)(?:/versions/[^/]+)?"
_SPEECH = "/audio/(?:transcriptions|translations)"

ROUTES: tuple[Route, ...] = (
    _route(Operation.CHAT, Api.OPENAI, _V1 + "/chat/completions", conversation),
    _route(Operation.CHAT, Api.OPENAI, _DEPLOYMENT + "/chat/completions", conversation),
    _route(Operation.COMPLETION, Api.OPENAI, _V1 + "/completions", completion),
    _route(Operation.COMPLETION, Api.OPENAI, _DEPLOYMENT + "/completions", completion),
    _route(Operation.EMBEDDING, Api.OPENAI, _V1 + "/embeddings", embedding),
    _route(Operation.EMBEDDING, Api.OPENAI, _DEPLOYMENT + "/embeddings", embedding),
    _route(Operation.CHAT, Api.OPENAI, _V1 + "/responses", conversation),
    _route(Operation.CHAT, Api.ANTHROPIC, "/v1/messages", conversation),
    _route(Operation.COMPLETION, Api.ANTHROPIC, "/v1/complete", completion),
    _route(Operation.INFER, Api.KSERVE, _MODEL + "/infer", infer),
    _route(Operation.COMPLETION, Api.KSERVE, _MODEL + "/generate(?:_stream)?", generation),
    # The engines' own: SGLang, TGI, vLLM.
    _route(Operation.COMPLETION, Api.OTHER, "/generate(?:_stream)?", generation),
    _route(Operation.COMPLETION, Api.OTHER, "/inference/v1/generate", generation),
    _route(Operation.EMBEDDING, Api.OTHER, "(?:/v1)?/(?:pooling|classify|encode|embed)", embedding),
    _route(Operation.COMPARISON, Api.OPENAI, "(?:/v[12])?/rerank", comparison),
    _route(Operation.COMPARISON, Api.OPENAI, "(?:/v1)?/score", comparison),
    _route(Operation.TRANSCRIPTION, Api.OPENAI, _V1 + _SPEECH, None),
    _route(Operation.TRANSCRIPTION, Api.OPENAI, _DEPLOYMENT + _SPEECH, None),
    _route(Operation.IMAGE, Api.OPENAI, _V1 + "/images/generations", drawing),
    _route(Operation.IMAGE, Api.OPENAI, _DEPLOYMENT + "/images/generations", drawing),
    _route(Operation.IMAGE, Api.OPENAI, _V1 + "/images/(?:edits|variations)", None),
    _route(Operation.TOKENIZE, Api.OTHER, "(?:/v1)?/(?:de)?tokenize", None),
    _route(Operation.TOKENIZE, Api.ANTHROPIC, "/v1/messages/count_tokens", None),
    _route(Operation.TOKENIZE, Api.OPENAI, "/v1/responses/input_tokens", None),
)
# Every way to read a document: what is not understood costs the most of them.
SHAPES: tuple[Shape, ...] = tuple(dict.fromkeys(r.shape for r in ROUTES if r.shape is not None))
# KServe's inference calls over gRPC, whose paths are exact.
FRAMED_PATHS = frozenset(
    f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelStreamInfer")
)


@value
class Target:
    """What the path and the headers alone say of a call."""

    api: Api
    path: str
    route: Route | None
    model: str | None
    unread: Unread | None


def target_of(path: str, grpc: bool) -> Target:
    """Find the route of a raw path and the API whose error shape its sender understands."""
    return _known(path, grpc) if len(path) <= MAX_KNOWN_CHARS else _find(path, grpc)


def _find(path: str, grpc: bool) -> Target:
    place = clean(path)
    unread = Unread.AMBIGUOUS_PATH if place.ambiguous else None
    for route in ROUTES:
        match = route.pattern.fullmatch(place.path)
        if match is not None:
            model = model_name(match.groupdict().get("model"))
            if grpc:
                return Target(Api.GRPC, place.path, None, model, Unread.UNKNOWN_PATH)
            return Target(route.api, place.path, route, model, unread)
    api = Api.GRPC if grpc else _family(place.path.lower())
    return Target(api, place.path, None, None, unread)


# Nearly all calls have one of a few paths.
_known = lru_cache(maxsize=512)(_find)


def _family(path: str) -> Api:
    """The API that most likely lives under an unrecognised path."""
    if path.startswith("/v1/messages"):
        return Api.ANTHROPIC
    if path.startswith(("/v1/", "/openai/")):
        return Api.OPENAI
    return Api.KSERVE if path.startswith("/v2/") else Api.OTHER


def model_name(given: object) -> str | None:
    """A usable model name: printable and not over-long, else None."""
    if isinstance(given, str) and 0 < len(given) <= MAX_MODEL_CHARS and given.isprintable():
        return given
    return None
