"""What a request is, before anybody looks at load: tenant's type, pools, promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_authz.admission.intake import Intake, grpc_timeout_s
from ext_authz.admission.view import Ask
from ext_authz.estimation.cost import CostBook
from ext_authz.model import Decision, HttpCall, InferenceRequest, Reason, Verdict
from ext_authz.settings import AdmissionSettings, Pool, Slo, Tenant, TypeRule
from tests.support.world import REQUEST, pool, request_type, settings, tenant

TYPES = (request_type("chat"), request_type("batch"), request_type("vip"))
ALICE = replace(tenant("alice"), types=("chat", "batch"))


def serving(name: str, *models: str, demote_to: str | None = None) -> Pool:
    return replace(pool(name, demote_to=demote_to), models=frozenset(models))


def call(headers: dict[str, str]) -> HttpCall:
    return HttpCall("POST", "/v1/chat/completions", headers, b"", 0, False)


def config(*pools: Pool, **changes: object) -> AdmissionSettings:
    return settings(pools or (serving("p", "m"),), (ALICE,), TYPES, **changes)


def ask(
    intake: Intake,
    who: Tenant = ALICE,
    model: str | None = "m",
    path: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
) -> Ask | Decision:
    request = replace(REQUEST, model=model, path=path)
    return intake.ask("r1", who, call(headers or {}), request)


def pools_of(answer: Ask | Decision) -> list[str] | Reason:
    return answer.reason if isinstance(answer, Decision) else [p.name for p in answer.pools]


def promise(answer: Ask | Decision) -> float | None:
    assert isinstance(answer, Ask)
    return answer.slo_s


CATALOGUE = (
    serving("big", "llama", "shared", demote_to="small"),
    serving("small", "llama", "shared", "mini", demote_to="any"),
    serving("any"),
)


@pytest.mark.parametrize(
    ("model", "pools"),
    [
        ("llama", ["big", "small", "any"]),
        ("shared", ["big", "small", "any"]),
        ("mini", ["small", "any"]),
        ("never heard of", ["any"]),
        (None, ["big", "small", "any"]),
    ],
)
def test_which_pools(model: str | None, pools: list[str]) -> None:
    """The first pool in file order that names the model, then its chain; else the one for any."""
    assert pools_of(ask(Intake(config(*CATALOGUE), CostBook()), model=model)) == pools


def test_an_unknown_model_is_refused_where_nothing_serves_any() -> None:
    """Without a pool for any model an unknown name is unknown, and no pools at all is a fault."""
    refused = ask(Intake(config(), CostBook()), model="never heard of")
    assert isinstance(refused, Decision)
    assert (refused.verdict, refused.reason) == (Verdict.REJECT, Reason.UNKNOWN_MODEL)
    assert (refused.tenant, refused.type) == ("alice", "chat")
    empty = replace(config(), pools={})
    assert pools_of(ask(Intake(empty, CostBook()))) is Reason.NO_ENDPOINT


@pytest.mark.parametrize(
    ("model", "answer"),
    [("mini", ["small", "any"]), ("llama", Reason.MODEL_NOT_ALLOWED), (None, ["small", "any"])],
)
def test_a_tenants_models(model: str | None, answer: object) -> None:
    """A tenant gets its own models only, and one without a name goes to a pool that has them."""
    who = replace(ALICE, models=frozenset({"mini"}))
    assert pools_of(ask(Intake(config(*CATALOGUE), CostBook()), who, model=model)) == answer


def test_a_default_model_stands_in_for_a_missing_one() -> None:
    """The tenant's default decides where a request without a model goes, not one with one."""
    who = replace(ALICE, default_model="mini")
    intake = Intake(config(*CATALOGUE), CostBook())
    assert pools_of(ask(intake, who, model=None)) == ["small", "any"]
    assert pools_of(ask(intake, who, model="llama")) == ["big", "small", "any"]


@pytest.mark.parametrize(
    ("header", "type_"),
    [(None, "chat"), ("batch", "batch"), ("chat", "chat"), ("vip", "chat"), ("junk", "chat")],
)
def test_a_header_chooses_among_the_tenants_types_only(header: str | None, type_: str) -> None:
    """No client promotes itself to a type its tenant does not have."""
    headers = {} if header is None else {"x-request-type": header}
    answer = ask(Intake(config(), CostBook()), headers=headers)
    assert isinstance(answer, Ask)
    assert answer.type.name == type_


def test_the_first_matching_rule_decides_over_the_header() -> None:
    """Rules match path, model and tenant; every field given must match."""
    rules = (
        TypeRule("vip", tenant="bob"),
        TypeRule("vip", path="/v1/chat/completions", model="other"),
        TypeRule("batch", path="/v1/emb*"),
        TypeRule("vip", path="/v1/embeddings"),
    )
    intake = Intake(config(type_rules=rules), CostBook())
    for path, type_ in (
        ("/v1/embeddings", "batch"),
        ("/v1/emb", "batch"),
        ("/v1/chat/completions", "chat"),
        ("/v1/em", "chat"),
    ):
        answer = ask(intake, path=path, headers={"x-request-type": "chat"})
        assert isinstance(answer, Ask)
        assert answer.type.name == type_


