"""What refused clients are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import (
    Api,
    Decision,
    LimitState,
    Reason,
    RetryHint,
    Verdict,
)
from ext_authz.serving.answers import (
    ANSWERS,
    error_body,
    fixed_headers,
    varying_headers,
)
from ext_authz.serving.codec import Codec
from ext_authz.serving.retry_headers import clean
from ext_authz.serving.wire import compile_messages

GOLDEN = Path(__file__).parent.parent / "data" / "answers"
CAP_S = 60.0
LIMIT = LimitState("tokens", 200_000, 60.0, 12.7)
WIRE = compile_messages()
CODEC = Codec(WIRE)

waits = st.floats()
limits = st.builds(LimitState, st.text(), waits, waits, waits)


def refusal(
    reason: Reason, retry: RetryHint | None = None, limit: LimitState | None = None
) -> Decision:
    return Decision(Verdict.REJECT, reason, Verdict.REJECT, retry=retry, limit=limit)


def headers_of(decision: Decision, api: Api = Api.OPENAI) -> dict[str, str]:
    return dict(fixed_headers(decision.reason, api)) | dict(varying_headers(decision, api, CAP_S))


STATUSES = {
    "unknown_key": (401, 16),
    "model_not_allowed": (403, 7),
    "unknown_model": (404, 5),
    "too_large": (413, 3),
    "request_rate": (429, 8),
    "token_rate": (429, 8),
    "tenant_concurrency": (429, 8),
    "type_concurrency": (429, 8),
    "slo_unreachable": (429, 8),
    "at_capacity": (429, 8),
    "over_share": (429, 8),
    "yielding": (429, 8),
    "paused": (429, 8),
    "reserved": (429, 8),
    "kv_memory": (429, 8),
    "device_memory": (429, 8),
    "hammering": (429, 8),
    "overloaded": (429, 8),
    "no_endpoint": (503, 14),
    "telemetry_lost": (503, 14),
    "malformed_check": (400, 3),
    "internal": (503, 14),
}


def test_every_reason_has_a_row() -> None:
    """No reason can come up without an answer to it."""
    assert set(ANSWERS) == set(Reason)


@pytest.mark.parametrize(("reason", "expected"), STATUSES.items())
def test_statuses(reason: str, expected: tuple[int, int]) -> None:
    """The HTTP status and the status of a gRPC caller are those that were promised."""
    answer = ANSWERS[Reason(reason)]
    assert (answer.http_status, answer.grpc_status) == expected


def test_reasons_to_admit_are_faults_when_they_refuse() -> None:
    """A refusal that gives a reason to admit is our own fault, whatever it is."""
    for reason in Reason:
        assert ANSWERS[reason].fault == (reason not in STATUSES or reason is Reason.INTERNAL)


@pytest.mark.parametrize("reason", Reason)
def test_check_codes_are_never_zero(reason: Reason) -> None:
    """Code 0 would let the request through, whatever else the answer says."""
    answer = ANSWERS[reason]
    expected = {429: 8, 503: 13 if answer.fault else 14}.get(answer.http_status, 7)
    assert answer.check_code == expected


def test_contended_answers_carry_the_hint() -> None:
    """A 429 says when to return in seconds and in ms, what was chance and which limit it was."""
    decision = refusal(Reason.TOKEN_RATE, RetryHint(2.3456, 0.4), LIMIT)
    assert headers_of(decision) == {
        "content-type": "application/json",
        "x-gpu-reason": "token_rate",
        "x-envoy-ratelimited": "true",
        "retry-after": "3",
        "retry-after-ms": "2346",
        "x-gpu-retry-jitter-ms": "400",
        "x-should-retry": "true",
        "ratelimit-policy": '"tokens";q=200000;w=60',
        "ratelimit": '"tokens";r=12;t=3',
        "x-ratelimit-limit-tokens": "200000",
        "x-ratelimit-remaining-tokens": "12",
        "x-ratelimit-reset-tokens": "2346ms",
    }


def test_unhinted_contention_still_names_a_wait() -> None:
    """A client without a hint would return at once, so there is always one."""
    for reason in (Reason.OVERLOADED, Reason.NO_ENDPOINT, Reason.INTERNAL):
        assert headers_of(refusal(reason))["retry-after"] == "1"


@pytest.mark.parametrize("reason", [Reason.NO_ENDPOINT, Reason.TELEMETRY_LOST])
def test_unserved_answers_carry_the_wait_only(reason: Reason) -> None:
    """A 503 says when to return, but claims no limit and forbids no mesh to retry elsewhere."""
    headers = headers_of(refusal(reason, RetryHint(7.0, 0.0), LIMIT))
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("7", "7000")
    assert not {"x-envoy-ratelimited", "ratelimit", "ratelimit-policy"} & set(headers)


def test_what_can_never_fit_is_not_retried() -> None:
    """A 413 forbids retries, gives no time to return at and says what to shorten."""
    headers = headers_of(refusal(Reason.TOO_LARGE, RetryHint(7.0, 0.0)))
    assert headers["x-should-retry"] == "false"
    assert not {"retry-after", "retry-after-ms", "x-gpu-retry-jitter-ms"} & set(headers)
    assert "Shorten the prompt" in ANSWERS[Reason.TOO_LARGE].message


def test_unknown_keys_are_challenged() -> None:
    """A 401 names the scheme, as HTTP demands; nothing else does."""
    for reason in Reason:
        challenge = headers_of(refusal(reason)).get("www-authenticate")
        assert challenge == ('Bearer realm="gpu"' if reason is Reason.UNKNOWN_KEY else None)


def test_grpc_callers_get_their_own_status_and_push_back() -> None:
    """A gRPC caller would otherwise see UNAVAILABLE and retry at once."""
    busy = headers_of(refusal(Reason.AT_CAPACITY, RetryHint(0.7, 0.1)), Api.GRPC)
    assert busy["grpc-status"] == "8"
    assert busy["grpc-retry-pushback-ms"] == "700"
    assert busy["grpc-message"].startswith("All servers of this model are busy.")
    never = headers_of(refusal(Reason.TOO_LARGE), Api.GRPC)
    assert (never["grpc-status"], never["grpc-retry-pushback-ms"]) == ("3", "-1")


@pytest.mark.parametrize("api", [Api.OPENAI, Api.ANTHROPIC])
@pytest.mark.parametrize("reason", Reason)
def test_sdk_bodies(reason: Reason, api: Api) -> None:
    """Both SDKs find type, code and message where they look for them."""
    body = json.loads(error_body(reason, api))
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "code", "message", "param"}
    assert body["error"]["code"] == reason.value
    assert body["error"]["param"] is None
    assert body["error"]["type"].endswith(("_error", "_large"))


@pytest.mark.parametrize("reason", Reason)
def test_other_bodies(reason: Reason) -> None:
    """KServe clients read a string, gRPC callers text, all others a small object."""
    kserve = json.loads(error_body(reason, Api.KSERVE))
    assert kserve == {"error": ANSWERS[reason].message, "reason": reason.value}
    assert error_body(reason, Api.GRPC) == ANSWERS[reason].message
    other = json.loads(error_body(reason, Api.OTHER))
    assert other == {"message": ANSWERS[reason].message, "reason": reason.value}


@given(st.sampled_from(Reason), st.sampled_from(Api), waits, waits, st.none() | limits)
def test_headers_are_unique_and_printable(
    reason: Reason, api: Api, wait_s: float, jitter_s: float, limit: LimitState | None
) -> None:
    """No name comes twice and no value can break a header, whatever the numbers are."""
    decision = refusal(reason, RetryHint(wait_s, jitter_s), limit)
    headers = [*fixed_headers(reason, api), *varying_headers(decision, api, CAP_S)]
    names = [name for name, _ in headers]
    assert len(names) == len(set(names))
    for name, value in headers:
        assert name == name.lower()
        assert value
        assert all(" " <= letter <= "~" for letter in value)


@given(st.text(max_size=2000))
def test_clean_values_are_printable_and_short(value: str) -> None:
    """Line breaks, control characters and anything beyond ASCII never reach a header."""
    assert all(" " <= letter <= "~" for letter in clean(value))
    assert len(clean(value)) == min(len(value), 1024)


def render(api: Api) -> dict[str, Any]:
    """Every refusal in the shape of `api`, as Envoy is told it."""
    rendered = {}
    for reason in STATUSES:
        decision = refusal(Reason(reason), RetryHint(2.345, 0.4), LIMIT)
        message: Any = WIRE.check_response.FromString(CODEC.encode(decision, None, api))
        kind = message.WhichOneof("http_response")
        denied = getattr(message, kind)
        rendered[reason] = {
            "check_code": message.status.code,
            "kind": kind,
            "http_status": denied.status.code,
            "headers": {option.header.key: option.header.value for option in denied.headers},
            "body": denied.body if api is Api.GRPC else json.loads(denied.body),
        }
    return rendered


@pytest.mark.parametrize("api", Api)
def test_golden_answers(api: Api) -> None:
    """Clients depend on these answers: a change to one is a change of the interface."""
    assert render(api) == json.loads((GOLDEN / f"{api}.json").read_text())


if __name__ == "__main__":  # writes the golden files anew
    for each in Api:
        (GOLDEN / f"{each}.json").write_text(json.dumps(render(each), indent=2) + "\n")
