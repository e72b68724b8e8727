"""How paths are spelled, recognised, and never made cheaper by spelling."""

from __future__ import annotations

import json

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.paths import MAX_PATH_CHARS, clean
from ext_authz.model import Api, HttpCall, InferenceRequest, Operation, Unread
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m0", "messages": [{"role": "user", "content": "hi"}]}).encode()


def at(path: str, body: bytes = BODY) -> InferenceRequest:
    return parse(HttpCall("POST", path, {}, body, len(body), partial=False))


@pytest.mark.parametrize(
    ("raw", "path", "ambiguous"),
    [
        ("/v1/models", "/v1/models", False),
        ("/v1/models?a=/../b", "/v1/models", False),
        ("/v1/models/#x", "/v1/models", False),
        ("//v1///models//", "/v1/models", False),
        ("/", "/", False),
        ("//", "/", False),
        ("/v1%2Fmodels", "/v1/models", False),
        ("/v1/%6Dodels", "/v1/models", False),
        ("/v1/m%252Fx", "/v1/m%2Fx", False),
        ("/V1/Models/Llama", "/V1/Models/Llama", False),
        ("/a/../b", "/b", True),
        ("/a/./b", "/a/b", True),
        ("/../../b", "/b", True),
        ("/a/%2e%2E/b", "/b", True),
        ("/a/..;/b", "/a/..;/b", True),
        ("/.well-known/x", "/.well-known/x", True),
        ("/a\\b", "/a?b", True),
        ("/a%00b", "/a?b", True),
        ("/a\r\nb", "/a??b", True),
        ("", "/", True),
        ("*", "/*", True),
        ("/%ff", "/\ufffd", False),
        ("/" + "a" * 5000, "/" + "a" * (MAX_PATH_CHARS - 1), True),
    ],
)
def test_every_path_has_one_spelling(raw: str, path: str, ambiguous: bool) -> None:
    """The table of what is folded and what is called ambiguous."""
    assert (clean(raw).path, clean(raw).ambiguous) == (path, ambiguous)


@pytest.mark.parametrize(
    ("path", "operation", "api", "model"),
    [
        (CHAT, Operation.CHAT, Api.OPENAI, "m0"),
        ("/chat/completions", Operation.CHAT, Api.OPENAI, "m0"),
        ("/openai/v1/chat/completions", Operation.CHAT, Api.OPENAI, "m0"),
        (CHAT + "?x=1", Operation.CHAT, Api.OPENAI, "m0"),
        (CHAT + "/", Operation.CHAT, Api.OPENAI, "m0"),
        ("/v1//chat/completions", Operation.CHAT, Api.OPENAI, "m0"),
        ("/v1/chat%2Fcompletions", Operation.CHAT, Api.OPENAI, "m0"),
        ("/V1/Chat/Completions", Operation.CHAT, Api.OPENAI, "m0"),
        (
            "/openai/deployments/m1/chat/completions?api-version=2024-06-01",
            Operation.CHAT,
            Api.OPENAI,
            "m1",
        ),
        ("/openai/deployments/Org%2FM1/completions", Operation.COMPLETION, Api.OPENAI, "Org/M1"),
        ("/openai/deployments/m1/embeddings", Operation.EMBEDDING, Api.OPENAI, "m1"),
        ("/v1/completions", Operation.COMPLETION, Api.OPENAI, "m0"),
        ("/v1/embeddings", Operation.EMBEDDING, Api.OPENAI, "m0"),
        ("/v1/responses", Operation.CHAT, Api.OPENAI, "m0"),
        ("/v1/messages", Operation.CHAT, Api.ANTHROPIC, "m0"),
        ("/v1/embeddings/../chat/completions", Operation.OPAQUE, Api.OPENAI, "m0"),
        ("/v1/chat/completions/../../embeddings", Operation.OPAQUE, Api.OPENAI, "m0"),
        ("/v1/models/..;/chat/completions", Operation.OPAQUE, Api.OPENAI, "m0"),
        ("/v1/chat%252Fcompletions", Operation.OPAQUE, Api.OPENAI, "m0"),
        ("/v1/chat/completions;x=1", Operation.OPAQUE, Api.OPENAI, "m0"),
        ("/v1/chat/completions%3Fx", Operation.OPAQUE, Api.OPENAI, "m0"),
        ("/v1/messages/count_tokens", Operation.TOKENIZE, Api.ANTHROPIC, "m0"),
        ("/v1/complete", Operation.COMPLETION, Api.ANTHROPIC, "m0"),
        ("/v1/tokenize", Operation.TOKENIZE, Api.OTHER, "m0"),
        ("/detokenize", Operation.TOKENIZE, Api.OTHER, "m0"),
        ("/v2/models/m/generate", Operation.COMPLETION, Api.KSERVE, "m"),
        ("/v2/models/m/versions/2/generate_stream", Operation.COMPLETION, Api.KSERVE, "m"),
        ("/generate", Operation.COMPLETION, Api.OTHER, "m0"),
        ("/generate_stream/", Operation.COMPLETION, Api.OTHER, "m0"),
        ("/inference/v1/generate", Operation.COMPLETION, Api.OTHER, "m0"),
        ("/pooling", Operation.EMBEDDING, Api.OTHER, "m0"),
        ("/v2/rerank", Operation.COMPARISON, Api.OPENAI, "m0"),
        ("/score", Operation.COMPARISON, Api.OPENAI, "m0"),
        ("/generated", Operation.OPAQUE, Api.OTHER, "m0"),
        ("/v1/messages/batches", Operation.OPAQUE, Api.ANTHROPIC, "m0"),
    ],
)
def test_the_registry_recognises_paths_in_any_spelling(
    path: str, operation: Operation, api: Api, model: str
) -> None:
    """Operation, error shape and model follow from the path; the deployment is the model."""
    request = at(path)
    assert (request.operation, request.api, request.model) == (operation, api, model)
    assert request.opaque is (operation is Operation.OPAQUE)


def test_an_opaque_path_says_why() -> None:
    """What is merely unknown and what servers disagree about are told apart."""
    assert at("/elsewhere").unread is Unread.UNKNOWN_PATH
    assert at("/v1/x/../chat/completions").unread is Unread.AMBIGUOUS_PATH


@pytest.mark.parametrize(
    "variant",
    [
        CHAT + "?x=1",
        CHAT + "/",
        "/v1//chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/embeddings/../chat/completions",
        "/v1/models/..;/chat/completions",
        "/V1/Chat/Completions",
        "/v1/chat/completions/../../embeddings",
        "/elsewhere",
    ],
)
@pytest.mark.parametrize("cap", [None, 1, 9000])
def test_no_spelling_is_cheaper_than_the_plain_path(variant: str, cap: int | None) -> None:
    """A variant is priced like the plain path or above it."""
    document = {"model": "m", "messages": ["x" * 20_000], "n": 3, "max_tokens": cap}
    body = json.dumps(document).encode()
    plain = estimate(at(CHAT, body), CostRules())
    other = estimate(at(variant, body), CostRules())
    assert other.prompt_tokens >= plain.prompt_tokens
    assert other.output_tokens >= plain.output_tokens