SLOS = {
    "/v1/embeddings": Slo(0.1),
    "/v1/*": Slo(2.0),
    "/v1/chat/*": Slo(3.0),
    "/free/*": Slo(None),
}


@pytest.mark.parametrize(
    ("path", "slo_s"),
    [
        ("/v1/embeddings", 0.1),
        ("/v1/embeddings/x", 2.0),
        ("/v1/chat/completions", 3.0),
        ("/v1/completions", 2.0),
        ("/other", 1.0),
        ("/free/x", None),
    ],
)
def test_the_promise_of_a_path(path: str, slo_s: float | None) -> None:
    """The exact path goes before prefixes, the longer prefix before the shorter, then the rest."""
    assert promise(ask(Intake(config(path_slos=SLOS), CostBook()), path=path)) == slo_s


@pytest.mark.parametrize(
    ("headers", "slo_s"),
    [
        ({"grpc-timeout": "500m"}, 0.5),
        ({"x-envoy-expected-rq-timeout-ms": "300"}, 0.3),
        ({"x-deadline": "200"}, 0.2),
        ({"grpc-timeout": "500m", "x-deadline": "700"}, 0.5),
        ({"grpc-timeout": "2S"}, 1.0),
        ({"x-envoy-expected-rq-timeout-ms": "15000"}, 1.0),
        ({"x-envoy-expected-rq-timeout-ms": "0"}, 1.0),
        ({"x-deadline": "-5"}, 1.0),
        ({"x-deadline": "soon"}, 1.0),
        ({"x-deadline": "1e1"}, 1.0),
        ({"x-deadline": "٣"}, 1.0),
        ({"x-deadline": "9" * 40}, 1.0),
    ],
)
def test_a_clients_deadline_may_only_shorten(headers: dict[str, str], slo_s: float) -> None:
    """The shortest of all deadlines counts; none makes the promise longer, odd ones are ignored."""
    assert (
        promise(ask(Intake(config(deadline_header="x-deadline"), CostBook()), headers=headers))
        == slo_s
    )


def test_a_deadline_header_that_is_not_configured_is_not_read() -> None:
    """Only the names that are known or configured carry a deadline."""
    assert promise(ask(Intake(config(), CostBook()), headers={"x-deadline": "5"})) == 1.0


def test_a_deadline_is_a_promise_where_there_is_none() -> None:
    """Without an end-to-end promise the client's deadline is the promise."""
    answer = ask(Intake(config(default_slo=Slo()), CostBook()), headers={"grpc-timeout": "3S"})
    assert promise(answer) == 3.0
    assert promise(ask(Intake(config(default_slo=Slo()), CostBook()))) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("4m", 0.004),
        ("5u", 5e-6),
        ("6n", 6e-9),
        ("0S", 0.0),
        ("99999999S", 99_999_999.0),
        ("999999999S", None),
        ("S", None),
        ("5", None),
        ("-5S", None),
        ("1.5S", None),
        ("٣S", None),
        ("²S", None),
        ("5s", None),
        ("", None),
        (None, None),
    ],
)
def test_grpc_timeout(value: str | None, seconds: float | None) -> None:
    """At most eight ASCII digits and a unit; everything else is no timeout."""
    assert grpc_timeout_s(value) == (None if seconds is None else pytest.approx(seconds))


def test_the_estimate_comes_with_the_ask() -> None:
    """An ask is priced by the configured rules."""
    answer = ask(Intake(config(), CostBook()))
    assert isinstance(answer, Ask)
    assert answer.estimate.prompt_tokens == 100
    assert isinstance(answer.request, InferenceRequest)


def test_promises_of_tokens_come_along() -> None:
    """A path may promise its first token and its pace, whatever a client's deadline is."""
    slos = {"/v1/chat/completions": Slo(None, 0.5, 0.02)}
    answer = ask(Intake(config(path_slos=slos), CostBook()), headers={"grpc-timeout": "3S"})
    assert isinstance(answer, Ask)
    assert (answer.slo_s, answer.ttft_s, answer.tpot_s) == (3.0, 0.5, 0.02)


def test_cache_bytes_are_those_of_the_model() -> None:
    """What a token of the model fills comes from its pool; of another model it is unknown."""
    known = replace(serving("p", "m", "other"), kv_token_bytes={"m": 1000.0})
    intake = Intake(config(known), CostBook())
    for model, token_bytes in (("m", 1000.0), ("other", None)):
        answer = ask(intake, model=model)
        assert isinstance(answer, Ask)
        expected = None if token_bytes is None else token_bytes * answer.estimate.kv_tokens
        assert answer.estimate.kv_bytes == expected
