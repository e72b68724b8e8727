"""The simulation itself: clients, what they do when refused, held requests, and its figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import Decision, Reason, RetryHint, Verdict
from ext_authz.settings import AdmissionSettings
from ext_authz.simulation.clients import STEADY, Client, Retrying, Rhythm
from ext_authz.simulation.fairness import jain, max_min, share_error
from ext_authz.simulation.records import PEAK_S, Level
from ext_authz.simulation.servers import Life, Server
from ext_authz.simulation.world import Simulation, Traffic
from ext_authz.snapshot import EndpointSample
from loadtest.simulated import backend, llm

HINT_S = 0.73


class ScriptedGate:
    """Says of each request what `verdict` says; what is held is let in when it is `due_s`."""

    def __init__(self, verdict: str, due_s: float = inf) -> None:
        self.verdict = verdict
        self.due_s = due_s
        self.arrived: list[tuple[float, float]] = []
        self.waiting: list[str] = []
        self.cancelled: list[str] = []
        self.told: Counter[str] = Counter()
        self.clock: list[float] = []

    def arrive(self, life: Life, now: float) -> Decision:
        self.arrived.append((life.wished_s, now))
        if self.verdict == "admit":
            return self._let_in(life.id)
        if self.verdict == "hold":
            self.waiting.append(life.id)
            return Decision(Verdict.HOLD, Reason.AT_CAPACITY, Verdict.HOLD)
        return Decision(
            Verdict.REJECT, Reason.AT_CAPACITY, Verdict.REJECT, retry=RetryHint(HINT_S, 0.0)
        )

    def ended(self, life: Life, *_: object) -> None:
        self.told[life.id] += 1

    def observe(self, page: EndpointSample) -> None:
        self.clock.append(page.at_s)

    def tick(self, now: float) -> None:
        pass

    def cancel(self, id_: str, *_: object) -> None:
        self.waiting.remove(id_)
        self.cancelled.append(id_)

    def deadline(self) -> float:
        return self.due_s if self.waiting else inf

    def dispatched(self, now: float) -> list[tuple[str, Decision]]:
        if now < self.due_s:
            return []
        waiting, self.waiting = self.waiting, []
        return [(id_, self._let_in(id_)) for id_ in waiting]

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:
        pass

    @staticmethod
    def _let_in(id_: str) -> Decision:
        return Decision(
            Verdict.ADMIT, Reason.HEADROOM, Verdict.ADMIT, endpoint="s", reservation_id=id_
        )


def simulated(gate: ScriptedGate, *clients: Client, seed: int = 1) -> Simulation:
    return Simulation(Traffic(clients), {"s": Server("s", "p", backend(llm(), seed))}, gate, seed)


# -- clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retries", "gap_s"), [(Retrying.OBEY, HINT_S), (Retrying.HAMMER, 0.1), (Retrying.TOGETHER, 1)]
)
def test_refused_clients_come_back_as_they_are(retries: Retrying, gap_s: float) -> None:
    """Told 0.73 s: one comes then, one after 0.1 s, one on the next whole second; each until it
    has tried for three seconds."""
    gate = ScriptedGate("reject")
    world = simulated(gate, Client("a", 5.0, retries=retries, gives_up_s=3.0))
    world.run(20.0)
    tries: dict[float, list[float]] = {}
    for wished_s, at_s in gate.arrived:
        tries.setdefault(wished_s, []).append(at_s)
    for wished_s, times in tries.items():
        assert times[0] == wished_s
        assert times[-1] <= wished_s + 3.0
        later = times[1:]
        if retries is Retrying.TOGETHER:
            assert all(at_s == int(at_s) for at_s in later)
        else:
            gaps = [b - a for a, b in zip(times, later, strict=False)]
            assert gaps == pytest.approx([gap_s] * len(gaps))
    expected = {Retrying.OBEY: 5.0, Retrying.HAMMER: 30.0, Retrying.TOGETHER: 3.5}[retries]
    assert world.records.amplification(0, 17) == pytest.approx(expected, rel=0.15)
    assert world.records.wished_rps(0, 20) == pytest.approx(5.0, rel=0.4)


def test_those_who_take_no_for_an_answer_do_not_come_back() -> None:
    world = simulated(ScriptedGate("reject"), Client("a", 50.0))
    world.run(5.0)
    assert world.records.amplification(0, 5) == 1.0
    assert sum(world.records.refused.values()) == sum(world.records.offered.values())


def test_a_rhythm_has_the_rates_that_it_says() -> None:
    """Three times the rate for 2 of 8 s, nothing before second 4 nor after second 52."""
    rhythm = Rhythm(from_s=4.0, until_s=52.0, every_s=8.0, for_s=2.0, times=3.0, rest_times=0.5)
    gate = ScriptedGate("reject")
    simulated(gate, Client("a", 100.0, rhythm=rhythm)).run(60.0)
    high = sum(4 <= at_s < 52 and (at_s - 4) % 8 < 2 for _, at_s in gate.arrived)
    assert high == pytest.approx(300 * 12, rel=0.1)
    assert len(gate.arrived) - high == pytest.approx(50 * 36, rel=0.1)
    assert all(4 <= at_s < 52 for _, at_s in gate.arrived)


def test_a_seed_says_all() -> None:
    """The same seed plays the same, another one otherwise."""
    client = Client("a", 30.0, rhythm=replace(STEADY, until_s=9.0))
    runs = []
    for seed in (1, 1, 2):
        world = simulated(ScriptedGate("admit"), client, seed=seed)
        world.run(10.0)
        runs.append([(life.arrived_s, life.e2e_s) for life in world.records.lives])
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) > 200


# -- holding ---------------------------------------------------------------------------------


def test_held_requests_begin_when_they_are_dispatched() -> None:
    """What the gate holds is asked for at its deadline, and its wait counts as the client's."""
    gate = ScriptedGate("hold", due_s=5.0)
    world = simulated(gate, Client("a", 10.0, rhythm=Rhythm(until_s=4.0)))
    world.run(4.99)
    assert len(world.records.lives) == 0
    world.run(20.0)
    lives = world.records.lives
    assert len(lives) == world.records.held == len(gate.arrived) > 20
    assert all(life.began_s == 5.0 and life.e2e_s > 5.0 - life.arrived_s for life in lives)
    assert gate.told == {life.id: 1 for life in lives}


