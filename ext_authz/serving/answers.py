"""What a refused client is told: the table of reasons, the bodies and the headers.

Nothing a client sent appears in an answer, so nothing has to be escaped and no key can leak.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

from ext_authz.model import Api, Decision, Reason, RetryHint
from ext_authz.serving.retry_headers import Header, retry_headers

# google.rpc codes.
_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED = 3, 5, 7, 8
_INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 13, 14, 16

# A refusal that names no wait still needs one: a client without a hint returns at once.
_UNHINTED = RetryHint(after_s=1.0, jitter_s=0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """One row: how a refusal for one reason looks.

    `grpc_status` is for a caller who speaks gRPC, `kind` is the error type of the OpenAI and
    Anthropic bodies, `retry` says whether the same request can succeed later. A `fault` is ours:
    Envoy's failure mode decides what becomes of the request.
    """

    http_status: int
    grpc_status: int
    kind: str
    message: str
    retry: bool
    fault: bool = False

    @property
    def check_code(self) -> int:
        """The code inside the Check answer. Never 0: Envoy allows code 0 whatever else it says."""
        if self.fault:
            return _INTERNAL
        if self.grpc_status in {_RESOURCE_EXHAUSTED, _UNAVAILABLE}:
            return self.grpc_status
        return _PERMISSION_DENIED


def _final(http_status: int, grpc_status: int, kind: str, message: str) -> Answer:
    return Answer(http_status, grpc_status, kind, message, retry=False)


def _contended(message: str) -> Answer:
    return Answer(429, _RESOURCE_EXHAUSTED, "rate_limit_error", message, retry=True)


def _unserved(message: str) -> Answer:
    return Answer(503, _UNAVAILABLE, "overloaded_error", message, retry=True)


_LATER = "Retry after the time in the retry-after header."
# A reason to admit on a refusal is a contradiction of our own making, hence a fault.
_FAULT = Answer(
    503,
    _UNAVAILABLE,
    "api_error",
    f"The admission service failed to decide. {_LATER}",
    retry=True,
    fault=True,
)

ANSWERS: Mapping[Reason, Answer] = MappingProxyType(
    {
        Reason.HEADROOM: _FAULT,
        Reason.IDLE_ENDPOINT: _FAULT,
        Reason.PREFLIGHT: _FAULT,
        Reason.DISABLED: _FAULT,
        Reason.DEMOTION_PREFERRED: _FAULT,
        Reason.TELEMETRY_FALLBACK: _FAULT,
        Reason.UNKNOWN_KEY: _final(
            401,
            _UNAUTHENTICATED,
            "authentication_error",
            "The API key is missing or unknown. Send a valid key.",
        ),
        Reason.MODEL_NOT_ALLOWED: _final(
            403,
            _PERMISSION_DENIED,
            "permission_error",
            "This API key may not use the requested model. Choose a model it may use.",
        ),
        Reason.UNKNOWN_MODEL: _final(
            404,
            _NOT_FOUND,
            "not_found_error",
            "The requested model is not served here. Check the model name.",
        ),
        Reason.TOO_LARGE: _final(
            413,
            _INVALID_ARGUMENT,
            "request_too_large",
            "The request can never fit: prompt and output together exceed what a server of this "
            "model can hold. Shorten the prompt or lower the output token limit.",
        ),
        Reason.REQUEST_RATE: _contended(f"The request rate limit is used up. {_LATER}"),
        Reason.TOKEN_RATE: _contended(f"The token rate limit is used up. {_LATER}"),
        Reason.TENANT_CONCURRENCY: _contended(
            f"Too many requests of this tenant are running. {_LATER}"
        ),
        Reason.TYPE_CONCURRENCY: _contended(
            f"Too many requests of this type are running. {_LATER}"
        ),
        Reason.SLO_UNREACHABLE: _contended(
            f"The request would miss its latency objective at the present load. {_LATER}"
        ),
        Reason.AT_CAPACITY: _contended(f"All servers of this model are busy. {_LATER}"),
        Reason.OVER_SHARE: _contended(
            f"This tenant is above its share while others wait. {_LATER}"
        ),
        Reason.YIELDING: _contended(
            "This tenant had most of the capacity lately and leaves what is free to others that "
            f"wait. {_LATER}"
        ),
        Reason.PAUSED: _contended(
            f"Requests of low priority pause while those of high priority wait. {_LATER}"
        ),
        Reason.RESERVED: _contended(
            f"The remaining capacity is reserved for requests of higher priority. {_LATER}"
        ),
        Reason.KV_MEMORY: _contended(
            f"The caches of the servers of this model are nearly full. {_LATER}"
        ),
        Reason.DEVICE_MEMORY: _contended(
            f"The devices of this model are short of memory. {_LATER}"
        ),
        Reason.HAMMERING: _contended(
            "More comes with this key, and before the time it is told, than the share of its "
            f"tenant serves. {_LATER}"
        ),
        Reason.NO_ENDPOINT: _unserved(f"No server of this model is available. {_LATER}"),
        Reason.TELEMETRY_LOST: _unserved(
            f"The state of the servers of this model is unknown. {_LATER}"
        ),
        Reason.MALFORMED_CHECK: _final(
            400,
            _INVALID_ARGUMENT,
            "invalid_request_error",
            "The request could not be understood.",
        ),
        Reason.OVERLOADED: _contended(f"The admission service is overloaded. {_LATER}"),
        Reason.INTERNAL: _FAULT,
    }
)


def too_large(decision: Decision) -> str | None:
    """What does not fit, by how much, and what to do: all tokens of KV cache.

    Told of a request that can never fit, where both its price and what the largest server of its
    model holds (the `limit` of the decision) are known; None of any other.
    """
    cost, limit = decision.estimate, decision.limit
    if decision.reason is not Reason.TOO_LARGE or cost is None or limit is None:
        return None
    if not 0.0 < limit.limit < math.inf:
        return None
    holds, prompt = math.floor(limit.limit), cost.prompt_tokens
    over = cost.kv_tokens - holds
    if over <= 0:
        return None
    what = (
        f"The request can never fit: a prompt of about {prompt} tokens and up to "
        f"{cost.kv_tokens - prompt} of output are {over} more than the {holds} that a server of "
        "this model can hold."
    )
    if prompt >= holds:
        return (
            f"{what} Shorten the prompt by more than {prompt - holds} tokens: a lower output token "
            "limit alone is not enough."
        )
    limit_to = f"imit the output to {holds - prompt} tokens, all choices together"
    if over >= prompt:
        return f"{what} L{limit_to}: a shorter prompt alone is not enough."
    return f"{what} Shorten the prompt by about {over} tokens, or l{limit_to}."


def fixed_headers(reason: Reason, api: Api, message: str | None = None) -> tuple[Header, ...]:
    """The headers that a refusal for `reason` always carries; each name once. `message` stands in
    the place of the usual one."""
    answer = ANSWERS[reason]
    headers = [
        ("content-type", "text/plain" if api is Api.GRPC else "application/json"),
        ("x-gpu-reason", reason.value),
    ]
    if answer.http_status == 401:
        headers.append(("www-authenticate", 'Bearer realm="gpu"'))
    if answer.http_status == 429:
        # Envoy and the meshes built on it do not retry an answer with this header.
        headers.append(("x-envoy-ratelimited", "true"))
    if not answer.retry:
        headers.append(("x-should-retry", "false"))
    if api is Api.GRPC:
        # Without it Envoy turns 429 into UNAVAILABLE, which many clients retry at once.
        headers.append(("grpc-status", str(answer.grpc_status)))
        headers.append(("grpc-message", quote(message or answer.message, safe=" ,.:;-")))
        if not answer.retry:
            headers.append(("grpc-retry-pushback-ms", "-1"))
    return tuple(headers)


def varying_headers(decision: Decision, api: Api, cap_s: float) -> list[Header]:
    """The headers that depend on when and on which limit; no name of `fixed_headers`.

    `cap_s` is a backstop, as in `retry_headers`.
    """
    answer = ANSWERS[decision.reason]
    if not answer.retry:
        return []
    # A 503 is about servers: no limit of the caller's.
    limit = decision.limit if answer.http_status == 429 else None
    return retry_headers(decision.retry or _UNHINTED, limit, api, cap_s)


def error_body(reason: Reason, api: Api, message: str | None = None) -> str:
    """The body, in the error shape of `api`; it names the reason whatever the shape.

    The clients of OpenAI and of Anthropic both understand the one shape they are sent. `message`
    stands in the place of the usual one.
    """
    answer = ANSWERS[reason]
    told = message or answer.message
    if api in {Api.OPENAI, Api.ANTHROPIC}:
        error = {
            "type": answer.kind,
            "code": reason.value,
            "message": told,
            "param": None,
        }
        return json.dumps({"type": "error", "error": error})
    if api is Api.KSERVE:
        return json.dumps({"error": told, "reason": reason.value})
    if api is Api.GRPC:
        return told
    return json.dumps({"message": told, "reason": reason.value})
