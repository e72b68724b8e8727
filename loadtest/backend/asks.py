"""Request bodies of the OpenAI and KServe v2 APIs, read into work for an engine.

PURE. Text counts a token per four bytes of UTF-8, a picture a thousand tokens.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import cast

from loadtest.backend.engine import Work

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1000
MAX_SEQUENCES = 64
MAX_INPUTS = 256
COMPLETION_CAP_TOKENS = 16  # what the completions API means by leaving max_tokens out

Json = dict[str, object]


class BadAskError(Exception):
    """A body that cannot be served; `status` is the HTTP status and `param` the field at fault."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body asks for; `model` and `id` as the caller wrote them."""

    works: tuple[Work, ...]
    model: str | None = None
    stream: bool = False
    id: str | None = None


def parse_object(body: bytes) -> Json:
    """The JSON object in `body`. Raises BadAskError for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAskError("the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise BadAskError("the body must be a JSON object")
    return cast(Json, value)


def chat_ask(body: Json) -> Ask:
    """A body of /v1/chat/completions. Raises BadAskError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadAskError("messages must be a non-empty array", "messages")
    size = sum(_message_tokens(message) for message in messages)
    cap = _positive(body, "max_completion_tokens") or _positive(body, "max_tokens")
    count = _positive(body, "n") or 1
    return _generation(body, [math.ceil(size)], count, cap)


def completion_ask(body: Json) -> Ask:
    """A body of /v1/completions. Raises BadAskError."""
    prompts = _inputs(body, "prompt")
    cap = _positive(body, "max_tokens") or COMPLETION_CAP_TOKENS
    return _generation(body, prompts, _positive(body, "n") or 1, cap)


def embedding_ask(body: Json) -> Ask:
    """A body of /v1/embeddings. Raises BadAskError."""
    works = tuple(Work(tokens, cap_tokens=0) for tokens in _inputs(body, "input"))
    return Ask(works, _text(body, "model"))


def infer_ask(body: bytes, json_bytes: str | None) -> Ask:
    """A body of a KServe v2 infer call. `json_bytes` is the header that says how much of it is JSON
    when tensors follow as raw bytes. The rows are the first dimension of the first input.

    Raises BadAskError.
    """
    if json_bytes is not None:
        if not (json_bytes.isascii() and json_bytes.isdigit() and len(json_bytes) < 10):
            raise BadAskError("inference-header-content-length must be a number")
        if int(json_bytes) > len(body):
            raise BadAskError("inference-header-content-length exceeds the body")
        body = body[: int(json_bytes)]
    document = parse_object(body)
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise BadAskError("inputs must be a non-empty array", "inputs")
    rows = [_tensor_rows(tensor) for tensor in inputs]
    return Ask((Work(rows=rows[0]),), id=_text(document, "id"))


def _tensor_rows(tensor: object) -> int:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise BadAskError("every input must be an object with a name", "inputs")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not shape or not all(_is_count(size) for size in shape):
        raise BadAskError("every input must have a shape of positive integers", "inputs")
    return int(shape[0])


def _generation(body: Json, prompts: list[int], count: int, cap: int | None) -> Ask:
    if len(prompts) * count > MAX_SEQUENCES:
        raise BadAskError(f"at most {MAX_SEQUENCES} sequences a request", "n")
    exact = _flag(body, "ignore_eos")
    works = tuple(Work(max(1, tokens), cap, exact) for tokens in prompts for _ in range(count))
    return Ask(works, _text(body, "model"), _flag(body, "stream"))


def _message_tokens(message: object) -> float:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadAskError("every message must be an object with a role", "messages")
    content = message.get("content")
    if content is None:
        return 0.0
    if isinstance(content, str):
        return _text_tokens(content)
    if not isinstance(content, list):
        raise BadAskError("content must be a string, an array of parts or null", "messages")
    return sum(_part_tokens(part) for part in content)


def _part_tokens(part: object) -> float:
    if not isinstance(part, dict):
        raise BadAskError("every part of a content must be an object", "messages")
    text = part.get("text")
    if isinstance(text, str):
        return _text_tokens(text)
    if part.get("type") in ("image_url", "input_image"):
        return float(IMAGE_TOKENS)
    raise BadAskError("a part of a content must be text or an image", "messages")


def _text_tokens(text: str) -> float:
    # a lone surrogate, which JSON can express, has no UTF-8 form of its own
    return len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN


def _inputs(body: Json, field: str) -> list[int]:
    """Tokens of each prompt: a text, texts, token ids, or arrays of token ids."""
    value = body.get(field)
    if isinstance(value, str):
        return [max(1, math.ceil(_text_tokens(value)))]
    if not isinstance(value, list) or not value:
        raise BadAskError(f"{field} must be a string or a non-empty array", field)
    if all(isinstance(item, int) for item in value):
        return [len(value)]
    if len(value) > MAX_INPUTS:
        raise BadAskError(f"at most {MAX_INPUTS} entries", field)
    sizes = []
    for item in value:
        if isinstance(item, str):
            sizes.append(max(1, math.ceil(_text_tokens(item))))
        elif isinstance(item, list) and item and all(isinstance(token, int) for token in item):
            sizes.append(len(item))
        else:
            raise BadAskError(f"every entry of {field} must be text or token ids", field)
    return sizes


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _positive(body: Json, field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if not _is_count(value):
        raise BadAskError(f"{field} must be a positive integer", field)
    return cast(int, value)


def _flag(body: Json, field: str) -> bool:
    value = body.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadAskError(f"{field} must be true or false", field)
    return value


def _text(body: Json, field: str) -> str | None:
    value = body.get(field)
    if value is not None and not isinstance(value, str):
        raise BadAskError(f"{field} must be a string", field)
    return value
