"""Where in a pool a request goes: what takes it comes before what refuses it, and of what takes it
the one where it is less likely to be late."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission import enforcing
from ext_authz.admission.controller import Controller
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.looking import instead, seen
from ext_authz.admission.policies import POLICIES
from ext_authz.admission.selection import choose
from ext_authz.admission.view import View
from ext_authz.model import Reason
from ext_authz.overload import Mode
from ext_authz.settings import AdmissionSettings, Endpoint, Slo
from ext_authz.snapshot import EndpointSample
from tests.support.learning import taught
from tests.support.world import Asks, pool, settings, tenant

KNOWING = taught(400)


def config(
    slots: tuple[int, ...] = (16, 16), mode: Mode = Mode.PREDICTIVE, **changes: object
) -> AdmissionSettings:
    """A pool of endpoints with so many slots each, and one that shares the device of the first."""
    spec = pool("p", 16, endpoints=len(slots))
    endpoints = tuple(
        replace(endpoint, max_concurrency=many)
        for endpoint, many in zip(spec.endpoints, slots, strict=True)
    )
    beside = replace(pool("q", 64), endpoints=(Endpoint("q-0:80", "http://q-0:80", 64, "p-0"),))
    pools = (replace(spec, endpoints=endpoints, mode=mode), beside)
    return settings(pools, (tenant("a"),), **{"tune_margin": False, **changes})


class Routed:
    """A controller that has learned, driven by hand. `loads` are what telemetry tells."""

    def __init__(
        self,
        config: AdmissionSettings,
        loads: tuple[float, ...],
        hot: tuple[float, ...] = (),
        beside: float = 0.0,
    ) -> None:
        self.config = config
        self.controller = Controller(config, Random(1), 0.0)
        self.pool = self.controller.pools.by_name["p"]
        self.pool.predictor = KNOWING
        self._observe("q-0:80", beside, 1.0)
        for index, load in enumerate(loads):
            self._observe(f"p-{index}:80", load, hot[index] if index < len(hot) else 1.0)

    def _observe(self, address: str, load: float, hot: float) -> None:
        told = EndpointSample(address, 0.0, load, 0.0, 0.1, 1e6, 0.4, thermal_factor=hot)
        self.controller.observe(told)

    def look(self, tokens: int = 400) -> tuple[View | None, Reason | None]:
        """Where a request would go now."""
        ask = Asks(self.config)("a", tokens)
        found = enforcing.look(ask, self.pool, self.config, False, 0.1)
        return found.view, found.objection

    def goes_to(self, tokens: int = 400) -> str | Reason | None:
        """The endpoint, or the objection."""
        view, objection = self.look(tokens)
        return objection or (view.endpoint.spec.address if view else None)


def objects(view: View) -> Reason | None:
    """The first objection of the rules."""
    return next((reason for policy in POLICIES[True] if (reason := policy(view))), None)


def alone_s(tokens: int = 400) -> float:
    """What such a request is expected to take on an idle endpoint."""
    view, _ = Routed(config(), (0.0, 0.0)).look(tokens)
    assert view is not None
    assert view.forecast is not None
    return view.forecast.e2e_s


def within(times: float) -> Slo:
    """A promise of so many times what the request takes alone."""
    return Slo(e2e_s=times * alone_s())


def test_a_hot_card_is_left_to_others() -> None:
    """It carries less, and would still be late: throttled clocks make it slower than the other."""
    tight = config(default_slo=within(2.0))
    assert Routed(tight, (2.0, 4.0)).goes_to() == "p-0:80"
    assert Routed(tight, (2.0, 4.0), hot=(1.6, 1.0)).goes_to() == "p-1:80"


def test_slower_silicon_is_left_to_others() -> None:
    """As the endpoint's own pace tells, without any word from telemetry."""
    routed = Routed(config(default_slo=within(2.0)), (2.0, 4.0))
    for level in (
        *routed.pool.endpoints[0].traffic.pace.whole,
        *routed.pool.endpoints[0].traffic.pace.rest,
    ):
        level.factor = 2.0
    assert routed.goes_to() == "p-1:80"


def test_a_neighbour_on_the_device_counts() -> None:
    """What another pool's server holds on the card is in the way as our own is."""
    tight = config(default_slo=within(2.0))
    assert Routed(tight, (0.0, 3.0)).goes_to() == "p-0:80"
    assert Routed(tight, (0.0, 3.0), beside=9.0).goes_to() == "p-1:80"


@pytest.mark.parametrize("slo", [Slo(), Slo(e2e_s=1000.0)])
def test_without_anything_to_fear_the_least_pressed_is_taken(slo: Slo) -> None:
    """Work spreads by load while no promise is in danger, or none was made."""
    relaxed = config(default_slo=slo)
    assert Routed(relaxed, (2.0, 4.0), hot=(1.6, 1.0)).goes_to() == "p-0:80"
    assert Routed(relaxed, (4.0, 2.0), hot=(1.0, 1.6)).goes_to() == "p-1:80"


def test_a_pool_that_does_not_predict_goes_by_load() -> None:
    """Predictions that are not acted on choose no endpoint either."""
    blunt = config(mode=Mode.HYBRID, default_slo=within(2.0))
    assert Routed(blunt, (2.0, 4.0), hot=(1.6, 1.0)).goes_to() == "p-0:80"


