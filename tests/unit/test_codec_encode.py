"""Decisions, as Envoy is told them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import Api, Decision, HttpCall, Reason, RetryHint, Verdict, WorkEstimate
from ext_authz.serving.codec import Codec
from ext_authz.serving.wire import compile_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.service.auth import v3 as auth
    from envoy_data_plane.google import protobuf, rpc

WIRE = compile_messages()
CODEC = Codec(WIRE)
ADMIT = Decision(
    Verdict.ADMIT,
    Reason.HEADROOM,
    Verdict.ADMIT,
    tenant="acme",
    pool="primary",
    endpoint="10.0.0.1:8000",
    reservation_id="r-1",
    estimate=WorkEstimate(200, 100),
)
DEMOTE = Decision(
    Verdict.DEMOTE,
    Reason.OVER_SHARE,
    Verdict.DEMOTE,
    tenant="acme",
    pool="economy",
    endpoint="10.0.0.2:8000",
    reservation_id="r-2",
    estimate=WorkEstimate(1, 2),
)
FAULTS = {
    Reason.HEADROOM,
    Reason.IDLE_ENDPOINT,
    Reason.PREFLIGHT,
    Reason.DISABLED,
    Reason.DEMOTION_PREFERRED,
    Reason.TELEMETRY_FALLBACK,
    Reason.INTERNAL,
}
UNROUTED = Decision(Verdict.ADMIT, Reason.DISABLED, Verdict.ADMIT)


def call_with(**headers: str) -> HttpCall:
    return HttpCall(
        "POST", "/", {k.replace("_", "-"): v for k, v in headers.items()}, b"", 0, False
    )


def decoded(data: bytes) -> Any:
    return auth.CheckResponse.parse(data)


def set_headers(response: Any) -> dict[str, str]:
    options = response.ok_response.headers
    for option in options:
        assert option.append_action == core.HeaderValueOptionHeaderAppendAction(2)
    names = [option.header.key for option in options]
    assert len(names) == len(set(names))
    return {option.header.key: option.header.value for option in options}


class TestPermission:
    def test_admit(self) -> None:
        """An admitted request is routed by headers that overwrite what the client sent."""
        response = decoded(CODEC.encode(ADMIT, call_with(accept="*"), Api.OPENAI))
        assert response.status.code == 0
        assert set_headers(response) == {
            "x-gpu-pool": "primary",
            "x-gpu-endpoint": "10.0.0.1:8000",
            "x-gpu-admission": "admit",
        }
        assert response.ok_response.headers_to_remove == ["x-gpu-reason", "x-gpu-max-tokens"]

    def test_demote(self) -> None:
        """A demoted request is routed to the other pool and told why."""
        response = decoded(CODEC.encode(DEMOTE, None, Api.OPENAI))
        assert set_headers(response) == {
            "x-gpu-pool": "economy",
            "x-gpu-endpoint": "10.0.0.2:8000",
            "x-gpu-admission": "demote",
            "x-gpu-reason": "over_share",
        }
        assert response.ok_response.headers_to_remove == ["x-gpu-max-tokens"]
        told = response.ok_response.response_headers_to_add
        assert {option.header.key: option.header.value for option in told} == {
            "x-gpu-admission": "demote",
            "x-gpu-reason": "over_share",
        }

    def test_reasons_do_not_mix(self) -> None:
        """Two demotions to the same server for different reasons each say their own."""
        for reason in (Reason.OVER_SHARE, Reason.AT_CAPACITY, Reason.OVER_SHARE):
            answer = CODEC.encode(dataclasses.replace(DEMOTE, reason=reason), None, Api.OPENAI)
            assert set_headers(decoded(answer))["x-gpu-reason"] == reason.value

    def test_unrouted(self) -> None:
        """Without a pool nothing is set, and nothing the client claimed is left."""
        response = decoded(CODEC.encode(UNROUTED, None, Api.OPENAI))
        assert response.status.code == 0
        assert set_headers(response) == {}
        removed = response.ok_response.headers_to_remove
        assert removed == [
            "x-gpu-pool", "x-gpu-endpoint", "x-gpu-admission", "x-gpu-reason", "x-gpu-max-tokens"
        ]  # fmt: skip
        assert response.dynamic_metadata is None

    def test_a_demotion_to_nowhere(self) -> None:
        """Without a pool even a demotion sets nothing and tells nothing."""
        nowhere = dataclasses.replace(DEMOTE, pool=None, endpoint=None)
        ok = decoded(CODEC.encode(nowhere, None, Api.OPENAI)).ok_response
        assert (ok.headers, ok.response_headers_to_add) == ([], [])
        assert len(ok.headers_to_remove) == 5

    @pytest.mark.parametrize("decision", [ADMIT, DEMOTE, UNROUTED])
    def test_forged_headers(self, decision: Decision) -> None:
        """Whatever is in our namespace is set by us or removed, once, never joined."""
        call = call_with(x_gpu_pool="premium,default", x_gpu_route="vip", xx_gpu_a="1", x_gpux="2")
        response = decoded(CODEC.encode(decision, call, Api.OPENAI))
        removed = response.ok_response.headers_to_remove
        mentioned = [*set_headers(response), *removed]
        assert len(mentioned) == len(set(mentioned))
        assert {"x-gpu-pool", "x-gpu-route"} <= set(mentioned)
        assert not {"xx-gpu-a", "x-gpux"} & set(mentioned)
        # The next request of the same kind is not answered with this one's removals.
        clean = decoded(CODEC.encode(decision, call_with(), Api.OPENAI))
        assert "x-gpu-route" not in clean.ok_response.headers_to_remove

    def test_dynamic_metadata(self) -> None:
        """The access log gets the decision's id and the estimate back."""
        fields = decoded(CODEC.encode(ADMIT, None, Api.OPENAI)).dynamic_metadata.fields
        assert {
            name: value.string_value or value.number_value for name, value in fields.items()
        } == {
            "decision_id": "r-1",
            "tenant": "acme",
            "pool": "primary",
            "prompt_tokens": 200,
            "output_tokens": 100,
        }

    def test_unprintable_names(self) -> None:
        """A line break in a configured name cannot leave the client hanging."""
        odd = Decision(Verdict.ADMIT, Reason.HEADROOM, Verdict.ADMIT, pool="a\nb", endpoint=None)
        response = decoded(CODEC.encode(odd, None, Api.OPENAI))
        assert set_headers(response) == {"x-gpu-pool": "a?b", "x-gpu-admission": "admit"}
        assert response.ok_response.headers_to_remove == [
            "x-gpu-endpoint", "x-gpu-reason", "x-gpu-max-tokens"
        ]  # fmt: skip

    def test_the_cache_is_bounded(self) -> None:
        """Pools that come and go with reloads do not pile up."""
        codec = Codec(WIRE)
        for number in range(3000):
            decision = Decision(Verdict.ADMIT, Reason.HEADROOM, Verdict.ADMIT, pool=f"p{number}")
            answer = decoded(codec.encode(decision, None, Api.OPENAI))
            assert set_headers(answer)["x-gpu-pool"] == f"p{number}"
        assert len(codec._allowed) <= 1024

    @pytest.mark.parametrize("decision", [ADMIT, DEMOTE])
    def test_joined_bytes_are_those_of_one_message(self, decision: Decision) -> None:
        """The remembered and the varying part, joined, are the bytes of the whole, canonical."""
        for _ in range(2):
            data = CODEC.encode(decision, None, Api.OPENAI)
            message: Any = WIRE.check_response.FromString(data)
            assert message.SerializeToString(deterministic=True) == data
            plain = whole_permission(decision)
            assert decoded(data) == plain
            assert WIRE.check_response.FromString(bytes(plain)) == message


