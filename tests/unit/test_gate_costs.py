"""Prices learned at the gate: by what is sent, the access log, and engines' counters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ext_authz.model import Decision, HttpCall, Verdict
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.settings import CostRules
from ext_authz.snapshot import EndpointSample
from tests.support.service import KEY, Service

HEADERS = {"authorization": f"Bearer {KEY}"}


# With the word "user" 2,000 bytes of text.
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 1996}]}).encode()
CALL = HttpCall("POST", "/v1/chat/completions", HEADERS, BODY, len(BODY), partial=False)


def decide(service: Service) -> Decision:
    return service.gate.decide(CALL, service.clock.at_s)[0]


def serve(service: Service, response_bytes: int) -> str:
    """One request in and out; the endpoint that had it."""
    decision = decide(service)
    assert decision.verdict is Verdict.ADMIT
    id_, endpoint = decision.reservation_id or "", decision.endpoint or ""
    entry = AccessLogEntry(id_, 200, True, False, 0.05, endpoint, False, False, response_bytes)
    service.gate.ended(entry, service.clock.at_s)
    return endpoint


def tell(service: Service, endpoint: str, requests: int, foreign: float = 0.0) -> None:
    """A scrape: each request was 1,000 tokens in and 100 out."""
    service.clock.at_s += 1.0
    sample = EndpointSample(
        endpoint,
        service.clock.at_s,
        running=foreign,
        waiting=0.0,
        prompt_tokens_per_s=1000.0 * requests,
        generation_tokens_per_s=100.0 * requests,
    )
    service.gate.observe(sample)
    service.gate.learn(1000, service.clock.at_s)


def minute(service: Service, foreign: float = 0.0) -> None:
    for _ in range(60):
        for _ in range(10):
            endpoint = serve(service, 700)
        tell(service, endpoint, 10, foreign)


def tokens(service: Service) -> tuple[int, int]:
    """What 2,000 bytes of text are priced at just now."""
    estimate = decide(service).estimate
    assert estimate is not None
    return estimate.prompt_tokens, estimate.output_tokens


def test_prices_follow_the_engines_counters() -> None:
    """2,000 bytes are 500 tokens and 256 of output at first; after a minute what they were."""
    service = Service()
    assert tokens(service) == (500, 256)
    minute(service)
    prompt, output = tokens(service)
    assert prompt == pytest.approx(1000, rel=0.03)
    assert output == pytest.approx(100, rel=0.2)


def test_foreign_load_teaches_nothing() -> None:
    """An engine that others use as well counts what we never sent."""
    service = Service(slots=16)
    minute(service, foreign=3.0)
    assert tokens(service) == (500, 256)


def test_what_was_learned_outlives_a_reload_and_new_rules_hold_for_the_rest() -> None:
    """Only prices of which nothing was learned follow the configuration."""
    service = Service()
    minute(service)
    before = tokens(service)
    settings = service.gate.settings
    rules = CostRules(bytes_per_token=2.0, default_output_tokens=7)
    changed = replace(settings, admission=replace(settings.admission, cost=rules))
    service.gate.reconfigure(changed, service.clock.at_s)
    assert tokens(service) == before
    fresh = Service()
    fresh.gate.reconfigure(changed, fresh.clock.at_s)
    assert tokens(fresh) == (1000, 7)