def test_what_refuses_is_passed_over() -> None:
    """The least pressed would be late on its card; the next takes the request, and so does the
    one after it if it must. Only when none does it is refused."""
    tight = config((16, 16, 16), default_slo=within(1.5))
    assert Routed(tight, (0.9, 1.0, 1.0), hot=(4.0, 1.0, 1.0)).goes_to() == "p-1:80"
    assert Routed(tight, (0.9, 0.9, 1.0), hot=(4.0, 4.0, 1.0)).goes_to() == "p-2:80"
    everywhere = Routed(tight, (0.9, 0.9, 0.9), hot=(4.0, 4.0, 4.0))
    assert everywhere.goes_to() is Reason.SLO_UNREACHABLE


def test_what_has_refused_is_asked_last_until_something_changes() -> None:
    """Endpoints that are too slow for the promise carry the least, and would be asked in vain
    each time: once refused, those that have not come first, however many there are."""
    loads, hot = (1.0,) * 10 + (2.0,), (4.0,) * 10 + (1.0,)
    routed = Routed(config((16,) * 11, default_slo=within(1.5)), loads, hot)
    roster, slow = routed.pool.roster, routed.pool.endpoints[:10]
    for _ in range(2):
        routed.look()
    assert all(roster.is_put_off(endpoint) for endpoint in slow)
    assert routed.goes_to() == "p-10:80"
    assert roster.top() is routed.pool.endpoints[10]
    slow[3].reserve(1)
    roster.catch_up(0.1)
    assert not roster.is_put_off(slow[3])


def test_a_refusal_is_not_the_last_word_for_what_is_smaller() -> None:
    """Put off is not left out: a small request runs where a large one was refused."""
    routed = Routed(config((16, 16), default_slo=within(1.2)), (1.0, 1.0), hot=(1.5, 1.5))
    assert routed.goes_to() is Reason.SLO_UNREACHABLE
    assert routed.goes_to(tokens=40) == "p-0:80"


def test_a_full_endpoint_is_passed_over() -> None:
    """The large endpoint has a slot left, though the small one seems less pressed."""
    small, large = 2.0 - 0.45, 16.0 - 0.6
    assert small / 2 < large / 16
    loose = config((2, 16), default_slo=Slo())
    assert Routed(loose, (small, large)).goes_to() == "p-1:80"
    assert Routed(loose, (2.0, 16.0)).goes_to() is Reason.AT_CAPACITY


def test_what_is_about_the_pool_asks_no_other_endpoint() -> None:
    """Room that is kept for a class is kept on all of them: the least pressed is what was seen."""
    routed = Routed(config(default_slo=Slo(), reserve_ratio=0.9), (3.0, 4.0))
    flow = routed.pool.shares.flow(("a", "default"), 1.0, 0.0)
    routed.pool.shares.admitted(flow, 0.0)
    view, objection = routed.look()
    assert objection is Reason.RESERVED
    assert view is not None
    assert view.endpoint.spec.address == "p-0:80"


@given(
    st.lists(
        st.tuples(
            st.floats(0, 18), st.floats(1, 4), st.floats(0.5, 3), st.floats(0, 1e6), st.floats(0, 3)
        ),
        min_size=1,
        max_size=6,
    ),
    st.floats(1.1, 5.0),
    st.booleans(),
)
def test_a_pool_takes_what_one_of_its_endpoints_takes(
    told: list[tuple[float, float, float, float, float]], times: float, first_token: bool
) -> None:
    """Against a walk that asks each endpoint: refused only if all refuse, never riskier than the
    least pressed one that takes it, and where it was refused, for the reason found there."""
    promise = within(times)
    made = config((16,) * len(told), default_slo=promise)
    routed = Routed(made, tuple(row[0] for row in told), hot=tuple(row[1] for row in told))
    for endpoint, (_, _, pace, context, prefill_s) in zip(routed.pool.endpoints, told, strict=True):
        for level in endpoint.traffic.pace.whole:
            level.factor = pace
        endpoint.traffic.context_tokens = context
        endpoint.traffic.prefill_s = prefill_s
    ask = Asks(made)("a", 400)
    if first_token:
        ask = replace(ask, ttft_s=promise.e2e_s and 0.5 * promise.e2e_s)
    choice = choose(routed.pool, ask.estimate.kv_tokens, 0.1)
    least = seen(ask, routed.pool, made, choice, 0.1)
    assert least is not None
    found = enforcing.look(ask, routed.pool, made, False, 0.1)
    view, objection = found.view, found.objection
    assert view is not None
    takes: dict[EndpointState, View] = {}
    for endpoint in routed.pool.endpoints:
        occupied = routed.pool.roster.occupying(endpoint, ask.estimate.kv_tokens, 0.1)
        if occupied is not None:
            other = instead(least, endpoint, occupied, 0.1)
            if objects(other) is None:
                takes[endpoint] = other
    assert (objection is None) == bool(takes)
    if objection is not None:
        assert (view.endpoint, objection) == (least.endpoint, objects(least))
        return
    assert view.endpoint in takes
    if least.endpoint in takes:
        assert (view.risk or 0.0) <= (least.risk or 0.0)


@pytest.mark.interpreted("it asks a class for its __slots__")
def test_the_same_endpoint_looked_at_again_is_the_same() -> None:
    """Nothing that is known of the pool is left out when another endpoint is looked at."""
    made = config(default_slo=within(2.0), reserve_ratio=0.3, margin_s=0.01)
    routed = Routed(made, (3.0, 4.0))
    ask = Asks(made)("a", 400)
    choice = choose(routed.pool, ask.estimate.kv_tokens, 0.1)
    view = seen(ask, routed.pool, made, choice, 0.1)
    assert view is not None
    view.stand_back = routed.pool.shares.stand_back(view.flow, 0.1)
    again = instead(view, view.endpoint, view.occupied, 0.1)
    for name in View.__slots__:
        assert getattr(again, name) == getattr(view, name), name
