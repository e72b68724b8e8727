"""The roster of a pool says what a walk over all its endpoints would say."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ext_authz.admission.endpoints import EndpointState, seat
from ext_authz.admission.roster import FEW, REFRESH_S, SMALL
from ext_authz.admission.selection import choose, choose_blind
from ext_authz.admission.view import PoolState
from ext_authz.model import Reason
from ext_authz.snapshot import EndpointSample, Staleness
from tests.support.world import pool

FADING = Staleness(1.0, 0.5, 2.0, floor_ratio=0.5)
INDEX = st.integers(0, 40)
LOAD = st.sampled_from([0.0, 1.0, 2.5, 3.0, 9.0])
KV = st.sampled_from([None, 0.0, 0.4, 0.84, 0.9])
CAPACITY = st.sampled_from([None, 500.0, 10_000.0])


def kv_ratio_with(endpoint: EndpointState, tokens: int, since_s: float) -> float | None:
    """How full its cache would be with `tokens` more; a gauge from before `since_s` says
    nothing."""
    sample = endpoint.sample
    if sample is None:
        return None
    used = sample.kv_usage_ratio if endpoint.kv_at_s >= since_s else None
    if not sample.kv_capacity_tokens:
        return used
    own = endpoint.own_tokens * (endpoint.traffic.running_ratio if endpoint.untold > 0.0 else 1.0)
    return max(used or 0.0, own / sample.kv_capacity_tokens) + tokens / sample.kv_capacity_tokens


class Oracle:
    """What a walk finds."""

    def __init__(self, state: PoolState, tokens: int, now: float) -> None:
        staleness, guard = state.spec.staleness, state.spec.kv_guard_ratio
        self.believed = {e: e.believed(staleness, now) for e in state.endpoints}
        known = {e: load for e, load in self.believed.items() if load is not None}
        for endpoint in state.endpoints:
            if endpoint not in known and endpoint.serves(staleness, now):
                known[endpoint] = max(0.0, endpoint.own - endpoint.untold) + endpoint.foreign
        self.slots = sum(e.limit for e in known)
        # Others fill an endpoint at most.
        self.load = sum(
            max(load - endpoint.foreign, min(load, endpoint.limit))
            for endpoint, load in known.items()
        )
        self.untold = sum(e.untold for e in known)
        self.usable: dict[EndpointState, float] = {}
        for endpoint, load in known.items():
            kv = kv_ratio_with(endpoint, tokens, now - staleness.lifetime_s)
            free = kv is None or kv <= guard or endpoint.load < 0.5
            if endpoint.fits(tokens) and free:
                beside = endpoint.peers_load(staleness, now)
                self.usable[endpoint] = (load + beside) / endpoint.limit
        if all(load is None for load in self.believed.values()):
            # That one serves says nothing of the pool while no page is had of any.
            self.usable.clear()
        self.fits = any(e.fits(tokens) for e in known)
        self.fits_away = any(e.fits(tokens) for e in state.endpoints)

    def reason(self) -> Reason:
        """Why there is no endpoint."""
        if not any(load is not None for load in self.believed.values()):
            return Reason.TELEMETRY_LOST
        if self.fits:
            return Reason.KV_MEMORY
        return Reason.NO_ENDPOINT if self.fits_away else Reason.TOO_LARGE


class RosterMachine(RuleBasedStateMachine):
    """Endpoints of one pool, and strangers on their devices."""

    @initialize(
        many=st.sampled_from([1, 2, 3, FEW + 1, SMALL + 4]),
        staleness=st.sampled_from([Staleness(1.0), FADING]),
        stranger=st.booleans(),
    )
    def begin(self, many: int, staleness: Staleness, stranger: bool) -> None:
        """A pool of some size; a server of another pool may share the first card."""
        self.now = 100.0
        spec = replace(pool("p", 4, many), staleness=staleness)
        sizes = [replace(e, max_concurrency=2 + 2 * (i % 3)) for i, e in enumerate(spec.endpoints)]
        spec = replace(spec, endpoints=tuple(sizes))
        self.states = [EndpointState(endpoint) for endpoint in spec.endpoints]
        self.state = PoolState(spec, tuple(self.states))
        other = replace(pool("q", 4).endpoints[0], device=spec.endpoints[0].device)
        self.all = [*self.states, EndpointState(other)]
        if stranger:
            seat(self.all)
        # What time alone changes is brought up to date at this pace in large pools.
        self.is_exact = many <= SMALL

    def _one(self, index: int) -> EndpointState:
        return self.all[index % len(self.all)]

    def _catch_up(self) -> None:
        if not self.is_exact:
            # As if nobody had asked for some time.
            self.state.roster.catch_up(self.now)
            self.now += 1.01 * REFRESH_S

    @rule(index=INDEX, tokens=st.integers(0, 400))
    def reserve(self, index: int, tokens: int) -> None:
        """A request is let in."""
        self._one(index).reserve(tokens)

    @rule(index=INDEX)
    def release(self, index: int) -> None:
        """One ends."""
        endpoint = self._one(index)
        if endpoint.own:
            endpoint.release(endpoint.own_tokens // endpoint.own)

    @rule(index=INDEX, late_s=st.sampled_from([None, 0.0, 0.5, 3.0]))
    def serve(self, index: int, late_s: float | None) -> None:
        """One is served to its end, and the log tells at once or late."""
        endpoint = self._one(index)
        if endpoint.own:
            endpoint.release(endpoint.own_tokens // endpoint.own)
            ended_s = None if late_s is None else self.now - late_s
            endpoint.finished(0.3, self.now, ended_s)

    @rule(index=INDEX, ratio=st.sampled_from([0.0, 0.3, 1.0]))
    def untold(self, index: int, ratio: float) -> None:
        """Some are over though nobody has told."""
        self._one(index).set_untold(ratio * self._one(index).own)

    @rule(index=INDEX, load=LOAD, kv=KV, capacity=CAPACITY, lost=st.booleans())
    def observe(
        self, index: int, load: float, kv: float | None, capacity: float | None, lost: bool
    ) -> None:
        """A sample comes."""
        endpoint = self._one(index)
        told = EndpointSample(endpoint.spec.address, self.now, load, 0.0, kv, capacity)
        endpoint.observe(replace(told, device_lost=lost))

    @rule(index=INDEX, limit=st.integers(1, 9))
    def limit(self, index: int, limit: int) -> None:
        """Its configuration is another."""
        endpoint = self._one(index)
        endpoint.configure(replace(endpoint.spec, max_concurrency=limit))

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.5, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def let_it_refresh(self) -> None:
        """As much time passes as a large pool needs."""
        self.now += 1.01 * REFRESH_S

    @invariant()
    def says_what_a_walk_says(self) -> None:
        """Sums, the least pressed, and the reason if there is none."""
        if not hasattr(self, "state"):
            return
        roster = self.state.roster
        self._catch_up()
        for tokens in (10, 300, 3000):
            seen = Oracle(self.state, tokens, self.now)
            choice = choose(self.state, tokens, self.now)
            assert (roster.slots, roster.load, roster.untold) == pytest.approx(
                (seen.slots, seen.load, seen.untold), abs=1e-9
            )
            assert roster.own == sum(e.own for e in self.states)
            assert roster.most == sum(e.limit for e in self.states)
            if not seen.usable:
                assert (choice.endpoint, choice.reason) == (None, seen.reason())
                continue
            assert choice.endpoint is not None
            assert choice.load == pytest.approx(seen.load + seen.untold, abs=1e-9)
            least = min(seen.usable.values())
            assert seen.usable[choice.endpoint] == pytest.approx(least, abs=1e-9)

    @invariant()
    def blind_is_by_our_own_books(self) -> None:
        """Without telemetry one that serves, or the endpoint with the least of our own work."""
        if not hasattr(self, "state"):
            return
        self._catch_up()
        choice = choose_blind(self.state, self.now)
        assert choice.endpoint is not None
        staleness = self.state.spec.staleness
        if any(e.believed(staleness, self.now) is not None for e in self.states):
            return
        serving = [e for e in self.states if e.serves(staleness, self.now)]
        if serving:
            assert choice.endpoint in serving
        else:
            least = min(e.own / e.limit for e in self.states)
            assert choice.endpoint.own / choice.endpoint.limit == least


RosterMachine.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestRoster = RosterMachine.TestCase


def test_equals_come_in_the_order_of_the_file() -> None:
    """And what was taken out to look at is there the next time."""
    spec = pool("p", 4, 12)
    states = tuple(EndpointState(endpoint) for endpoint in spec.endpoints)
    state = PoolState(spec, states)
    for endpoint in states:
        endpoint.observe(EndpointSample(endpoint.spec.address, 1.0, 0.0))
    roster = state.roster
    roster.catch_up(1.0)
    for _ in range(3):
        assert roster.least(20) == list(states)
        assert roster.least(3) == list(states[:3])
    assert roster.least(3, below=-inf) == []


def test_the_heap_does_not_grow() -> None:
    """Each change leaves a line that is out of date; they are cleared away."""
    spec = pool("p", 4, 20)
    states = tuple(EndpointState(endpoint) for endpoint in spec.endpoints)
    state = PoolState(spec, states)
    for endpoint in states:
        endpoint.observe(EndpointSample(endpoint.spec.address, 1.0, 0.0))
    for number in range(5000):
        states[number % 20].reserve(1)
        choose(state, 1, 1.0)
        states[number % 20].release(1)
        choose(state, 1, 1.0)
    assert len(state.roster._heap) < 250
