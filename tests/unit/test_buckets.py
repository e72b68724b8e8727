"""Token buckets: what a rate gives, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.buckets import TokenBucket

steps = st.lists(
    st.tuples(st.floats(-5.0, 5.0), st.floats(0.0, 30.0), st.booleans()), min_size=1, max_size=60
)


def test_starts_full_and_refills_at_its_rate() -> None:
    """A new bucket holds its burst, and what is taken comes back at the rate."""
    bucket = TokenBucket(10.0, 10.0, now=100.0)
    assert bucket.level(100.0) == 10.0
    bucket.take(10.0, 100.0)
    assert bucket.level(100.0) == 0.0
    assert bucket.level(100.25) == 2.5
    assert bucket.level(200.0) == 10.0


def test_looking_takes_nothing() -> None:
    """Asking for the wait leaves the level as it is, however often."""
    bucket = TokenBucket(1.0, 5.0, now=0.0)
    assert [bucket.wait_s(3.0, 0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.level(0.0) == 5.0


def test_wait_is_when_the_cost_is_there() -> None:
    """One moment before the wait is over the cost cannot be charged, one moment after it can."""
    bucket = TokenBucket(4.0, 10.0, now=0.0)
    bucket.take(9.0, 0.0)
    wait = bucket.wait_s(7.0, 0.0)
    assert wait == 1.5
    assert bucket.wait_s(7.0, wait - 0.01) > 0.0
    assert bucket.wait_s(7.0, wait + 0.01) == 0.0


def test_larger_than_the_burst_waits_for_a_full_bucket() -> None:
    """A cost that no bucket could hold is charged the whole burst instead of never."""
    bucket = TokenBucket(2.0, 10.0, now=0.0)
    assert bucket.wait_s(1000.0, 0.0) == 0.0
    bucket.take(1000.0, 0.0)
    assert bucket.level(0.0) == 0.0
    assert bucket.wait_s(1000.0, 0.0) == 5.0


def test_reconfiguring_keeps_the_level() -> None:
    """New numbers neither refill nor drain, but a smaller burst cuts what lies above it."""
    bucket = TokenBucket(1.0, 10.0, now=0.0)
    bucket.take(6.0, 0.0)
    bucket.reconfigure(2.0, 100.0, 0.0)
    assert bucket.level(0.0) == 4.0
    assert bucket.level(1.0) == 6.0
    bucket.reconfigure(2.0, 3.0, 1.0)
    assert bucket.level(1.0) == 3.0


def test_time_before_a_reload_is_paid_at_the_old_rate() -> None:
    """The new rate counts from the reload on, not backwards."""
    bucket = TokenBucket(1.0, 100.0, now=0.0)
    bucket.take(100.0, 0.0)
    bucket.reconfigure(50.0, 100.0, 2.0)
    assert bucket.level(2.0) == 2.0


def test_time_running_backwards_creates_nothing() -> None:
    """An out-of-order time gives no tokens, and its span is not paid a second time."""
    bucket = TokenBucket(10.0, 10.0, now=100.0)
    bucket.take(10.0, 100.0)
    assert bucket.level(50.0) == 0.0
    assert bucket.level(100.1) < 1.01
    assert bucket.level(0.0) < 1.01


@settings(deadline=None)
@given(st.floats(0.1, 50.0), st.floats(1.0, 50.0), steps)
def test_never_more_than_rate_and_burst_give(
    rate: float, burst: float, script: list[tuple[float, float, bool]]
) -> None:
    """Whatever the order of times: 0 <= level <= burst, and all that is taken fits under
    burst + rate x the time that has really passed."""
    bucket = TokenBucket(rate, burst, now=0.0)
    now, latest, taken = 0.0, 0.0, 0.0
    for step, cost, reload in script:
        now += step
        latest = max(latest, now)
        if reload:
            bucket.reconfigure(rate, burst, now)
        if bucket.wait_s(cost, now) == 0.0:
            taken += bucket.charge_for(cost)
            bucket.take(cost, now)
        assert 0.0 <= bucket.level(now) <= burst
    assert taken <= burst + rate * latest + 1e-6


@settings(deadline=None)
@given(st.floats(0.001, 1000.0), st.floats(1.0, 1000.0), st.floats(0.0, 5000.0))
def test_nobody_waits_longer_than_a_full_refill(rate: float, burst: float, cost: float) -> None:
    """The wait is never negative and never more than the time an empty bucket takes to fill."""
    bucket = TokenBucket(rate, burst, now=0.0)
    bucket.take(burst, 0.0)
    assert 0.0 <= bucket.wait_s(cost, 0.0) <= burst / rate * (1 + 1e-9)


def test_what_was_counted_settles_what_was_taken() -> None:
    """Less comes back, up to the burst; more is owed, and waited for."""
    bucket = TokenBucket(1.0, 10.0, now=0.0)
    bucket.take(8.0, 0.0)
    bucket.settle(8.0, 3.0, 0.0)
    assert bucket.level(0.0) == 7.0
    bucket.settle(3.0, 0.0, 5.0)
    assert bucket.level(5.0) == 10.0
    bucket.take(10.0, 5.0)
    bucket.settle(2.0, 6.0, 5.0)
    assert bucket.level(5.0) == 0.0
    assert bucket.wait_s(1.0, 5.0) == 5.0


settled = st.lists(
    st.tuples(st.floats(0.0, 9.0), st.floats(0.0, 99.0), st.floats(0.0, 99.0)), max_size=40
)


@settings(deadline=None)
@given(st.floats(0.1, 50.0), st.floats(1.0, 50.0), settled)
def test_what_is_owed_is_at_most_a_burst(
    rate: float, burst: float, script: list[tuple[float, float, float]]
) -> None:
    """However wrong estimates are: nobody waits longer than two refills, nothing lies above the
    burst, and what was counted in all fits under what time gave and what is owed, as far as no
    piece of work is larger than a bucket."""
    bucket = TokenBucket(rate, burst, now=0.0)
    now = counted_in_all = 0.0
    for step, cost, counted in script:
        now += step
        if bucket.wait_s(cost, now) == 0.0:
            bucket.take(cost, now)
            bucket.settle(cost, counted, now)
            counted_in_all += bucket.charge_for(counted)
        assert 0.0 <= bucket.level(now) <= burst
        assert bucket.wait_s(burst, now) <= 2.0 * burst / rate * (1 + 1e-9)
    assert counted_in_all <= 2.0 * burst + rate * now + 1e-6
