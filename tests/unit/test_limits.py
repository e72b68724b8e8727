"""The knee of one endpoint, told by an engine whose work follows a known curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from ext_authz.admission.limits import PROMPT_TOKEN, SILENT_S, Knee, work_rate
from ext_authz.snapshot import EndpointSample

Curve = Callable[[float], float]
EVERY_S, LIFE_S = 0.1, 0.5


def with_knee(at: float, speed: float = 100.0) -> Curve:
    """Work in proportion up to `at`, then less: half of it at twice the load."""
    return lambda load: speed * load if load <= at else speed * at * at / load


def flat(load: float) -> float:
    return 100.0 * min(load, 8.0)


class Engine:
    """Tells its counters ten times a second. Full up to the limit whenever it is pressed."""

    def __init__(self, curve: Curve, most: int, seed: int = 1, noise: float = 0.03) -> None:
        self.curve, self.most, self.noise = curve, most, noise
        self.knee, self.now = Knee(most), 0.0
        self.carried: list[float] = []
        self._chance = Random(seed)
        self._load = 0.0

    def play(self, seconds: float, pressed: bool = True, load: float | None = None) -> None:
        for _ in range(round(seconds / EVERY_S)):
            self.now += EVERY_S
            limit = self.knee.limit
            wanted = limit if load is None else min(load, limit)
            if pressed and self._load > limit - 1.0:
                self.knee.refused(True, self.now)
            # It takes a moment to fill up and to drain.
            self._load += 0.3 * (wanted - self._load)
            self.carried.append(self._load)
            rate = self.curve(max(self._load, 0.01)) * self._chance.gauss(1.0, self.noise)
            sample = EndpointSample("e", self.now, running=self._load, generation_tokens_per_s=rate)
            self.knee.told(sample, LIFE_S)

    def mean(self, last_s: float) -> float:
        """Load over the last seconds."""
        return fmean(self.carried[-round(last_s / EVERY_S) :])

    def done(self, last_s: float) -> float:
        """Work a second over the last seconds, as a part of the most there could be."""
        carried = self.carried[-round(last_s / EVERY_S) :]
        best = max(self.curve(float(load)) for load in range(1, self.most + 1))
        return fmean(map(self.curve, carried)) / best


@pytest.mark.parametrize("at", [3.0, 8.0, 16.0, 40.0, 150.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_knee_is_found_from_above(at: float, seed: int) -> None:
    engine = Engine(with_knee(at), most=int(4 * at), seed=seed)
    engine.play(60.0)
    assert engine.done(20.0) > 0.93
    assert engine.mean(20.0) < 1.1 * at + 0.5


@pytest.mark.parametrize("at", [8.0, 16.0, 40.0, 150.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cold_endpoint_is_given_more_as_it_shows_what_it_can_carry(at: float, seed: int) -> None:
    """It begins with a quarter of what is configured. Of the first ten seconds, the first of which
    nothing bounded, little is lost, and it is never given much more than did more."""
    engine = Engine(with_knee(at), most=int(6 * at), seed=seed)
    engine.play(1.0)
    assert engine.knee.limit <= 0.25 * engine.most + 1.0
    engine.play(9.0)
    assert engine.done(9.0) > 0.85
    engine.play(2.0)
    assert max(engine.carried[30:]) < 2.0 * at


@pytest.mark.parametrize("every_s", [0.1, 0.5, 1.0])
def test_a_cold_engine_without_a_knee_is_soon_given_all(every_s: float) -> None:
    knee, load, chance = Knee(256), 64.0, Random(5)
    for step in range(round(20.0 / every_s)):
        at_s = step * every_s
        knee.refused(True, at_s)
        load += min(1.0, 6.0 * every_s) * (knee.limit - load)
        rate = 100.0 * load**0.8 * chance.gauss(1.0, 0.03)
        sample = EndpointSample("e", at_s, running=load, generation_tokens_per_s=rate)
        knee.told(sample, LIFE_S)
    assert knee.limit == 256


@pytest.mark.parametrize("every_s", [2.0, 15.0])
def test_whose_counters_come_seldom_is_given_what_is_configured(every_s: float) -> None:
    """It would wait for them each time."""
    knee = Knee(256)
    sample = EndpointSample("e", 0.0, running=4.0, generation_tokens_per_s=100.0)
    for step in range(20):
        knee.told(replace(sample, at_s=step * every_s), LIFE_S)
        assert knee.limit == 256


def test_whose_counters_tell_nothing_is_given_more_as_requests_end() -> None:
    """Counters that stand still lock nobody out."""
    knee = Knee(256)
    sample = EndpointSample("e", 0.0, running=4.0, generation_tokens_per_s=0.0)
    for step in range(300):
        at_s = 0.1 * step
        knee.told(replace(sample, at_s=at_s, running=float(knee.limit)), LIFE_S)
        for _ in range(round(0.1 * knee.limit / LIFE_S)):
            knee.ended(float(knee.limit), 100.0, LIFE_S, LIFE_S, at_s)
        assert knee.limit < 256 or step < 1 or at_s > 2.0
    assert knee.limit == 256


def test_what_others_have_brought_is_carried_already() -> None:
    """After a restart of the gate, or beside another one."""
    knee = Knee(256)
    sample = EndpointSample("e", 0.0, running=100.0, generation_tokens_per_s=100.0)
    for step in range(3):
        knee.told(replace(sample, at_s=0.1 * step), None, foreign=100.0)
    assert 100.0 < knee.limit < 256


def test_few_slots_are_taken_at_their_word() -> None:
    knee = Knee(16)
    sample = EndpointSample("e", 0.0, running=1.0, generation_tokens_per_s=100.0)
    for step in range(3):
        knee.told(replace(sample, at_s=0.1 * step), None)
    assert knee.limit == 16


def test_on_a_plateau_no_more_is_carried_than_is_needed() -> None:
    """As with models of fixed shape: more only queue."""
    engine = Engine(flat, most=64)
    engine.play(180.0)
    assert engine.done(20.0) > 0.95
    assert engine.mean(20.0) < 24.0


def test_without_a_knee_there_is_no_limit() -> None:
    engine = Engine(lambda load: 100.0 * load**0.7, most=64)
    engine.play(20.0, load=4.0)
    engine.play(20.0, load=20.0)
    engine.play(20.0)
    assert engine.knee.slots is None


def test_load_below_the_knee_sets_no_limit_and_takes_none_away() -> None:
    """An hour in which the load wanders below the knee."""
    calm = Engine(with_knee(16.0), most=64)
    for _ in range(60):
        for load in (2.0, 5.0, 9.0, 12.0):
            calm.play(15.0, pressed=False, load=load)
    assert calm.knee.slots is None
    known = Engine(with_knee(16.0), most=64)
    known.play(60.0)
    before = known.knee.slots
    for _ in range(60):
        for load in (2.0, 5.0, 9.0, 12.0):
            known.play(15.0, pressed=False, load=load)
    assert known.knee.slots == before


def test_it_climbs_to_a_higher_knee_only_while_pressed_and_in_time() -> None:
    engine = Engine(with_knee(8.0), most=64)
    engine.play(60.0)
    before = engine.knee.slots
    engine.curve = with_knee(16.0)
    for _ in range(64):
        engine.knee.judged(False)
    engine.play(30.0)
    assert engine.knee.slots is not None
    assert before is not None
    assert engine.knee.slots <= before + 1
    for _ in range(200):
        engine.knee.judged(True)
    engine.play(120.0)
    assert engine.done(15.0) > 0.93


def test_it_goes_no_further_than_it_was_filled() -> None:
    """While the endpoint is refused to some and yet not full, more slots would show nothing."""
    engine = Engine(with_knee(16.0), most=64)
    engine.play(60.0)
    before = engine.knee.limit
    for _ in range(600):
        engine.knee.refused(True, engine.now)
        engine.play(0.1, pressed=False, load=10.0)
    assert engine.knee.limit <= before + 1


def test_it_falls_to_a_lower_knee() -> None:
    engine = Engine(with_knee(32.0), most=64)
    engine.play(60.0)
    engine.curve = with_knee(12.0)
    engine.play(40.0)
    assert engine.done(15.0) > 0.9


@pytest.mark.parametrize("speed", [20.0, 140.0, 500.0])
def test_another_speed_leaves_the_knee(speed: float) -> None:
    """Everything takes longer or shorter: as many at once are right as before."""
    engine = Engine(with_knee(16.0), most=64)
    engine.play(60.0)
    engine.curve = with_knee(16.0, speed)
    engine.play(10.0)
    assert engine.done(8.0) > 0.9


def test_outcomes_teach_where_no_counters_do() -> None:
    curve, knee, chance = with_knee(8.0), Knee(32), Random(3)
    now, load = 0.0, 32.0
    for _ in range(4000):
        load += 0.05 * ((knee.slots or 32) - load)
        now += 0.02
        knee.refused(True, now)
        tokens = chance.uniform(20.0, 200.0)
        seconds = load * tokens / curve(load) * chance.gauss(1.0, 0.1)
        knee.ended(load, tokens, seconds, seconds, now)
    assert knee.slots is not None
    assert 7 <= knee.slots <= 11


def test_counters_are_preferred_to_outcomes_while_they_come() -> None:
    knee = Knee(64)
    sample = EndpointSample("e", 0.0, running=4.0, generation_tokens_per_s=100.0)
    for step in range(50):
        knee.told(replace(sample, at_s=0.1 * step), LIFE_S)
    lessons = knee.throughput.lessons
    assert lessons > 0
    for _ in range(20):
        knee.ended(4.0, 100.0, 1.0, LIFE_S, 5.0)
    assert knee.throughput.lessons == lessons
    for _ in range(20):
        knee.ended(4.0, 100.0, 1.0, LIFE_S, 5.0 + 2.0 * SILENT_S)
    # They count otherwise, so that what counters told is forgotten.
    assert 0 < knee.throughput.lessons < 20


def test_counters_that_are_told_late_teach_all_the_same() -> None:
    """They are not silent because what they tell of was long ago."""
    knee = Knee(64)
    sample = EndpointSample("e", 0.0, running=4.0, generation_tokens_per_s=100.0)
    for step in range(100):
        at_s = 0.1 * step
        knee.told(replace(sample, at_s=at_s), LIFE_S)
        knee.ended(4.0, 100.0, LIFE_S, LIFE_S, at_s + 3.0 * SILENT_S)
    assert knee.throughput.lessons >= 15


def test_what_an_engine_does_not_tell_teaches_nothing() -> None:
    knee = Knee(64)
    full = EndpointSample("e", 0.0, running=4.0, generation_tokens_per_s=100.0)
    for step in range(100):
        knee.told(replace(full, at_s=0.1 * step, running=None), LIFE_S)
        knee.told(replace(full, at_s=0.1 * step, generation_tokens_per_s=None), LIFE_S)
    assert knee.throughput.lessons == 0


def test_before_the_first_has_ended_a_life_is_as_long_as_they_have_run() -> None:
    """So that lessons become fewer: with eight requests each is as long as all before."""
    knee = Knee(64)
    full = EndpointSample("e", 0.0, running=8.0, generation_tokens_per_s=100.0)
    knee.told(replace(full, running=0.0), None)
    for step in range(1, 100):
        knee.told(replace(full, at_s=0.1 * step), None)
    assert 3 <= knee.throughput.lessons <= 8


def test_while_the_load_climbs_nothing_is_learned() -> None:
    knee = Knee(64)
    for step in range(20):
        sample = EndpointSample("e", 0.5 * step, running=2.0 * 1.5**step, requests_per_s=9.0)
        knee.told(sample, 10.0)
    assert knee.throughput.lessons == 0


def test_work_is_tokens_or_else_requests() -> None:
    sample = EndpointSample("e", 0.0, requests_per_s=3.0)
    assert work_rate(sample) == 3.0
    assert work_rate(replace(sample, generation_tokens_per_s=50.0)) == 50.0
    both = replace(sample, generation_tokens_per_s=50.0, prompt_tokens_per_s=100.0)
    assert work_rate(both) == 50.0 + 100.0 * PROMPT_TOKEN
    assert work_rate(replace(both, thermal_factor=1.4)) == pytest.approx(1.4 * 55.0)
    assert work_rate(EndpointSample("e", 0.0)) is None
