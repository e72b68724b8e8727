"""Keys that do not listen: refused unread beyond their share, and never below it."""

from __future__ import annotations

from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.admission.hammering import (
    HAMMERING,
    MOST_READ_ALL_S,
    READ_EVERY,
    WITHIN_S,
    Hammering,
    Record,
)
from ext_authz.admission.shares import Shares
from ext_authz.admission.view import Ask, Caller
from ext_authz.model import Outcome, Reason, RetryHint, Verdict
from ext_authz.overload import Demotion, Enforcement, Enforcing, HoldRules
from ext_authz.settings import AdmissionSettings
from tests.support.world import ask_of, pool, sample, settings, tenant

LOUD, CALM = Caller("a", b"loud"), Caller("a", b"calm")


class Rig:
    """A controller with some pools; requests go the gate's way."""

    def __init__(self, config: AdmissionSettings) -> None:
        self.controller = Controller(config, Random(1), 0.0)
        self.config = config
        self.now = 0.0
        self.asked = 0
        self.read = 0
        self.hear()

    def hear(self) -> None:
        """News of all endpoints: what is ours runs there."""
        for _, endpoint in self.controller.endpoint_states():
            self.controller.observe(
                sample(endpoint.spec.address, self.now, float(endpoint.own), 0.4)
            )

    def send(self, caller: Caller = LOUD, to: str | None = None) -> Reason:
        """One request, settled never; why it was answered as it was."""
        name = caller.tenant or ""
        early = self.controller.refuse_early(self.config.tenants[name], caller, self.now)
        if early is not None:
            return early.reason
        self.read += 1
        return self.controller.arrive(self.ask(caller, to), self.now).reason

    def ask(self, caller: Caller, to: str | None) -> Ask:
        self.asked += 1
        made = ask_of(self.config, caller.tenant or "", f"r{self.asked}")
        made.caller = caller  # type: ignore[misc]  # a test's own
        if to is not None:
            made.pools = (self.config.pools[to],)  # type: ignore[misc]  # a test's own
        return made

    def hammer(self, seconds: float = 6.0) -> None:
        """Fifty a second for a while."""
        for step in range(int(50 * seconds)):
            self.now += 0.02
            if step % 25 == 0:
                self.hear()
            self.send()

    def settle(self, number: int) -> None:
        """One of the requests has ended."""
        self.controller.settle(Outcome(f"r{number}", 200, 0.4, None), self.now)


def rig(**changes: object) -> Rig:
    return Rig(settings((pool("p", 4), pool("q", 4)), (tenant("a"), tenant("b")), **changes))


def test_a_hundred_offences_within_ten_seconds_hammer() -> None:
    """At twelve and a half a second, of which those of the first second are a burst; when it ends
    it is forgotten within twenty seconds."""
    record = Record()
    for number in range(int(HAMMERING + 1.2 * 12.5)):
        now = number / 12.5
        record.refused(RetryHint(1.0, 0.0), 0.0, now)
        assert record.hammers(now) == (now > 8.85 + 0.08 * 1), now
    assert record.hammers(now + 1.0)
    assert not record.hammers(now + 2.0 * WITHIN_S)


@pytest.mark.parametrize(
    ("per_s", "pace_per_s", "told_s"), [(50.0, 60.0, 1.0), (9.0, 0.0, 1.0), (50.0, 0.0, 0.01)]
)
def test_who_obeys_or_stays_within_its_share_commits_none(
    per_s: float, pace_per_s: float, told_s: float
) -> None:
    """Within the pace of its share, below ten a second, or not before the time it was told."""
    record = Record()
    for number in range(1000):
        record.refused(RetryHint(told_s, 0.0), pace_per_s, number / per_s)
        assert not record.hammers(number / per_s)


def test_a_burst_is_no_offence() -> None:
    """A thousand requests of one key in half a second cannot have been told anything before."""
    record = Record()
    for number in range(1000):
        record.refused(RetryHint(5.0, 0.0), 1.0, number / 2000.0)
    assert not record.hammers(0.5)


def test_the_excess_is_refused_unread() -> None:
    """With all slots taken, nearly nothing of a key that hammers is read, and it is told when to
    come back; another key of the same tenant is read."""
    gate = rig()
    for _ in range(4):
        gate.send()
    gate.hammer()
    gate.read = 0
    reasons = [gate.send() for _ in range(1600)]
    assert reasons.count(Reason.HAMMERING) > 1400
    assert gate.read == pytest.approx(1600 / READ_EVERY, rel=0.35)
    early = gate.controller.refuse_early(gate.config.tenants["a"], LOUD, gate.now)
    assert early is not None
    assert (early.verdict, early.tenant, early.limit) == (Verdict.REJECT, "a", None)
    assert early.retry is not None
    assert early.retry.after_s > 0.0
    assert gate.send(CALM) is Reason.AT_CAPACITY


def test_its_share_is_served() -> None:
    """A slot that comes free is given to the first that comes, however loud its key is."""
    gate = rig()
    for _ in range(4):
        gate.send()
    gate.hammer()
    for number in (1, 2, 3):
        gate.settle(number)
        assert gate.send() in {Reason.HEADROOM, Reason.IDLE_ENDPOINT}


def test_who_could_wait_at_the_gate_is_read() -> None:
    """While fewer of its flow wait than when it was last refused, one of a key that hammers waits
    as any other would; the rest is refused unread."""
    gate = rig(hold=HoldRules(limit_s=0.5))
    for _ in range(8):
        gate.send()
    gate.hammer()
    waiting = len(gate.controller.holding)
    assert waiting > 0
    gate.now += 0.6
    gate.hear()
    gate.controller.dispatched(gate.now)
    assert len(gate.controller.holding) == 0
    reasons = [gate.send() for _ in range(100)]
    assert len(gate.controller.holding) >= waiting
    assert reasons.count(Reason.HAMMERING) > 80


