"""Entries late, twice, in any order or never: the books are right, and each gets its name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_authz.model import HttpCall
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.settlement import EntryResult
from tests.support.service import KEY, Service

BODY = b'{"model":"m","max_tokens":1,"messages":[]}'


def make_entry(decision_id: str, kind: str = "final", request_id: str = "") -> AccessLogEntry:
    """An entry of a request of half a second."""
    return AccessLogEntry(
        decision_id=decision_id,
        status=200,
        final=kind == "final",
        periodic=kind == "periodic",
        duration_s=0.5,
        upstream="p-0:80",
        client_left=False,
        upstream_reset=False,
        response_bytes=9,
        request_id=request_id,
        sent_after_s=0.01,
    )


class Entries(RuleBasedStateMachine):
    """One gate beside a plain account of which bookings are open until when."""

    def __init__(self) -> None:
        super().__init__()
        self.service = Service(slots=6)
        self.gate = self.service.gate
        self.lease_s = 5.0
        before = self.gate.settings
        admission = replace(before.admission, lease_s=self.lease_s)
        self.gate.reconfigure(replace(before, admission=admission), self.service.clock.now())
        # By decision id: when its lease ends, or how what still comes is to be called.
        self.open: dict[str, float] = {}
        self.ended: dict[str, EntryResult] = {}
        self.requests: dict[str, str] = {}
        self.given_up: set[str] = set()
        self.counts: Counter[EntryResult] = Counter()
        self.asked = 0
        # Ends that were told after the lease.
        self.told_late = 0

    def take(self, entry: AccessLogEntry) -> None:
        self.gate.ended(entry, self.service.clock.now())

    def ends(self, id_: str) -> EntryResult:
        """What a further end of a booking that is not open is."""
        result = self.ended.get(id_, EntryResult.UNKNOWN)
        if id_ in self.ended:
            self.ended[id_] = EntryResult.DOUBLED
        return result

    @rule(early=st.booleans())
    def arrive(self, early: bool) -> None:
        self.asked += 1
        request_id = f"q-{self.asked}"
        if early:
            self.take(make_entry("", request_id=request_id))
            self.counts[EntryResult.UNBOOKED] += 1
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": request_id}
        call = HttpCall("POST", "/v1/chat/completions", headers, BODY, len(BODY), partial=False)
        decision, _ = self.gate.decide(call, self.service.clock.now())
        if decision.reservation_id is not None:
            assert not early
            self.open[decision.reservation_id] = self.service.clock.now() + self.lease_s
            self.requests[request_id] = decision.reservation_id

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), times=st.integers(1, 3))
    def finish(self, data: st.DataObject, times: int) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.requests.values())))
        for _ in range(times):
            if self.open.pop(id_, None) is None:
                result = self.ends(id_)
                self.counts[result] += 1
                self.told_late += result is EntryResult.LATE
            else:
                self.counts[EntryResult.SETTLED] += 1
                self.ended[id_] = EntryResult.DOUBLED
            self.take(make_entry(id_))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def show_life(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.requests.values())))
        if id_ in self.open:
            self.open[id_] = self.service.clock.now() + self.lease_s
            self.counts[EntryResult.RENEWED] += 1
        elif self.ended[id_] is EntryResult.DOUBLED:
            self.counts[EntryResult.REORDERED] += 1
        else:
            self.counts[EntryResult.LATE] += 1
        self.take(make_entry(id_, "periodic"))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        id_ = self.requests[request_id]
        if self.open.pop(id_, None) is None:
            self.counts[self.ends(id_)] += 1
        else:
            self.counts[EntryResult.GIVEN_UP] += 1
            self.ended[id_] = EntryResult.DOUBLED
        self.take(make_entry("", request_id=request_id))

    @rule(kind=st.sampled_from(["final", "periodic", "start"]))
    def hear_of_another_gates(self, kind: str) -> None:
        """Another process's request, or an early sign of one of ours: neither does anything."""
        self.counts[EntryResult.OTHER if kind == "start" else EntryResult.UNKNOWN] += 1
        self.take(make_entry("another-1", kind))

    @rule(step_s=st.floats(0.0, 8.0))
    def wait(self, step_s: float) -> None:
        self.service.clock.at_s += step_s
        now = self.service.clock.now()
        self.gate.controller.tick(now)
        for id_ in [id_ for id_, until_s in self.open.items() if until_s <= now]:
            del self.open[id_]
            self.ended[id_] = EntryResult.LATE

    @invariant()
    def the_books_are_right(self) -> None:
        held = {r.id for r in self.gate.controller.ledger.entries()}
        assert held == set(self.open)
        ((_, endpoint),) = self.gate.controller.endpoint_states()
        assert endpoint.own == len(self.open)
        counted = {r: self.service.metrics.value("access_log_entries", r) for r in EntryResult}
        assert {r: n for r, n in counted.items() if n} == dict(self.counts)
        # Each end is learned from once, whether it is told in time or not.
        assert len(self.gate.lessons) == self.counts[EntryResult.SETTLED] + self.told_late

    def teardown(self) -> None:
        """If nothing more ever comes, nothing is in flight a lease later."""
        self.gate.controller.tick(self.service.clock.now() + self.lease_s)
        ((_, endpoint),) = self.gate.controller.endpoint_states()
        assert (endpoint.own, endpoint.own_tokens, self.service.in_flight) == (0, 0, 0)


Entries.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestEntries = Entries.TestCase
