"""What flows are owed, against the integral that says it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.debts import OWED_RATIO, Debts
from ext_authz.admission.flows import Flow
from ext_authz.settings import PriorityClass

# Seconds until the next request comes or goes, of which of two flows, and which of both it is.
steps = st.lists(
    st.tuples(st.floats(0.001, 0.05), st.integers(0, 1), st.booleans()), min_size=1, max_size=200
)


@settings(deadline=None)
@given(steps, st.floats(1.0, 12.0))
def test_nothing_is_owed_to_all_together(
    script: list[tuple[float, int, bool]], usable: float
) -> None:
    """Each is owed its share of what was in use, less what it held, whenever the others came and
    went: two that share half and half are owed nothing together, but for what has its bound."""
    debts, now = Debts(), 0.0
    flows = [Flow((name, "t"), 1.0, PriorityClass.MEDIUM, 0.0) for name in "ab"]
    for flow in flows:
        flow.wanted = 1000.0
    exact = [0.0, 0.0]
    bounded = False
    for step, index, comes in script:
        now += step
        used = sum(flow.used for flow in flows)
        for number, flow in enumerate(flows):
            exact[number] += step * (0.5 * min(used, usable) - flow.used)
        flow = flows[index]
        debts.go_on(used, usable, now)
        seconds, flow.at_s = now - flow.at_s, now
        debts.owe(flow, seconds, 0.5 * usable)
        bounded = bounded or abs(flow.owed_s) >= 0.99
        if comes and used < usable:
            flow.used += 1
        elif not comes and flow.used:
            flow.used -= 1
    used = sum(flow.used for flow in flows)
    for number, flow in enumerate(flows):
        debts.go_on(used, usable, now)
        if now > flow.at_s:
            debts.owe(flow, now - flow.at_s, 0.5 * usable)
        if not bounded and abs(flow.owed_s) < 0.99:
            assert flow.owed_s == pytest.approx(exact[number], abs=1e-6)
        assert abs(flow.owed_s) <= max(1.0, OWED_RATIO * 0.5 * usable) + 1e-9
