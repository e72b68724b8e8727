"""When requests really ended, and what of an entry reaches those who learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.ledger import Reservation
from ext_authz.model import HttpCall, Outcome
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.settlement import ended_at_s
from tests.support.service import KEY, Service

ENTRY = AccessLogEntry(
    decision_id="r-1",
    status=200,
    final=True,
    periodic=False,
    duration_s=2.0,
    upstream="p-0:80",
    client_left=False,
    upstream_reset=False,
    response_bytes=77,
    sent_after_s=0.5,
)


@pytest.mark.parametrize(
    ("duration_s", "sent_after_s", "now", "expected"),
    [
        # Booked at 100 after half a second of upload: 1.5 s later it was over.
        (2.0, 0.5, 110.0, 101.5),
        # It never reached a server.
        (2.0, None, 110.0, 102.0),
        # Nothing ended after it was told, nor before it was booked.
        (2.0, 0.5, 101.0, 101.0),
        (2.0, 9.0, 110.0, 100.0),
        (0.0, 0.5, 110.0, None),
    ],
)
def test_when_it_ended(
    duration_s: float, sent_after_s: float | None, now: float, expected: float | None
) -> None:
    """From the booking and the entry's own times."""
    entry = replace(ENTRY, duration_s=duration_s, sent_after_s=sent_after_s)
    assert ended_at_s(entry, 100.0, now) == expected


@given(
    upload_s=st.floats(0.0, 30.0),
    answer_s=st.floats(0.0, 0.5),
    serve_s=st.floats(0.001, 600.0),
    lag_s=st.floats(0.0, 30.0),
)
def test_the_end_is_off_by_the_answer_at_most(
    upload_s: float, answer_s: float, serve_s: float, lag_s: float
) -> None:
    """Whatever the upload before the Check took and however late the entry comes: what is not
    known is how long our answer took to become a byte at the server."""
    start_s = 1000.0
    booked_s = start_s + upload_s
    sent_s = booked_s + answer_s
    end_s = sent_s + serve_s
    entry = replace(ENTRY, duration_s=end_s - start_s, sent_after_s=sent_s - start_s)
    ended_s = ended_at_s(entry, booked_s, end_s + lag_s)
    assert ended_s is not None
    assert end_s - answer_s - 1e-6 <= ended_s <= end_s + 1e-6


def settled(service: Service, entry: AccessLogEntry, after_s: float) -> Outcome | None:
    """What is learned of a request that is booked now and of which `entry` comes later."""
    headers = {"authorization": f"Bearer {KEY}"}
    call = HttpCall("POST", "/v1/chat/completions", headers, b"{}", 2, partial=False)
    decision, _ = service.gate.decide(call, service.clock.now())
    learned: list[Outcome] = []

    def learn(charged: Reservation, outcome: Outcome, now: float) -> None:
        assert (charged.id, now) == (decision.reservation_id, service.clock.now())
        learned.append(outcome)

    service.gate.on_lesson = learn
    service.clock.at_s += after_s
    service.gate.controller.tick(service.clock.now())
    service.gate.ended(replace(entry, decision_id=decision.reservation_id), service.clock.now())
    service.gate.learn(10, service.clock.now())
    return learned[0] if learned else None


def test_everything_that_an_entry_tells_is_passed_on() -> None:
    """Status, times, flags and size, as they were."""
    entry = replace(ENTRY, timed_out=True, client_left=True, upstream_reset=True, grpc_status=4)
    expected = Outcome(
        reservation_id="r-1",
        status=200,
        duration_s=2.0,
        upstream="p-0:80",
        client_left=True,
        upstream_reset=True,
        timed_out=True,
        grpc_status=4,
        ended_s=101.5,
        response_bytes=77,
    )
    assert settled(Service(), entry, 3.0) == expected


def test_the_lag_is_measured() -> None:
    """From the true end, not from the booking: told 3 s after it was booked, ended after 1.5."""
    service = Service()
    assert service.gate.report_lag.mean_s is None
    assert settled(service, ENTRY, 3.0) is not None
    assert service.gate.report_lag.mean_s == pytest.approx(1.5)
    # Nothing can be said of an entry without times.
    assert settled(service, replace(ENTRY, duration_s=0.0), 9.0) is not None
    assert service.gate.report_lag.mean_s == pytest.approx(1.5)


def test_what_did_not_settle_teaches_nothing() -> None:
    """Periodic and unknown entries are no lessons."""
    assert settled(Service(), replace(ENTRY, final=False, periodic=True), 1.0) is None
    service = Service()
    service.gate.ended(replace(ENTRY, decision_id="another-1"), service.clock.now())
    assert len(service.gate.lessons) == 0


def test_an_end_that_is_told_after_the_lease_still_teaches() -> None:
    """Its times are its own, however late they come; it changes nothing and is told once. Without
    times there is nothing to learn."""
    service = Service()
    lease_s = service.gate.settings.admission.lease_s
    for entry, learned in ((ENTRY, True), (replace(ENTRY, duration_s=0.0), False)):
        outcome = settled(service, entry, lease_s + 1.0)
        assert (outcome is not None) is learned
        if outcome is not None:
            assert (outcome.duration_s, service.in_flight) == (2.0, 0)
            late = replace(ENTRY, decision_id=outcome.reservation_id)
            service.gate.ended(late, service.clock.now())
            assert len(service.gate.lessons) == 0
    assert service.gate.report_lag.mean_s is None
