"""What waits is bounded, and a fair sample of what came."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.sampling import Turns, Waiting


@given(st.lists(st.one_of(st.none(), st.integers(1, 5)), max_size=60))
def test_nothing_is_lost_uncounted(events: list[int | None]) -> None:
    """Whatever is offered (None) and taken (a number): waiting + taken + skipped is all there
    was, at most the capacity waits, nothing comes out twice."""
    waiting: Waiting[int] = Waiting(4, Random(1))
    taken: list[int] = []
    offered = 0
    for most in events:
        if most is None:
            waiting.offer(offered)
            offered += 1
        else:
            taken += waiting.take(most)
        assert len(waiting) <= 4
        assert len(waiting) + len(taken) + waiting.skipped == offered
    taken += waiting.take(9)
    assert len(set(taken)) == len(taken) == offered - waiting.skipped


def test_in_order_while_there_is_room() -> None:
    """The oldest comes out first."""
    waiting: Waiting[int] = Waiting(4, Random(1))
    for item in range(4):
        waiting.offer(item)
    assert (waiting.take(3), waiting.take(3), waiting.skipped) == ([0, 1, 2], [3], 0)


def test_too_many_are_sampled_evenly() -> None:
    """Of forty offered each is among the ten kept a quarter of the times: over 4000 runs none is
    off by more than five standard deviations (28 each)."""
    rng = Random(2)
    kept: Counter[int] = Counter()
    for _ in range(4000):
        waiting: Waiting[int] = Waiting(10, rng)
        for item in range(40):
            waiting.offer(item)
        assert waiting.skipped == 30
        kept.update(waiting.take(10))
    assert all(abs(kept[item] - 1000) < 5 * 28 for item in range(40))


@given(st.lists(st.one_of(st.sampled_from("abc"), st.integers(1, 5)), max_size=80))
def test_what_is_left_out_is_told_once(events: list[str | int]) -> None:
    """Of each kind: what is offered either waits, is taken or is given back, and is so once."""
    turns: Turns[tuple[str, int]] = Turns(3, Random(1))
    taken: list[tuple[str, int]] = []
    left_out: list[tuple[str, int]] = []
    offered: list[tuple[str, int]] = []
    for number, event in enumerate(events):
        if isinstance(event, int):
            taken += turns.take(event)
        else:
            offered.append((event, number))
            if (back := turns.offer(event, (event, number))) is not None:
                left_out.append(back)
        assert len(turns) <= 9
        assert turns.skipped == len(left_out)
    taken += turns.take(10)
    assert len(turns) == 0
    assert sorted(taken + left_out) == sorted(offered)


def test_a_rare_kind_is_not_kept_waiting_by_a_frequent_one() -> None:
    """One in a hundred is of another kind: all of them are taken, as fast as they come."""
    turns: Turns[str] = Turns(8, Random(1))
    taken: Counter[str] = Counter()
    for number in range(1000):
        turns.offer(*(("rare", "rare") if number % 100 == 0 else ("often", "often")))
        if number % 50 == 49:
            taken.update(turns.take(2))
    assert taken == Counter({"often": 30, "rare": 10})
