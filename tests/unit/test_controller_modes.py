"""The controller in shadow mode and through reloads."""

from __future__ import annotations

from dataclasses import replace

from ext_authz.model import Outcome, Reason, Verdict
from ext_authz.settings import (
    FallbackAction,
    TenantLimits,
)
from tests.support.controlling import HIGH, LOW, TENANTS, chained, in_flight, single, started
from tests.support.world import pool, sample, settings, tenant


def test_shadow_mode_admits_books_and_keeps_the_true_verdict() -> None:
    """Beyond capacity the request runs, is booked where it runs, and the refusal is on record."""
    controller, asks = started(single(1, enforce=False))
    controller.arrive(asks("a"), 0.1)
    decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.REJECT)
    assert decision.reason is Reason.AT_CAPACITY
    assert (decision.endpoint, decision.reservation_id) == ("p-0:80", "r1")
    assert in_flight(controller) == {"p-0:80": 2}


def test_shadow_mode_does_not_move_traffic() -> None:
    """What would be demoted stays in its pool and is recorded as demoted."""
    controller, asks = started(chained(enforce=False))
    for _ in range(2):
        controller.arrive(asks("a"), 0.1)
    decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.DEMOTE)
    assert (decision.pool, decision.reason) == ("p", Reason.AT_CAPACITY)
    assert in_flight(controller) == {"p-0:80": 3, "q-0:80": 0}


def test_shadow_mode_books_where_a_too_large_request_runs() -> None:
    """A refusal that never looked at an endpoint is still booked in the first pool."""
    controller, asks = started(chained(enforce=False), fresh="")
    for address in ("p-0:80", "q-0:80"):
        controller.observe(sample(address, 0.0, kv=(0.0, 1000.0)))
    decision = controller.arrive(asks("a", tokens=5000), 0.1)
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.REJECT)
    assert in_flight(controller) == {"p-0:80": 1, "q-0:80": 0}


def test_shadow_mode_keeps_the_verdict_of_a_limit() -> None:
    """A tenant over its own limit runs in shadow, booked, with the limit's reason."""
    limited = tenant("a", limits=TenantLimits(max_concurrent=1))
    controller, asks = started(settings((pool("p", 4),), (limited,), enforce=False))
    controller.arrive(asks("a"), 0.1)
    decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.REJECT)
    assert decision.reason is Reason.TENANT_CONCURRENCY
    assert in_flight(controller) == {"p-0:80": 2}


def test_telemetry_of_an_unknown_endpoint_is_ignored() -> None:
    """A sample of an endpoint that was removed changes nothing and raises nothing."""
    controller, _ = started(single())
    controller.observe(sample("gone:80", 1.0, running=100.0))
    assert in_flight(controller) == {"p-0:80": 0}


def test_a_pool_without_endpoints_refuses() -> None:
    """No endpoint, no admission, whatever the fallback says."""
    empty = replace(pool("p"), endpoints=())
    for enforce in (True, False):
        config = settings((empty,), TENANTS, fallback=FallbackAction.ADMIT_ALL, enforce=enforce)
        controller, asks = started(config, fresh="")
        decision = controller.arrive(asks("a"), 0.1)
        assert decision.would_be is Verdict.REJECT
        assert decision.reservation_id is None


def test_a_reload_keeps_what_is_in_flight() -> None:
    """Reservations, samples and what was learned outlive a swap of settings."""
    config = single(2)
    controller, asks = started(config)
    controller.observe(sample("p-0:80", 0.1, running=0.0, execution_s=0.2))
    controller.arrive(asks("a"), 0.1)
    controller.reconfigure(single(3), 0.2)
    (_, state) = controller.endpoint_states()[0]
    assert (state.own, state.execution.value_s) == (1, 0.2)
    assert state.spec.max_concurrency == 3
    assert controller.settle(Outcome("r0", 200, 0.1, None), 0.3) is not None
    assert state.own == 0


def test_work_of_a_removed_pool_still_settles() -> None:
    """Releasing hits the endpoint that was charged, also when no configuration names it."""
    controller, asks = started(chained())
    controller.arrive(asks("a"), 0.1)
    controller.reconfigure(settings((pool("q", 2),), TENANTS, (HIGH, LOW)), 0.2)
    released = controller.settle(Outcome("r0", 200, 0.1, None), 0.3)
    assert released is not None
    assert (released.endpoint.own, released.flow.used) == (0, 0)
    assert in_flight(controller) == {"q-0:80": 0}
    assert len(controller.ledger) == 0
