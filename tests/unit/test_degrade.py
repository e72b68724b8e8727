"""Servers that are asked for less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.model import Api, Decision, HttpCall, Reason, Verdict
from ext_authz.overload import Degrade, Enforcement, Enforcing
from ext_authz.serving.codec import Codec
from tests.support.controlling import TENANTS, started
from tests.support.service import WIRE
from tests.support.world import Asks, pool, settings


def degrading(p: Degrade | None, q: Degrade | None, **changes: object) -> tuple[Controller, Asks]:
    """Two pools of two slots, the second the demotion target of the first."""
    first = replace(pool("p", 2, demote_to="q"), degrade=p)
    return started(settings((first, replace(pool("q", 2), degrade=q)), TENANTS, **changes))


def told(decisions: list[Decision]) -> list[tuple[str | None, int | None]]:
    return [(each.pool, each.max_tokens) for each in decisions]


def test_what_is_demoted_is_less() -> None:
    """By the pool that it was demoted to; a refusal asks nobody for anything."""
    controller, asks = degrading(Degrade(500), Degrade(64))
    decisions = [controller.arrive(asks("a"), 0.1) for _ in range(5)]
    assert told(decisions[:4]) == [("p", None), ("p", None), ("q", 64), ("q", 64)]
    assert (decisions[4].verdict, decisions[4].max_tokens) == (Verdict.REJECT, None)


@pytest.mark.parametrize(
    ("above", "less"), [(0.0, [64, 64]), (0.5, [None, 64]), (0.99, [None, 64]), (1.0, [None, None])]
)
def test_a_pool_under_load_asks_for_less(above: float, less: list[int | None]) -> None:
    """Its own requests too, from the one on that takes it beyond its bound."""
    controller, asks = degrading(Degrade(64, above), None)
    decisions = [controller.arrive(asks("a"), 0.1) for _ in range(3)]
    assert told(decisions) == [*(("p", each) for each in less), ("q", None)]


def test_nobody_in_shadow_is_asked_for_less() -> None:
    """A tenant or a pool in shadow notices nothing."""
    for spared in (
        Enforcing(Enforcement.SHADOW),
        Enforcing(tenants={"a": Enforcement.SHADOW}),
        Enforcing(pools={"p": Enforcement.OFF}),
    ):
        controller, asks = degrading(Degrade(64, 0.0), None, enforcing=spared)
        assert controller.arrive(asks("a"), 0.1).max_tokens is None
    controller, asks = degrading(Degrade(64, 0.0), None, enforcing=spared)
    controller.reconfigure(replace(asks.config, enforcing=Enforcing()), 0.1)
    assert controller.arrive(asks("a"), 0.2).max_tokens == 64


@pytest.mark.parametrize("verdict", [Verdict.ADMIT, Verdict.DEMOTE])
def test_server_and_caller_are_told(verdict: Verdict) -> None:
    """In words that overwrite the caller's own; the next one is not told the same."""
    codec = Codec(WIRE)
    call = HttpCall("POST", "/", {"x-gpu-max-tokens": "9999"}, b"", 0, False)
    plain = Decision(verdict, Reason.AT_CAPACITY, verdict, pool="q", endpoint="q-0:80")
    for most in (128, None, 64, 128):
        answer = codec.encode(replace(plain, max_tokens=most), call, Api.OPENAI)
        ok = WIRE.check_response.FromString(answer).ok_response
        asked = {each.header.key: (each.header.value, each.append_action) for each in ok.headers}
        told = {each.header.key: each.header.value for each in ok.response_headers_to_add}
        removed = "x-gpu-max-tokens" in ok.headers_to_remove
        if most is None:
            assert removed
            assert "x-gpu-max-tokens" not in asked.keys() | told.keys()
        else:
            assert not removed
            assert asked["x-gpu-max-tokens"] == (str(most), 2)
            assert told["x-gpu-max-tokens"] == str(most)
