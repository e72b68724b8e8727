"""What who is admitted is told of its limits: the same that a refusal tells."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.config.compile import load
from ext_authz.model import Api, Decision, LimitState, Reason, Verdict
from ext_authz.overload import RetryRules
from ext_authz.serving.codec import Codec
from ext_authz.serving.wire import compile_messages
from ext_authz.settings import TenantLimits
from tests.support.world import Asks, pool, sample, settings, tenant

WIRE = compile_messages()
CODEC = Codec(WIRE)
LIMITS = (LimitState("requests", 10.0, 2.0, 4.0), LimitState("tokens", 6000.0, 60.0, 6000.0))


def told(decision: Decision, api: Api) -> dict[str, str]:
    """Headers of the answer to the client, as Envoy is told them."""
    message: Any = WIRE.check_response.FromString(CODEC.encode(decision, None, api))
    assert message.WhichOneof("http_response") == "ok_response"
    assert message.status.code == 0
    routed = {option.header.key for option in message.ok_response.headers}
    assert {"x-gpu-pool", "x-gpu-endpoint"} <= routed
    added = message.ok_response.response_headers_to_add
    return {option.header.key: option.header.value for option in added}


def admitted(limits: tuple[LimitState, ...]) -> Decision:
    return Decision(
        Verdict.ADMIT, Reason.HEADROOM, Verdict.ADMIT, pool="p", endpoint="e:80", limits=limits
    )


def test_each_rate_is_told_with_what_is_left_and_when_it_is_whole_again() -> None:
    """Six of ten are gone, which takes six tenths of two seconds to come back."""
    standard = {
        "ratelimit-policy": '"requests";q=10;w=2, "tokens";q=6000;w=60',
        "ratelimit": '"requests";r=4;t=2, "tokens";r=6000;t=0',
    }
    assert told(admitted(LIMITS), Api.KSERVE) == standard
    assert told(admitted(LIMITS), Api.OPENAI) == standard | {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "1200ms",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "6000",
        "x-ratelimit-reset-tokens": "0ms",
    }
    assert told(admitted(()), Api.OPENAI) == {}


@pytest.mark.parametrize("tells", [True, False])
def test_what_is_told_counts_down_to_the_refusal(tells: bool) -> None:
    """Three requests at once are told 2, 1 and 0 left; the fourth is refused with 0 left."""
    limits = TenantLimits(requests_per_second=1.0, request_burst=3.0)
    config = replace(
        settings((pool("p", 8),), (replace(tenant("a"), limits=limits),)),
        retry=RetryRules(tells_admitted=tells),
    )
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    controller.observe(sample("p-0:80", 0.0, 0.0, 0.4))
    decisions = [controller.arrive(asks("a"), 0.0) for _ in range(4)]
    left = [[state.remaining for state in decision.limits] for decision in decisions]
    assert left == ([[2.0], [1.0], [0.0], []] if tells else [[], [], [], []])
    refused = decisions[-1]
    assert refused.limit is not None
    assert (refused.reason, refused.limit.remaining) == (Reason.REQUEST_RATE, 0.0)
    if tells:
        before = decisions[-2].limits[0]
        assert (before.name, before.limit, before.window_s) == (
            refused.limit.name, refused.limit.limit, refused.limit.window_s
        )  # fmt: skip


def test_it_is_configured(tmp_path: Any) -> None:
    path = tmp_path / "gate.yaml"
    for text, tells in (("", False), ("  retry: {tell_admitted: true}\n", True)):
        path.write_text(
            "admission_control:\n  pools: [{name: p, endpoints: ['http://p:80']}]\n"
            "  tenants: {a: {}}\n" + text
        )
        assert load(path).settings.admission.retry.tells_admitted is tells
