"""The ledger: opened once, ended exactly once."""

from __future__ import annotations

from random import Random

from ext_authz.admission.controller import Controller
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.ledger import Ledger, Reservation
from ext_authz.admission.shares import Shares
from ext_authz.model import Outcome, Reason, Verdict
from ext_authz.settings import FallbackAction, TenantLimits
from tests.support.world import Asks, pool, request_type, settings, tenant


def reservation(id_: str, opened_s: float = 0.0, lease_s: float = 10.0) -> Reservation:
    """A reservation of 7 tokens, charged to an endpoint and a flow of its own."""
    endpoint, shares = EndpointState(pool("p").endpoints[0]), Shares(4)
    flow = shares.flow(("a", "t"), 1.0, opened_s)
    endpoint.reserve(7)
    shares.admitted(flow, opened_s)
    return Reservation(id_, "a", "t", "p", endpoint, shares, flow, 7, opened_s, lease_s)


def test_open_and_close() -> None:
    """What is opened is counted by tenant and type until it is closed, which works once."""
    ledger = Ledger()
    first = reservation("r1")
    ledger.open(first)
    ledger.open(reservation("r2"))
    assert (len(ledger), ledger.by_tenant["a"], ledger.by_type["t"]) == (2, 2, 2)
    assert ledger.close("r1") is first
    assert ledger.close("r1") is None
    assert ledger.close("never") is None
    assert (len(ledger), ledger.by_tenant["a"], ledger.by_type["t"]) == (1, 1, 1)


def test_names_without_entries_leave_no_trace() -> None:
    """Counters hold only what is open: they cannot grow with names of the past."""
    ledger = Ledger()
    ledger.open(reservation("r1"))
    ledger.close("r1")
    assert ledger.by_tenant["nobody"] == 0
    assert (dict(ledger.by_tenant), dict(ledger.by_type)) == ({}, {})


def test_releasing_gives_back_to_what_was_charged() -> None:
    """Endpoint and flow get back exactly what they were charged."""
    made = reservation("r1")
    made.release(1.0)
    assert (made.endpoint.own, made.endpoint.own_tokens) == (0, 0)
    assert (made.flow.used, made.shares.used) == (0, 0)


def test_leases_end_one_by_one_in_order() -> None:
    """Only what is due comes out, oldest first, and each once."""
    ledger = Ledger()
    for number in range(3):
        ledger.open(reservation(f"r{number}", opened_s=float(number)))
    assert ledger.expired(9.9) is None
    assert [r.id for r in iter(lambda: ledger.expired(11.0), None)] == ["r0", "r1"]
    assert len(ledger) == 1


def test_a_renewed_lease_runs_from_the_renewal() -> None:
    """A sign of life moves one reservation only, and only while it is open."""
    ledger = Ledger()
    ledger.open(reservation("r0"))
    ledger.open(reservation("r1"))
    assert ledger.renew("r0", 8.0)
    due = ledger.expired(10.0)
    assert due is not None
    assert due.id == "r1"
    assert ledger.expired(17.9) is None
    assert ledger.expired(18.0) is not None
    assert not ledger.renew("r0", 18.0)


def test_an_orphan_goes_with_its_own_lease_under_steady_traffic() -> None:
    """Lease 120 s, limit 2: one request is never released while one a minute comes and goes. The
    orphan is gone at 121 s; later traffic has not refreshed it, and nothing goes below zero."""
    limited = tenant("a", limits=TenantLimits(max_concurrent=2))
    config = settings((pool("p", 8),), (limited,), lease_s=120.0, fallback=FallbackAction.ADMIT_ALL)
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    orphan = controller.arrive(asks("a"), 0.0)
    assert orphan.verdict is Verdict.ADMIT
    for minute in range(1, 11):
        now = 60.0 * minute
        decision = controller.arrive(asks("a"), now)
        assert decision.verdict is Verdict.ADMIT
        assert controller.ledger.by_tenant["a"] == (2 if now < 120.0 else 1)
        if minute == 1:
            assert controller.arrive(asks("a"), now).reason is Reason.TENANT_CONCURRENCY
        outcome = Outcome(decision.reservation_id or "", 200, 1.0, None)
        assert controller.settle(outcome, now + 1.0) is not None
        assert controller.settle(outcome, now + 1.0) is None
        if minute == 2:
            controller.tick(121.0)
            assert controller.ledger.by_tenant["a"] == 0
    assert controller.ledger.by_tenant["a"] == 0
    assert controller.settle(Outcome(orphan.reservation_id or "", 200, 1.0, None), 700.0) is None
    assert controller.ledger.by_tenant["a"] == 0


def test_refused_and_cancelled_requests_hold_nothing() -> None:
    """Neither a denied nor a cancelled request leaves anything in flight."""
    narrow = request_type("default", max_concurrent=1)
    config = settings((pool("p", 8),), (tenant("a"),), (narrow,), fallback=FallbackAction.ADMIT_ALL)
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    admitted = controller.arrive(asks("a"), 0.0)
    assert controller.arrive(asks("a"), 0.0).reason is Reason.TYPE_CONCURRENCY
    assert len(controller.ledger) == 1
    assert controller.cancel(admitted.reservation_id or "", 0.1)
    assert not controller.cancel(admitted.reservation_id or "", 0.1)
    assert (len(controller.ledger), controller.ledger.by_type["default"]) == (0, 0)
