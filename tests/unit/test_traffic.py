"""What requests meet on an endpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.traffic import Stay, Traffic
from ext_authz.estimation.latency.features import IDLE, Work


def stay() -> Stay:
    """A request of a hundred tokens."""
    return Stay(Work(100.0, 10.0), 10.0, IDLE, slots=8)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 5.0), st.floats(0.0, 0.5)), max_size=60))
def test_prompts_wait_for_no_more_than_those_that_are_here(
    events: list[tuple[bool, float, float]],
) -> None:
    """Against the list of what is here: however wrong each prompt was predicted, those of
    requests that are over are waited for no longer."""
    traffic, here, now = Traffic(), list[Stay](), 0.0
    for enters, prefill_s, pause_s in events:
        now += pause_s
        if enters:
            here.append(stay())
            traffic.enter(here[-1], prefill_s, len(here) - 1.0, now)
        elif here:
            traffic.leave(here.pop(0), len(here) + 1.0, now)
        met = traffic.meets(float(len(here)), float(len(here)), now)
        assert 0.0 <= met.prefill_s <= sum(one.prefill_s for one in here) + 1e-9


def test_a_prompt_is_computed_meanwhile() -> None:
    """Three of half a second, a second later: another half."""
    traffic = Traffic()
    for _ in range(3):
        traffic.enter(stay(), 0.5, 0.0, 10.0)
    assert traffic.meets(3.0, 3.0, 11.0).prefill_s == pytest.approx(0.5)