def whole_permission(decision: Decision) -> auth.CheckResponse:
    """The answer built in the plain way, field by field."""
    overwrite = core.HeaderValueOptionHeaderAppendAction(2)
    headers = {
        "x-gpu-pool": decision.pool,
        "x-gpu-endpoint": decision.endpoint,
        "x-gpu-admission": decision.verdict.value,
    }
    if decision.verdict is Verdict.DEMOTE:
        headers["x-gpu-reason"] = decision.reason.value
    assert decision.estimate is not None
    texts = {"decision_id": decision.reservation_id, "tenant": decision.tenant}
    numbers = {
        "prompt_tokens": decision.estimate.prompt_tokens,
        "output_tokens": decision.estimate.output_tokens,
    }
    values = {
        name: protobuf.Value(string_value=value)
        for name, value in {**texts, "pool": decision.pool}.items()
    } | {name: protobuf.Value(number_value=float(value)) for name, value in numbers.items()}

    def options(names: Iterable[str]) -> list[core.HeaderValueOption]:
        return [
            core.HeaderValueOption(
                header=core.HeaderValue(key=name, value=headers[name] or ""),
                append_action=overwrite,
            )
            for name in names
        ]

    demoted = decision.verdict is Verdict.DEMOTE
    return auth.CheckResponse(
        status=rpc.Status(),
        ok_response=auth.OkHttpResponse(
            headers=options(headers),
            headers_to_remove=[*([] if demoted else ["x-gpu-reason"]), "x-gpu-max-tokens"],
            response_headers_to_add=options(("x-gpu-admission", "x-gpu-reason") if demoted else ()),
        ),
        dynamic_metadata=protobuf.Struct(fields=values),
    )


