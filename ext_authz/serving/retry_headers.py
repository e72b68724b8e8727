"""When a refused client may come again, in all the words there are for it: one wait, told alike.

Each client reads another header: `retry-after` (RFC 9110), `retry-after-ms` and `x-should-retry`
(the SDKs of OpenAI and Anthropic), `ratelimit` (draft-ietf-httpapi-ratelimit-headers),
`x-ratelimit-reset-*` (OpenAI's API), `grpc-retry-pushback-ms` (gRPC).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ext_authz.model import Api, LimitState, RetryHint

Header = tuple[str, str]

# The SDKs of OpenAI and Anthropic wait no longer than this: told more, they come after a second or
# so, unless they are told not to come at all.
_LONGEST_SDK_WAIT_S = 60.0
# What OpenAI's own headers can tell of.
_OPENAI_LIMITS = frozenset({"requests", "tokens"})
_LARGEST_STRUCTURED_INTEGER = 999_999_999_999_999  # RFC 9651, 3.3.1
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_LONGEST_VALUE = 1024


def retry_headers(
    hint: RetryHint, limit: LimitState | None, api: Api, cap_s: float
) -> list[Header]:
    """When to come again, and for which limit, if it was one. `cap_s` is a backstop for a wait
    that is absurd or not a number."""
    wait_s = _bounded(hint.after_s, cap_s)
    seconds, wait_ms = retry_after_header(hint.after_s, cap_s), str(round(1000 * wait_s))
    headers = [
        ("retry-after", str(seconds)),
        ("retry-after-ms", wait_ms),
        ("x-gpu-retry-jitter-ms", str(round(1000 * _bounded(hint.jitter_s, wait_s)))),
        ("x-should-retry", "true" if wait_s <= _LONGEST_SDK_WAIT_S else "false"),
    ]
    if limit is not None:
        headers += limit_headers(limit, seconds)
        if api is Api.OPENAI and limit.name in _OPENAI_LIMITS:
            headers += _openai_limit_headers(limit, wait_ms)
    if api is Api.GRPC:
        headers.append(("grpc-retry-pushback-ms", wait_ms))
    return headers


def standing_headers(limits: Sequence[LimitState], api: Api) -> list[Header]:
    """What is left to who is admitted, under the names by which a refusal tells it; the time is
    that until the whole quota is back."""
    headers: list[Header] = []
    parts: list[Header] = []
    for limit in limits:
        reset_s = limit.window_s * (1.0 - limit.remaining / limit.limit)
        parts += limit_headers(limit, reset_s)
        if api is Api.OPENAI and limit.name in _OPENAI_LIMITS:
            headers += _openai_limit_headers(limit, str(round(1000 * max(0.0, reset_s))))
    for name in ("ratelimit-policy", "ratelimit"):
        joined = ", ".join(value for part, value in parts if part == name)
        headers.append((name, joined))
    return headers


def limit_headers(limit: LimitState, reset_s: float) -> list[Header]:
    """`ratelimit-policy` and `ratelimit` as draft-ietf-httpapi-ratelimit-headers defines them.

    A limit without a window, such as a number of requests at once, names none. `reset_s` is when a
    client may come again, which is later than when the limit has room while others stand before it.
    """
    name = clean(limit.name).replace("\\", "\\\\").replace('"', '\\"')
    window_s = _integer(limit.window_s, up=True)
    policy = f'"{name}";q={_integer(limit.limit)}' + (f";w={window_s}" if window_s else "")
    state = f'"{name}";r={_integer(limit.remaining)};t={_integer(reset_s, up=True)}'
    return [("ratelimit-policy", policy), ("ratelimit", state)]


def _openai_limit_headers(limit: LimitState, wait_ms: str) -> list[Header]:
    """The same in the words of OpenAI's API."""
    return [
        (f"x-ratelimit-limit-{limit.name}", str(_integer(limit.limit))),
        (f"x-ratelimit-remaining-{limit.name}", str(_integer(limit.remaining))),
        (f"x-ratelimit-reset-{limit.name}", f"{wait_ms}ms"),
    ]


def retry_after_header(wait_s: float, cap_s: float) -> int:
    """Whole seconds, rounded up, from 1 to `cap_s` (finite, at least 1).

    RFC 9110, 10.2.3 allows no fractions. A wait that is not a number counts as the longest.
    """
    return max(1, min(math.ceil(_bounded(wait_s, cap_s)), int(cap_s)))


def clean(value: str) -> str:
    """`value` made safe for a header: a line break there would leave Envoy's client hanging."""
    return _UNPRINTABLE.sub("?", value)[:_LONGEST_VALUE]


def _bounded(wait_s: float, cap_s: float) -> float:
    # Written so that a NaN, which compares as false, gives the cap.
    return max(0.0, wait_s) if wait_s < cap_s else cap_s


def _integer(value: float, *, up: bool = False) -> int:
    """`value` as a structured-field integer that is not negative; unknown is 0."""
    if math.isnan(value) or value <= 0:
        return 0
    if value >= _LARGEST_STRUCTURED_INTEGER:
        return _LARGEST_STRUCTURED_INTEGER
    return math.ceil(value) if up else math.floor(value)
