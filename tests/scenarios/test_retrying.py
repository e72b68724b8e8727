"""Clients that come back, in virtual time: a level stream of those who obey, no harm by others."""

from __future__ import annotations

import pytest

from ext_authz.model import Reason
from ext_authz.settings import Slo
from tests.support.retrying import Clients, Return, ignore, obey, obey_seconds, together
from tests.support.world import World, pool, settings, tenant

# 16 slots of 0.4 s each.
CAPACITY_RPS = 40.0


def world_of(*names: str, seed: int = 1) -> World:
    """One pool of 16 slots; the latency promise is not in the way."""
    tenants = tuple(tenant(name) for name in names)
    made = World(settings((pool("p", 16),), tenants, default_slo=Slo(e2e_s=2.0)), seed)
    made.run(1.0)
    return made


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_a_burst_those_who_obey_return_as_a_level_stream(seed: int) -> None:
    """Four hundred at once, which takes ten seconds to serve: each second as many come back as are
    served, and who came back was served at once, but for one in six. In twelve seconds nine in
    ten are through."""
    world = world_of("a", seed=seed)
    clients = Clients(world, "a", obey)
    for _ in range(400):
        clients.begin()
    world.run(20.0)
    story = clients.story
    assert story.served == 400
    assert max(story.returns_by_s.values()) <= 1.1 * CAPACITY_RPS
    assert story.returns_per_refused() <= 1.2
    assert sum(story.served_by_s[second] for second in range(13)) >= 360


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_an_overload_those_who_obey_add_no_load(seed: int) -> None:
    """Half of what can be served, and for ten seconds a quarter more than that: a fifth more comes
    than there is work, no second gets more returns than are served, and all of it is served. A
    third of those who were refused in the rush is told to come before it is over, which nobody
    knows, and is refused again."""
    world = world_of("a", seed=seed)
    clients = Clients(world, "a", obey)
    clients.offer(20.0, until_s=70.0)
    world.run(10.0)
    clients.offer(30.0, until_s=20.0)
    world.run(90.0)
    story = clients.story
    assert story.served == story.pieces
    assert story.attempts <= 1.25 * story.pieces
    assert story.returns_per_refused() <= 1.5
    assert max(story.returns_by_s.values()) <= CAPACITY_RPS


def test_whole_seconds_will_do() -> None:
    """Clients that read `retry-after` only, all refused at one instant, come in steps of a second;
    they are served as fast, in somewhat more attempts."""
    world = world_of("a")
    clients = Clients(world, "a", obey_seconds)
    for _ in range(200):
        clients.begin()
    world.run(30.0)
    assert clients.story.served == 200
    assert clients.story.returns_per_refused() <= 2.5


@pytest.fixture(scope="module")
def of_kind() -> dict[str, tuple[Clients, Clients]]:
    """Two tenants of one weight, each at three times its share for 25 s; one obeys, the other is
    of each kind."""
    played = {}
    for kind in (obey, ignore):
        world = world_of("a", "b")
        pair = Clients(world, "a", obey, patience_s=3.0), Clients(world, "b", kind, patience_s=3.0)
        for clients in pair:
            clients.offer(1.5 * CAPACITY_RPS)
        world.run(26.0)
        played[kind.__name__] = pair
    return played


def test_who_ignores_what_it_is_told_gets_its_share_and_no_more(
    of_kind: dict[str, tuple[Clients, Clients]],
) -> None:
    """Its goodput is that of one that obeys, give or take what it finds sooner, and not beyond its
    share, though it sends ten times as much; most of that is refused unread."""
    obeying, hammering = (of_kind[kind][1].story for kind in ("obey", "ignore"))
    assert hammering.attempts > 10 * obeying.attempts
    served_rps = hammering.served_rps(6, 26)
    assert 0.95 * obeying.served_rps(6, 26) <= served_rps <= 1.02 * CAPACITY_RPS / 2.0
    assert hammering.reasons[Reason.HAMMERING] > 0.7 * sum(hammering.reasons.values())


def test_a_neighbour_that_hammers_costs_nothing(
    of_kind: dict[str, tuple[Clients, Clients]],
) -> None:
    """The one that obeys gets the same beside either."""
    beside = [of_kind[kind][0].story.served_rps(6, 26) for kind in ("obey", "ignore")]
    assert beside[1] == pytest.approx(beside[0], rel=0.05)


@pytest.mark.parametrize("kind", [obey, ignore, together])
def test_an_overload_ends_when_it_ends(kind: Return) -> None:
    """Ten seconds of twice what can be served; five seconds later all that is offered (three
    quarters) is served, whatever clients do. Those who do not obey would rather come at once."""
    world = world_of("a")
    clients = Clients(world, "a", kind, patience_s=10.0)
    clients.offer(0.75 * CAPACITY_RPS)
    world.run(5.0)
    clients.offer(1.25 * CAPACITY_RPS, until_s=15.0)
    world.run(40.0)
    story = clients.story
    before, after = story.served_rps(1, 5), story.served_rps(20, 40)
    assert after >= 0.95 * min(before, 0.75 * CAPACITY_RPS)
