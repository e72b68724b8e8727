"""What of an engine's load was ours when it was told, however late that comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.owned import MARKS, Owned
from tests.support.world import pool, sample


def endpoint() -> EndpointState:
    return EndpointState(pool("p", 64).endpoints[0])


@given(
    st.lists(st.integers(0, 20), min_size=3, max_size=MARKS),
    st.integers(0, 20),
    st.integers(0, MARKS),
)
def test_the_most_of_the_time_a_sample_tells_of_is_never_missed(
    peaks: list[int], now_peak: int, back: int
) -> None:
    """Against all that is remembered: no less than the peak of the interval it was taken in, and
    nothing that there never was."""
    owned = Owned()
    for number, peak in enumerate(peaks):
        owned.mark(peak, float(number))
    place = max(1, len(peaks) - 1 - back)
    found = owned.most(now_peak, place - 1.0, place - 0.5)
    assert found >= peaks[place]
    assert found in {*peaks, now_peak}
    fresh = owned.most(now_peak, len(peaks) - 1.0, float(len(peaks)))
    assert fresh == max(now_peak, peaks[-1])


def test_before_anything_is_remembered_it_is_what_there_is() -> None:
    assert Owned().most(3, 0.0, 1.0) == 3


def test_a_sample_that_is_late_tells_of_no_work_of_others() -> None:
    """Ours rose to twenty and fell to nothing; six seconds later samples tell of it."""
    state = endpoint()
    for step in range(300):
        now = 0.1 * step
        held = 20 if 5.0 <= now < 10.0 else 0
        while state.own < held:
            state.reserve(1)
        while state.own > held:
            state.release(1)
        state.traffic.meets(state.load, state.load, now)
        told_s = now - 6.0
        if told_s >= 0.0:
            running = 20.0 if 5.0 <= told_s < 10.0 else 0.0
            state.observe(sample(state.spec.address, told_s, running, 0.4))
        assert state.foreign < 0.5


def test_work_of_others_is_seen_in_late_samples_too() -> None:
    state = endpoint()
    for step in range(300):
        now = 0.1 * step
        state.traffic.meets(state.load, state.load, now)
        if now >= 6.0:
            state.observe(sample(state.spec.address, now - 6.0, 7.0, 0.4))
    assert 6.5 < state.foreign < 7.5