def test_what_is_refused_unread_is_demand() -> None:
    """It counts for the pool and keeps the tenant among those that share."""
    gate = rig()
    for _ in range(4):
        gate.send()
    gate.hammer()
    pool_state = gate.controller.pools.by_name["p"]
    before = pool_state.measures.standing(gate.now, 60.0)
    while gate.send() is not Reason.HAMMERING:
        pass
    after = pool_state.measures.standing(gate.now, 60.0)
    assert after != before
    flow = next(flow for flow in pool_state.shares.flows() if flow.key[0] == "a")
    assert flow.refused_s == gate.now


def test_a_key_that_asks_for_something_else_too_is_read() -> None:
    """It hammers one pool and has room in another: once that is seen, for a second all is read."""
    gate = rig()
    for _ in range(4):
        gate.send()
    gate.hammer()
    unread = 0
    while gate.send(to="q") is Reason.HAMMERING:
        unread += 1
    assert unread < 8 * READ_EVERY
    assert gate.send(to="q") is Reason.HEADROOM


def test_a_key_that_asks_for_two_models_is_read_in_the_end() -> None:
    """Twenty-five a second for a pool that is full, and five for one that is idle: of the latter
    some are refused unread at first, and few after a minute."""
    gate = rig()
    for _ in range(4):
        gate.send()
    unread = [0, 0]
    for step in range(25 * 120):
        gate.now += 0.04
        if step % 12 == 0:
            gate.hear()
        gate.send()
        if step % 5 == 0:
            unread[step >= 25 * 60] += gate.send(to="q") is Reason.HAMMERING
            gate.settle(gate.asked)
    assert unread[0] < 100
    assert unread[1] < 0.1 * 5 * 60


@pytest.mark.parametrize("allowed", [True, False])
def test_a_pool_further_down_that_has_room_takes_what_hammers(allowed: bool) -> None:
    """A slot that comes free there is taken by the next that comes; unless it may not go there."""
    demotion = Demotion.ALLOWED if allowed else Demotion.FORBIDDEN
    gate = Rig(
        settings(
            (pool("p", 4, demote_to="q"), pool("q", 4)), (tenant("a", 1.0, demotion=demotion),)
        )
    )
    for _ in range(8):
        gate.send()
    gate.hammer()
    assert Reason.HAMMERING in {gate.send() for _ in range(50)}
    if not allowed:
        gate.read = 0
        assert [gate.send() for _ in range(160)].count(Reason.HAMMERING) > 130
        return
    for number in (5, 6, 7):
        gate.settle(number)
        assert gate.send() is Reason.AT_CAPACITY
    assert gate.controller.pools.by_name["q"].shares.used == 4


def test_it_ends_with_the_hammering() -> None:
    """Twenty seconds of quiet, and the next request is read, though nothing has come free."""
    gate = rig()
    for _ in range(4):
        gate.send()
    gate.hammer()
    gate.now += 2.0 * WITHIN_S
    gate.hear()
    gate.read = 0
    for _ in range(20):
        assert gate.send() is not Reason.HAMMERING
    assert gate.read == 20


def test_shadow_mode_reads_everything() -> None:
    """Nothing is refused there, so all has to be priced."""
    gate = rig(enforcing=Enforcing(Enforcement.SHADOW))
    gate.hammer(10.0)
    assert gate.read == gate.asked == 500


def test_a_reload_forgets_no_offence() -> None:
    """The same settings again: the key still hammers. Without its pool nothing is known of it."""
    gate = rig()
    for _ in range(4):
        gate.send()
    gate.hammer()
    gate.controller.reconfigure(gate.config, gate.now)
    assert Reason.HAMMERING in {gate.send() for _ in range(50)}
    only_q = settings((pool("q", 4),), (tenant("a"), tenant("b")))
    gate.controller.reconfigure(only_q, gate.now)
    assert gate.controller.refuse_early(only_q.tenants["a"], LOUD, gate.now) is None


def test_an_obeying_tenant_is_told_the_same_beside_a_neighbour_that_hammers() -> None:
    """Both have their share and want more; how often the neighbour knocks makes no difference."""
    told = []
    for knocks in (1, 20):
        gate = rig()
        for name in ("a", "b", "a", "b"):
            gate.send(Caller(name))
        times = []
        for step in range(600):
            gate.now += 0.02
            if step % 25 == 0:
                gate.hear()
                for _ in range(knocks):
                    gate.send(Caller("b", b"loud"))
            if step % 50 == 0:
                decision = gate.controller.arrive(gate.ask(Caller("a", b"calm"), None), gate.now)
                assert decision.retry is not None
                times.append(decision.retry.after_s - decision.retry.jitter_s)
        told.append(times)
    assert told[0] == pytest.approx(told[1])


def test_a_key_whose_guesses_fail_is_not_read_for_good() -> None:
    """After each wrong guess all are read for longer, up to a bound."""
    shares = Shares(4)
    guessed, other = (shares.flow((name, "t"), 1.0, 0.0) for name in "ab")
    hammering, record, lasted = Hammering(Random(1)), Record(), list[float]()
    record.flow = guessed
    for now in (1.0, 1e4, 2e4, 3e4, 4e4):
        hammering.sampled = ("a", b"key"), record
        for who in "ba":  # what of another key waited at the gate says nothing of the guess
            assert record.read_all_until_s < now
            hammering.let_in(who, Caller(who, b"key"), other, now)
        lasted.append(record.read_all_until_s - now)
    assert lasted == [1.0, 16.0, 256.0, MOST_READ_ALL_S, MOST_READ_ALL_S]
