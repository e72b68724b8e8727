"""What was inside the servers, and which refusals were premature by that."""

from __future__ import annotations

import math
from dataclasses import replace

from loadtest.compare.measures import measured
from loadtest.compare.scenario import Killed
from loadtest.compare.tries import Try
from loadtest.compare.truth import Inside, Life, Lives, Served, premature, waits
from tests.support.compared import SCENARIO, served, try_


def test_inside_is_a_step_function() -> None:
    """Against counting one by one, at, between and around all changes."""
    records = [served(1.0, 4.0), served(2.0, 3.0), served(3.0, 6.0), served(8.0, 8.0)]
    inside = Inside(records)

    def counted(at_s: float) -> int:
        return sum(r.arrived_s <= at_s < r.ended_s for r in records)

    grid = [n / 4 for n in range(40)]
    assert [inside.at(t) for t in grid] == [counted(t) for t in grid]
    for a in grid:
        for b in (t for t in grid if t >= a):
            assert inside.most(a, b) == max(counted(t) for t in grid if a <= t <= b)
    assert inside.below_from(2.5, 2) == 4.0
    assert inside.below_from(5.0, 2) == 5.0
    assert inside.below_from(2.0, 1) == 6.0
    assert Inside(records[:1]).below_from(1.0, 0.0) is None


def test_a_life_is_that_of_the_nearest_prompts() -> None:
    """Long ones run longer and take more; what was left tells nothing."""
    records = [served(0.0, 1.0, prompt_tokens=100, work_s=0.5)] * 20
    records += [served(0.0, 5.0, prompt_tokens=2000, work_s=4.0)] * 20
    records += [served(0.0, 99.0, status=499)]
    lives = Lives(records)
    assert [lives.of(tokens).life_s for tokens in (50, 110, 1900, 9000)] == [1.0, 1.0, 5.0, 5.0]
    assert [lives.of(tokens).work_s for tokens in (110, 1900)] == [0.5, 4.0]
    assert Lives([]).of(10) == Life()


def judged(tries: list[Try], records: list[Served], limit: float) -> float | None:
    return premature(SCENARIO, tries, records, limit)


def test_a_refusal_is_premature_if_there_was_room_for_all_its_life() -> None:
    """Two inside until 8 s, and lives of 2 s: with a limit of 3 it would have found room, with one
    of 2 not; nor if a third one comes while it would have run."""
    records = [served(6.0, 8.0, "b"), served(6.0, 8.0, "b")]
    refused = [try_(6.5, 0.0, code=429), try_(6.5, 0.0, code=200, tenant="b")]
    assert judged(refused, records, 3.0) == 1.0
    assert judged(refused, records, 2.0) == 0.0
    assert judged(refused, [*records, served(8.0, 9.0, "b")], 3.0) == 1.0
    assert judged(refused, [*records, served(7.9, 9.9, "b")], 3.0) == 0.0
    assert judged([try_(6.5)], records, 3.0) is None


def test_room_is_work_and_not_a_number_of_requests() -> None:
    """Requests of 1 s and 9 s of the device are asked for as often, so that a limit of 3 is 15 s of
    it: two long ones inside leave no room, three short ones do; whoever was let in."""
    short, long = {"work_s": 1.0, "prompt_tokens": 10}, {"work_s": 9.0, "prompt_tokens": 900}
    known = [served(0.0, 1.0, **short), served(0.0, 1.0, **long)] * 20
    asked = [try_(0.0, prompt_tokens=10), try_(0.0, prompt_tokens=900)] * 20
    refused = try_(6.5, 0.0, code=429, prompt_tokens=10, tries=2)
    both = [served(6.0, 9.0, "b", **long)] * 2
    assert judged([*asked, refused], [*known, *both], 3.0) == 0.0
    assert judged([*asked, refused], [*known, *both[:1]], 3.0) == 1.0
    assert judged([*asked, refused], [*known, *[served(6.0, 9.0, "b", **short)] * 3], 3.0) == 1.0


def test_a_refusal_beyond_a_share_is_not_premature() -> None:
    """Weights 3 : 1 of a limit of 4: with three inside `a` has its share while `b` wants its own;
    what `b` does not use is to be had, and what it was refused long ago is no matter."""
    records = [served(6.0, 9.0)] * 3
    refused, b_refused = (try_(6.5, 0.0, code=429, tenant=name) for name in "ab")
    # Of `a` and `b`: the one is premature, the other not.
    assert judged([refused, b_refused], records, 4.0) == 0.5
    assert judged([refused, try_(6.0, tenant="b")], records, 4.0) == 1.0
    assert judged([refused, try_(6.0, tenant="b")], [*records, served(6.0, 9.0, "b")], 4.0) == 0.0
    assert judged([try_(5.0, 0.0, code=429, tenant="b"), refused], records, 4.0) == 1.0
    slow = replace(refused, at_s=5.0, took_s=1.5)
    assert judged([slow], records, 4.0) == 1.0


def test_refusals_are_judged_within_the_window_and_not_where_servers_died() -> None:
    """Half of the two that count; nothing is said of a run whose room went away."""
    records = [served(6.0, 8.0)] * 3
    tries = [try_(at_s, 0.0, code=429) for at_s in (4.0, 6.5, 9.0, 15.5)]
    assert measured(SCENARIO, tries, records, limit=3.0).premature == 0.5
    killed = replace(SCENARIO, events=(Killed(7.0, 0),))
    assert measured(killed, tries, records, limit=3.0).premature is None
    assert measured(SCENARIO, tries, records).premature is None


def test_hints_against_what_came_true() -> None:
    """What was told, and when there really was room; None where there never was."""
    records = [served(6.0, 8.0), served(6.0, math.inf)]
    tries = [
        try_(6.5, 0.5, code=429, told_s=2.0),
        try_(9.0, 0.5, code=429, told_s=3.0),
        try_(6.5, code=429),
        try_(6.5, told_s=1.0),
    ]
    assert waits(SCENARIO, tries, records, 2.0) == [(2.0, 1.0), (3.0, 0.0)]
    assert waits(SCENARIO, tries[:1], records, 1.0)[0][0] == 2.0
