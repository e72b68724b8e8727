"""What is done at which load, and that it is forgotten when the speed changes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from ext_authz.estimation.throughput import LOADS, Throughput, Window, class_of


def taught(throughput: Throughput, load: float, rate: float, lessons: int = 10) -> None:
    for _ in range(lessons):
        throughput.learn(load, rate)


def test_classes_are_a_sixteenth_apart_or_one_request() -> None:
    assert LOADS[:3] == (1, 2, 3)
    for lower, upper in pairwise(LOADS):
        assert upper - lower == 1 or 0.03 < upper / lower - 1.0 < 0.1
        assert class_of(upper) == class_of(lower) + 1
    assert class_of(0.3) == 0
    assert class_of(1e9) == len(LOADS) - 1


def test_what_was_seen_is_known_at_its_load() -> None:
    throughput = Throughput()
    taught(throughput, 4.0, 100.0)
    taught(throughput, 8.0, 150.0)
    assert [(seen.load, seen.rate) for seen in throughput.known()] == [(4.0, 100.0), (8.0, 150.0)]


def test_between_two_classes_both_learn() -> None:
    throughput = Throughput()
    taught(throughput, 5.5, 100.0, 40)
    (first, second) = throughput.known()
    assert (first.load, second.load) == (5.0, 6.0)
    assert first.weight == pytest.approx(second.weight)


def test_a_few_lessons_are_not_enough() -> None:
    throughput = Throughput()
    taught(throughput, 4.0, 100.0, 2)
    assert throughput.known() == []


def test_neighbours_with_few_lessons_each_are_taken_together() -> None:
    throughput = Throughput()
    for load in (20.0, 21.0, 21.0, 22.0):
        throughput.learn(load, 100.0)
    (seen,) = throughput.known()
    assert seen.load == pytest.approx(21.0, rel=0.01)
    assert seen.rate == pytest.approx(100.0)
    wide = Throughput()
    for load in (20.0, 30.0, 40.0, 50.0):
        wide.learn(load, 100.0)
    assert wide.known() == []


def test_a_change_of_speed_forgets_and_one_odd_lesson_does_not() -> None:
    throughput = Throughput()
    taught(throughput, 8.0, 100.0, 30)
    throughput.learn(8.0, 1.0)
    taught(throughput, 8.0, 100.0, 3)
    assert throughput.changes == 0
    taught(throughput, 8.0, 20.0, 3)
    assert throughput.changes == 1
    assert all(seen.rate < 30.0 for seen in throughput.known())


def test_noise_is_no_change_and_is_measured() -> None:
    """Lessons that stray by a tenth: their spread is found, and nothing is forgotten."""
    throughput, chance = Throughput(), Random(1)
    for _ in range(2000):
        throughput.learn(chance.choice((8.0, 9.0)), 100.0 * chance.gauss(1.0, 0.1))
    assert throughput.changes <= 2
    assert 0.07 < throughput.variance**0.5 < 0.13
    assert all(seen.rate == pytest.approx(100.0, rel=0.06) for seen in throughput.known())


def test_what_lies_far_back_fades_and_idle_time_winds_nothing_up() -> None:
    throughput = Throughput()
    taught(throughput, 8.0, 100.0, 5)
    taught(throughput, 16.0, 100.0, 2000)
    (left,) = throughput.known()
    assert left.load == 16.0
    # Bounded: a class remembers a few times what makes it known.
    assert left.weight < 20.0


def test_calm_lessons_leave_what_is_known_of_far_more_load() -> None:
    """An hour below the knee; lessons of nearly that load make it older."""
    throughput = Throughput()
    taught(throughput, 16.0, 100.0, 5)
    for _ in range(5000):
        throughput.learn(8.0, 100.0, calm=True)
    assert [seen.load for seen in throughput.known()] == [8.0, 16.0]
    for _ in range(5000):
        throughput.learn(12.0, 100.0, calm=True)
    assert 16.0 not in [seen.load for seen in throughput.known()]


@pytest.mark.parametrize("load", [0.0, 0.9, -1.0, 1e12, float("nan"), float("inf")])
def test_loads_that_teach_nothing(load: float) -> None:
    throughput = Throughput()
    taught(throughput, load, 100.0)
    assert throughput.known() == []


def test_a_window_adds_up() -> None:
    window = Window()
    window.add(0.5, 4.0, 10.0)
    window.add(0.5, 2.0, 20.0)
    assert (window.seconds, window.load_s, window.work) == (1.0, 3.0, 30.0)
    window.clear()
    assert (window.seconds, window.load_s, window.work) == (0.0, 0.0, 0.0)
