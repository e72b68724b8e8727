"""What a rival's operator is told of a site is the truth of the engine models."""

from __future__ import annotations

import pytest

from loadtest.backend.profiles import LlmProfile
from loadtest.compare.scenario import Scenario
from loadtest.compare.site import site_of
from loadtest.compare.table import SCENARIOS
from loadtest.simulated import ModelServer


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_what_is_told_fits_the_scenario(scenario: Scenario) -> None:
    """Each server, each key and each promise, once."""
    site = site_of(scenario)
    for told in (site.knees, site.speeds):
        assert {pool: len(each) for pool, each in told.items()} == {
            pool: len(servers) for pool, servers in scenario.pools.items()
        }
    assert set(site.keys) == {tenant.key for tenant in scenario.tenants}
    assert site.promises_s["/"] == scenario.slo_s
    assert 0.0 < site.idle_s < scenario.slo_s


def test_promises_are_by_path() -> None:
    """Batch completions may take longer than chats."""
    promises_s = site_of(SCENARIOS["mixed"]).promises_s
    assert promises_s["/v1/completions"] == 6.0
    assert promises_s["/v1/chat/completions"] == 1.5


def test_a_server_of_a_fixed_shape_runs_a_batch_while_the_next_one_fills() -> None:
    """Twice the batch is in flight."""
    site = site_of(SCENARIOS["fixed-shape"])
    assert site.knees == {"primary": (16.0,)}
    assert site.speeds["primary"] == pytest.approx((200.0,))


def test_speeds_tell_which_server_can_do_more() -> None:
    """Of equal knees the slower one serves less; relative to what the table says they serve."""
    (plain, slow), (economy,) = site_of(SCENARIOS["mixed"]).speeds.values()
    assert slow / plain == pytest.approx(28.5 / 36.0, rel=0.05)
    assert economy / plain == pytest.approx(17.0 / 36.0, rel=0.1)


def test_the_latency_of_one_alone_is_what_the_engine_takes() -> None:
    """Within a tenth, over many answers one after the other."""
    scenario = SCENARIOS["overload-1.5x"]
    profile = scenario.servers[0].resolved
    assert isinstance(profile, LlmProfile)
    server, now, ended = ModelServer(profile, 1), 0.0, 0
    while ended < 400:
        server.submit(now, 200, None)
        while not (over := server.advance(now)):
            now = server.next_event()
        ended += len(over)
    assert site_of(scenario).idle_s == pytest.approx(now / ended, rel=0.1)
