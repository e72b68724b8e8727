"""What the sender of a request that can never fit is told."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import Api, Decision, LimitState, Reason, Verdict, WorkEstimate
from ext_authz.serving.answers import too_large
from ext_authz.serving.codec import Codec
from ext_authz.serving.wire import compile_messages

LIMIT = LimitState("tokens", 200_000, 60.0, 12.7)
WIRE = compile_messages()
CODEC = Codec(WIRE)


def refusal(reason: Reason, limit: LimitState | None = None) -> Decision:
    return Decision(Verdict.REJECT, reason, Verdict.REJECT, limit=limit)


def unfit(cost: WorkEstimate | None, holds: float | None) -> Decision:
    """A refusal of what costs `cost` where a server holds `holds` tokens."""
    limit = None if holds is None else LimitState("kv_cache_tokens", holds, 0.0, 0.0)
    return replace(refusal(Reason.TOO_LARGE, limit=limit), estimate=cost)


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (
            WorkEstimate(9000, 300, 4096),
            "The request can never fit: a prompt of about 9000 tokens and up to 4096 of output are "
            "4904 more than the 8192 that a server of this model can hold. Shorten the prompt by "
            "more than 808 tokens: a lower output token limit alone is not enough.",
        ),
        (
            WorkEstimate(100, 10_000),
            "The request can never fit: a prompt of about 100 tokens and up to 10000 of output are "
            "1908 more than the 8192 that a server of this model can hold. Limit the output to "
            "8092 tokens, all choices together: a shorter prompt alone is not enough.",
        ),
        (
            WorkEstimate(6000, 300, 4096),
            "The request can never fit: a prompt of about 6000 tokens and up to 4096 of output are "
            "1904 more than the 8192 that a server of this model can hold. Shorten the prompt by "
            "about 1904 tokens, or limit the output to 2192 tokens, all choices together.",
        ),
        (WorkEstimate(8192, 0), None),
        (None, None),
    ],
)
def test_what_does_not_fit_is_told_in_tokens(cost: WorkEstimate | None, told: str | None) -> None:
    """Worked figures: what is too much, by how much, and only remedies that would do."""
    assert too_large(unfit(cost, 8192.9)) == told


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.floats())
def test_remedies_for_what_does_not_fit_would_do(
    prompt: int, output: int, most: int, holds: float
) -> None:
    """Each remedy, followed, makes the request fit, and no figure is told where nothing is over."""
    cost = WorkEstimate(prompt, output, most)
    told = too_large(unfit(cost, holds))
    if not 0 < holds < math.inf or cost.kv_tokens <= math.floor(holds):
        assert told is None
        return
    assert told is not None
    remedy = told.partition(" can hold. ")[2]
    if (by := re.search(r"by about (\d+)", remedy)) is not None:
        assert 0 < int(by[1]) < prompt
        assert cost.kv_tokens - int(by[1]) <= holds
    if (to := re.search(r"output to (\d+)", remedy)) is not None:
        assert int(to[1]) > 0
        assert prompt + int(to[1]) <= holds
    if (more := re.search(r"by more than (\d+)", remedy)) is not None:
        assert prompt - int(more[1]) - 1 < holds
    assert by or to or more


def test_other_refusals_tell_nothing_of_fitting() -> None:
    """A limit of another kind is no size of a server."""
    decision = replace(refusal(Reason.TOKEN_RATE, limit=LIMIT), estimate=WorkEstimate(10**6, 1))
    assert too_large(decision) is None


@pytest.mark.parametrize("api", Api)
def test_what_does_not_fit_reaches_the_caller(api: Api) -> None:
    """The figures stand in the body of every shape and in gRPC's message, with no rate limit and
    no time to come back at; and no other request is told them."""
    decision = unfit(WorkEstimate(6000, 300, 4096), 8192.0)
    message: Any = WIRE.check_response.FromString(CODEC.encode(decision, None, api))
    denied = message.denied_response
    headers = {option.header.key: option.header.value for option in denied.headers}
    assert denied.status.code == 413
    assert "limit the output to 2192 tokens" in denied.body
    if api is Api.GRPC:
        assert unquote(headers["grpc-message"]) == denied.body
    assert not {"retry-after", "ratelimit", "ratelimit-policy"} & set(headers)
    other: Any = WIRE.check_response.FromString(CODEC.encode(refusal(Reason.TOO_LARGE), None, api))
    assert "2192" not in other.denied_response.body