class TestRefusal:
    @given(
        st.sampled_from(Verdict),
        st.sampled_from(Reason),
        st.sampled_from(Api),
        st.sampled_from([None, "p"]),
        st.floats(),
    )
    def test_code_zero_never_travels_with_a_refusal(
        self, verdict: Verdict, reason: Reason, api: Api, pool: str | None, wait_s: float
    ) -> None:
        """Envoy allows code 0 whatever else is said, and denies any other code."""
        decision = Decision(verdict, reason, verdict, pool=pool, retry=RetryHint(wait_s, wait_s))
        response = decoded(CODEC.encode(decision, call_with(x_gpu_pool="forged"), api))
        if verdict is Verdict.REJECT:
            assert response.status.code != 0
            assert response.ok_response is None
            denied = response.denied_response or response.error_response
            assert 400 <= int(denied.status.code) < 600
            names = [option.header.key for option in denied.headers]
            assert len(names) == len(set(names))
        else:
            assert response.status.code == 0
            assert response.denied_response is None
            assert response.error_response is None

    def test_our_own_faults_leave_it_to_envoy(self) -> None:
        """A fault is an error, which Envoy's failure mode may turn into an allow; others not."""
        for reason in Reason:
            decision = Decision(Verdict.REJECT, reason, Verdict.REJECT)
            response = decoded(CODEC.encode(decision, None, Api.OTHER))
            fault = response.error_response is not None
            assert fault == (response.status.code == 13)
            assert fault == (reason in FAULTS)

    def test_remembered_refusals_do_not_mix(self) -> None:
        """Each answer has its own hint, and the shape of its own caller."""
        answers = []
        for api in (Api.OPENAI, Api.GRPC, Api.OPENAI):
            for after_s in (1.5, 2.5):
                decision = Decision(
                    Verdict.REJECT, Reason.AT_CAPACITY, Verdict.REJECT, retry=RetryHint(after_s, 0)
                )
                denied = decoded(CODEC.encode(decision, None, api)).denied_response
                headers = {option.header.key: option.header.value for option in denied.headers}
                answers.append((headers["retry-after-ms"], "grpc-status" in headers))
        assert answers == [
            ("1500", False),
            ("2500", False),
            ("1500", True),
            ("2500", True),
            ("1500", False),
            ("2500", False),
        ]

    @pytest.mark.parametrize("cap_s", [0.0, -1.0, float("inf"), float("nan")])
    def test_the_cap_must_be_a_bound(self, cap_s: float) -> None:
        """A backstop that bounds nothing is a mistake of the caller."""
        with pytest.raises(ValueError, match="retry_cap_s"):
            Codec(WIRE, retry_cap_s=cap_s)
