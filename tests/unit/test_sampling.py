"""What waits is bounded, and a fair sample of what came."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.sampling import Waiting


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
