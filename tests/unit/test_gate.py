"""The gate as a whole, on a standing clock: who gets in, and what is counted of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ext_authz.estimation.shapes.document import MAX_PARSE_BYTES
from ext_authz.journal import Entry, explain
from ext_authz.model import Api, Decision, HttpCall, Reason, Verdict
from ext_authz.overload import Enforcement, Enforcing, Rule
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.settings import EdgeSettings, Pipeline, Stage, Tenant
from ext_authz.snapshot import EndpointSample
from tests.support.service import KEY, Service
from tests.support.world import SHADOW, pool

CHAT = "/v1/chat/completions"
E, S, OFF = Enforcement.ENFORCE, Enforcement.SHADOW, Enforcement.OFF
BEARER = {"authorization": f"Bearer {KEY}"}
PREFLIGHT = {"origin": "https://app.example", "access-control-request-method": "POST"}


def decide(service: Service, call: HttpCall) -> Decision:
    return service.gate.decide(call, service.clock.now())[0]


def post(headers: dict[str, str], body: bytes = b'{"model":"m"}', size: int = -1) -> HttpCall:
    whole = max(size, len(body))
    return HttpCall("POST", CHAT, headers, body, whole, partial=whole > len(body))


def change(service: Service, tenant: dict[str, Any], **admission: Any) -> None:
    """Run on with the one tenant and the admission settings changed."""
    before = service.gate.settings
    acme: Tenant = replace(before.admission.tenants["acme"], **tenant)
    changed = replace(before.admission, tenants={"acme": acme}, **admission)
    service.gate.reconfigure(replace(before, admission=changed), service.clock.now())


def models(service: Service, *names: str) -> None:
    """Have the one pool serve these models only."""
    (pool,) = service.gate.settings.admission.pools.values()
    change(service, {}, pools={pool.name: replace(pool, models=frozenset(names))})


def test_different_keys_in_two_headers_are_counted() -> None:
    """The first configured header decides, and the conflict shows in a metric (O-16)."""
    service = Service()
    same = post({**BEARER, "x-api-key": KEY})
    assert decide(service, same).verdict is Verdict.ADMIT
    assert service.metrics.value("key_conflicts") == 0
    assert decide(service, post({**BEARER, "x-api-key": "sk-other"})).tenant == "acme"
    turned = post({"authorization": "Bearer sk-other", "x-api-key": KEY})
    assert decide(service, turned).reason is Reason.UNKNOWN_KEY
    assert service.metrics.value("key_conflicts") == 2


@pytest.mark.parametrize("default", [None, "small"])
def test_a_model_beyond_the_cut_is_no_refusal(default: str | None) -> None:
    """Messages before the model, longer than what Envoy sends: the tenant's default model or its
    first pool serves it, priced by the whole length and counted as partial (O-11)."""
    service = Service()
    models(service, "small", "large")
    change(service, {"models": frozenset({"small"}), "default_model": default})
    said = {"messages": [{"role": "user", "content": "a" * 250_000}], "model": "small"}
    body = json.dumps(said).encode()
    decision = decide(service, post(BEARER, body[:MAX_PARSE_BYTES], len(body)))
    assert (decision.verdict, decision.pool) == (Verdict.ADMIT, "p")
    assert decision.estimate is not None
    assert 62_000 <= decision.estimate.prompt_tokens <= 63_000
    assert service.metrics.value("partial_bodies") == 1


def test_a_model_that_can_be_read_is_held_to_the_list() -> None:
    """Wherever it stands in what was sent, on any path, a foreign model is refused."""
    service = Service()
    models(service, "small", "large")
    change(service, {"models": frozenset({"small"}), "default_model": "small"})
    large = b'{"model":"large","messages":[]}'
    calls = [
        post(BEARER, large),
        post(BEARER, large[:-1] + b',"x":"' + b"a" * 9000, 90_000),
        post(BEARER, b'{"model":"small","mod\\u0065l":"large"}'),
        post(BEARER, b'\xef\xbb\xbf{"model":"large"}'),
        post(BEARER, json.dumps({"model": "large"}).encode("utf-16")),
        replace(post(BEARER, large), path="/v1/rerank"),
        replace(post(BEARER, large), path="/v1/./chat/completions"),
        replace(post(BEARER, b"{}"), path="/v2/models/large/infer"),
        replace(post(BEARER, b"{}"), path="/v2/models/small/../large/infer?x"),
        replace(post(BEARER, b"{}"), path="/openai/deployments/large/chat/completions"),
    ]
    reasons = [decide(service, call).reason for call in calls]
    assert reasons == [Reason.MODEL_NOT_ALLOWED] * len(calls)
    assert decide(service, post(BEARER, b'{"model":"small"}')).verdict is Verdict.ADMIT


def test_a_preflight_needs_no_key_and_leaves_nothing() -> None:
    """It books nothing and belongs to no tenant; where it is forbidden it is an unknown key."""
    service = Service()
    call = HttpCall("OPTIONS", CHAT, PREFLIGHT, b"", 0, partial=False)
    decision, api = service.gate.decide(call, service.clock.now())
    assert (decision.verdict, decision.reason, api) == (Verdict.ADMIT, Reason.PREFLIGHT, Api.OTHER)
    assert (decision.tenant, decision.pool, decision.reservation_id) == (None, None, None)
    assert service.in_flight == 0
    before = service.gate.settings
    edge: EdgeSettings = replace(before.edge, preflight_allow=False)
    service.gate.reconfigure(replace(before, edge=edge), service.clock.now())
    assert decide(service, call).reason is Reason.UNKNOWN_KEY


def test_shadow_mode_lets_strangers_in_and_says_so() -> None:
    """Nothing is refused in shadow mode, keys included, and the record has what would have been."""
    service = Service()
    change(service, {}, enforcing=SHADOW)
    decision = decide(service, post({}))
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.REJECT)
    assert (decision.reason, decision.reservation_id) == (Reason.UNKNOWN_KEY, None)


@pytest.mark.parametrize(
    ("enforcing", "verdict", "would_be", "reason"),
    [
        (Enforcing(rules={Rule.KEYS: S}), "admit", "reject", Reason.UNKNOWN_KEY),
        (Enforcing(rules={Rule.KEYS: OFF}), "admit", "admit", Reason.DISABLED),
        (Enforcing(S, rules={Rule.KEYS: E}), "reject", "reject", Reason.UNKNOWN_KEY),
        (Enforcing(tenants={"acme": OFF}), "reject", "reject", Reason.UNKNOWN_KEY),
    ],
)
def test_keys_are_a_rule_of_their_own(
    enforcing: Enforcing, verdict: str, would_be: str, reason: Reason
) -> None:
    """Held to or not, whatever else is; of nobody there is no tenant to spare."""
    service = Service()
    change(service, {}, enforcing=enforcing)
    decision = decide(service, post({}))
    assert (decision.verdict, decision.would_be, decision.reason) == (verdict, would_be, reason)


@pytest.mark.parametrize(
    ("enforcing", "verdict"),
    [
        (Enforcing(rules={Rule.MODELS: S}), "admit"),
        (Enforcing(tenants={"acme": S}), "admit"),
        (Enforcing(S, tenants={"acme": E}), "reject"),
        (Enforcing(pools={"p": OFF}), "reject"),
    ],
)
def test_a_model_that_is_not_allowed_is_a_matter_of_the_tenant(
    enforcing: Enforcing, verdict: str
) -> None:
    """Passed on in shadow, and nowhere booked."""
    service = Service()
    change(service, {"models": frozenset({"other"})}, enforcing=enforcing)
    decision = decide(service, post(BEARER))
    assert (decision.verdict, decision.would_be) == (verdict, "reject")
    assert decision.reason is Reason.MODEL_NOT_ALLOWED
    assert decision.reservation_id is None


@pytest.mark.parametrize(
    ("charged", "served", "elsewhere"),
    [
        ("10.0.0.1:80", "10.0.0.1:80", 0),
        ("10.0.0.1:80", "10.0.0.2:80", 1),
        ("10.0.0.1:80", "10.0.0.1:81", 1),
        ("[0:0::1]:80", "[::1]:80", 0),
        ("[::1]:80", "[::2]:80", 1),
        # Envoy logs the address that it found for the name.
        ("gpu-1:80", "10.0.0.1:80", 0),
        ("10.0.0.1:80", None, 0),
        ("10.0.0.1:80", "pipe", 0),
    ],
)
def test_who_served_is_compared_with_who_was_charged(
    charged: str, served: str | None, elsewhere: int
) -> None:
    """A server other than the one charged is counted, and the booking ends where it was made."""
    service = Service()
    (pool,) = service.gate.settings.admission.pools.values()
    moved = (replace(pool.endpoints[0], address=charged),)
    change(service, {}, pools={pool.name: replace(pool, endpoints=moved)})
    now = service.clock.now()
    service.gate.observe(EndpointSample(charged, now, running=0, waiting=0))
    decision = decide(service, post(BEARER))
    entry = AccessLogEntry(
        decision_id=decision.reservation_id or "",
        status=200,
        final=True,
        periodic=False,
        duration_s=0.1,
        upstream=served,
        client_left=False,
        upstream_reset=False,
        response_bytes=10,
    )
    service.gate.ended(entry, now)
    assert service.in_flight == 0
    assert service.metrics.value("access_log_entries", "settled") == 1
    assert service.metrics.value("endpoint_mismatches", pool.name) == elsewhere


def test_a_pipeline_is_one_decision() -> None:
    """Envoy routes to the first stage, every stage is charged, and one log entry ends them all."""
    service = Service()
    (entry,) = service.gate.settings.admission.pools.values()
    pools = {"p": entry, "q": pool("q", slots=1)}
    rag = Pipeline("rag", frozenset({"m"}), (CHAT,), (Stage("p", 1.0, 0), Stage("q")))
    change(service, {}, pools=pools, pipelines=(rag,))
    service.gate.observe(EndpointSample("q-0:80", service.clock.now(), running=0, waiting=0))
    admitted = decide(service, post(BEARER))
    assert (admitted.pool, admitted.pipeline) == ("p", "rag")
    own = [e.own for _, e in service.gate.controller.endpoint_states()]
    assert own == [1, 1]
    refused = decide(service, post(BEARER))
    assert (refused.reason, refused.stage) == (Reason.AT_CAPACITY, "q")
    told = explain(Entry(0.0, "x", refused))
    assert "pipeline rag: its stage on q objected" in told
    log = AccessLogEntry(
        admitted.reservation_id or "", 200, True, False, 0.1, "p-0:80", False, False, 10
    )
    service.gate.ended(log, service.clock.now())
    assert [e.own for _, e in service.gate.controller.endpoint_states()] == [0, 0]
    assert service.metrics.value("endpoint_mismatches", "p") == 0