def test_held_clients_that_leave_are_cancelled() -> None:
    gate = ScriptedGate("hold", due_s=5.0)
    world = simulated(gate, Client("a", 10.0, patience_s=0.5, rhythm=Rhythm(until_s=4.0)))
    world.run(10.0)
    assert world.records.lives == []
    assert len(gate.cancelled) == len(gate.arrived) > 20
    assert gate.waiting == []


def test_a_server_that_is_replaced_loses_what_it_ran() -> None:
    """Requests inside are over, unserved; those that come while nobody answers as well."""
    gate = ScriptedGate("admit")
    world = simulated(gate, Client("a", 20.0))
    world.run(5.0)
    inside = list(world.servers["s"].live.values())
    world.replace("s", backend(llm(), 9, world.now), up=False)
    assert len(inside) > 0
    assert not any(life.ok for life in inside)
    world.run(6.0)
    assert world.servers["s"].running == 0
    world.servers["s"].up = True
    world.run(12.0)
    assert world.records.goodput_rps(8, 12) > 15.0
    assert max(gate.told.values()) == 1


def test_the_gates_clock_may_be_ahead() -> None:
    gate = ScriptedGate("admit")
    world = simulated(gate, Client("a", 20.0))
    world.run(1.0)
    world.skew_s = 100.0
    world.run(2.0)
    assert gate.clock[5] < 1.0
    assert gate.clock[-1] > 101.0


# -- figures ---------------------------------------------------------------------------------


def test_max_min_by_hand() -> None:
    """12 for weights 1, 1 and 2: the first wants 1, the others get 11 by weight."""
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    fair = max_min(12.0, weights, {"a": 1.0, "b": 50.0, "c": 50.0})
    assert fair == pytest.approx({"a": 1.0, "b": 11.0 / 3.0, "c": 22.0 / 3.0})
    assert max_min(100.0, weights, {"a": 1.0, "b": 2.0}) == {"a": 1.0, "b": 2.0}


numbers = st.floats(0.01, 100.0)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), numbers)
def test_max_min_is_what_it_says(flows: list[tuple[float, float]], capacity: float) -> None:
    """All capacity is used or all get what they want, and whoever gets less than it wants gets no
    less for its weight than any other."""
    weights = {str(number): weight for number, (weight, _) in enumerate(flows)}
    wanted = {str(number): want for number, (_, want) in enumerate(flows)}
    got = max_min(capacity, weights, wanted)
    assert sum(got.values()) == pytest.approx(min(capacity, sum(wanted.values())))
    for name, part in got.items():
        assert part <= wanted[name] * (1 + 1e-9)
        if part < wanted[name] * (1 - 1e-9):
            levels = [got[other] / weights[other] for other in got]
            assert part / weights[name] >= max(levels) * (1 - 1e-9)


def test_jain_and_errors_by_hand() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1.0
    assert jain([3.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert share_error({"a": 5.0, "b": 3.0}, {"a": 4.0, "b": 4.0}) == 0.25


@given(st.integers(0, 1000))
def test_a_level_remembers_its_peaks(seed: int) -> None:
    """The most between two times is what a list of all changes says, as near as its steps."""
    rng, level, changes, now = Random(seed), Level(), [(0.0, 0)], 0.0
    for _ in range(30):
        now += rng.expovariate(10.0)
        changes.append((now, rng.randrange(10)))
        level.changes(changes[-1][1] - changes[-2][1], now)
    from_s = rng.uniform(0.0, now)
    to_s = rng.uniform(from_s, now)

    def truth(early_s: float, late_s: float) -> int:
        before = [n for at_s, n in changes if at_s <= early_s][-1:]
        return max(before + [n for at_s, n in changes if early_s <= at_s <= late_s])

    most = level.most(from_s, to_s)
    assert truth(from_s, to_s) <= most <= truth(from_s - PEAK_S, to_s + PEAK_S)


def test_a_stalled_gate_decides_nothing_and_hears_all_later() -> None:
    """For two seconds whoever asks is turned away, and what ends is told when the gate is back."""
    gate = ScriptedGate("admit")
    world = simulated(gate, Client("a", 20.0))
    world.run(5.0)
    inside = {life.id for life in world.servers["s"].live.values()}
    world.stalled_s = 7.0
    world.run(6.9)
    assert world.servers["s"].running == 0
    assert not inside & set(gate.told)
    assert world.records.reasons[Reason.OVERLOADED] > 20
    world.run(7.0)
    assert inside <= set(gate.told)
