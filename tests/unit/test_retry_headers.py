"""One time to come back, whichever header a client reads."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import Api, Decision, LimitState, Reason, RetryHint, Verdict
from ext_authz.serving.answers import ANSWERS, varying_headers
from ext_authz.serving.retry_headers import limit_headers, retry_after_header

CAP_S = 60.0
FOREVER = LimitState("odd", math.inf, math.inf, math.nan)

waits = st.floats()
limits = st.builds(LimitState, st.text(), waits, waits, waits)


@pytest.mark.parametrize(
    ("wait_s", "expected"),
    [
        (0.0, 1),
        (0.2, 1),
        (0.493, 1),
        (1.0, 1),
        (5.001, 6),
        (59.5, 60),
        (-43.0, 1),
        (86_400 * 365.0, 60),
        (math.inf, 60),
        (-math.inf, 1),
        (math.nan, 60),
    ],
)
def test_retry_after_is_whole_seconds(wait_s: float, expected: int) -> None:
    """The header is an integer, rounded up, within 1 and the cap, for any wait."""
    assert retry_after_header(wait_s, CAP_S) == expected


@given(waits, st.floats(1, 1e6))
def test_retry_after_never_undercuts_a_wait_below_the_cap(wait_s: float, cap_s: float) -> None:
    """A client that obeys is never early, unless the cap says so, and never late by a second."""
    header = retry_after_header(wait_s, cap_s)
    assert 1 <= header <= cap_s
    if 0 <= wait_s <= math.floor(cap_s):
        assert wait_s <= header < max(wait_s, 0.5) + 1


@given(
    st.sampled_from([reason for reason in Reason if ANSWERS[reason].retry]),
    st.sampled_from(Api),
    waits,
    waits,
    st.none() | st.builds(LimitState, st.sampled_from(["requests", "tokens", "x"]), *[waits] * 3),
    st.sampled_from([1.0, 60.0, 3600.0]),
)
def test_all_words_for_the_time_agree(
    reason: Reason, api: Api, wait_s: float, jitter_s: float, limit: LimitState | None, cap_s: float
) -> None:
    """Whichever header a client reads, it comes at one time: in milliseconds, or in the second
    that they lie in; the two words for a limit say the same; and an SDK is told not to come where
    it would not wait so long."""
    retry = RetryHint(wait_s, jitter_s)
    decision = Decision(Verdict.REJECT, reason, Verdict.REJECT, retry=retry, limit=limit)
    headers = dict(varying_headers(decision, api, cap_s))
    wait_ms, seconds = int(headers["retry-after-ms"]), int(headers["retry-after"])
    assert 1 <= seconds <= cap_s
    assert 1000 * (seconds - 1) <= wait_ms + 0.5 or seconds == 1
    assert wait_ms <= 1000 * seconds
    assert 0 <= int(headers["x-gpu-retry-jitter-ms"]) <= wait_ms
    assert (headers["x-should-retry"] == "true") == (wait_ms <= 60_000)
    assert headers.get("grpc-retry-pushback-ms", str(wait_ms)) == str(wait_ms)
    assert ("grpc-retry-pushback-ms" in headers) == (api is Api.GRPC)
    assert ("ratelimit" in headers) == (limit is not None and ANSWERS[reason].http_status == 429)
    if "ratelimit" in headers:
        left, reset_s = re.findall(r"[rt]=(\d+)", headers["ratelimit"])
        assert int(reset_s) == seconds
    named = [name for name in headers if name.startswith("x-ratelimit-reset-")]
    assert bool(named) == (
        "ratelimit" in headers and api is Api.OPENAI and limit is not None and limit.name != "x"
    )
    for name in named:
        assert headers[name] == f"{wait_ms}ms"
        assert headers[name.replace("reset", "remaining")] == left
        quota = re.findall(r"q=(\d+)", headers["ratelimit-policy"])
        assert [headers[name.replace("reset", "limit")]] == quota


@given(limits, waits)
def test_limits_are_structured_fields(limit: LimitState, reset_s: float) -> None:
    """Quotes inside the name are escaped and every parameter is a short whole number."""
    for _, value in limit_headers(limit, reset_s):
        assert value.startswith('"')
        rest = value[1:].replace("\\\\", "").replace('\\"', "")
        _, _, parameters = rest.partition('"')
        for parameter in parameters.lstrip(";").split(";"):
            name, _, number = parameter.partition("=")
            assert name in {"q", "w", "r", "t"}
            assert number.isdigit()
            assert len(number) <= 15


def test_limits_without_a_window() -> None:
    """A bound on how many run at once has no window, and says so by naming none."""
    limit = LimitState('my "own"', 4, 0.0, 0)
    assert limit_headers(limit, 0.0) == [
        ("ratelimit-policy", '"my \\"own\\"";q=4'),
        ("ratelimit", '"my \\"own\\"";r=0;t=0'),
    ]
    assert dict(limit_headers(FOREVER, -1.0))["ratelimit"] == '"odd";r=0;t=0'
