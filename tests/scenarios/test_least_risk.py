"""Goodput of pools whose endpoints are not alike, by where requests are sent: to the least pressed
endpoint as before there were predictions, or to where they are least likely to be late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import pytest

from ext_authz.admission import routing
from ext_authz.settings import Endpoint
from ext_authz.snapshot import EndpointSample
from loadtest.simulated import backend
from tests.support.closed_loop import POOL, ClosedLoop
from tests.support.loop_parts import Client, Plan, profile
from tests.support.world import pool

SEEDS = (1, 2)
# What one server of this profile serves in time at its knee, and with one prompt in ten long.
CAPACITY_RPS, MIXED_RPS = 34.5, 21.4
# Learned from before it is measured.
FROM_S, UNTIL_S = 15, 35


@dataclass(frozen=True, slots=True)
class Case:
    """Servers on silicon that is so many times as slow, offered `load` of what they can do; one
    prompt in ten may be long. The clocks of the first may drop by `throttled` in mid-run, which
    telemetry may not tell, and a server of others on its device may hold `beside` requests. Least
    risk must serve `gain` times what least pressure does; measured limits give
    that most of what there is to gain."""

    slower: tuple[float, ...]
    gain: float
    load: float = 1.2
    long_ratio: float = 0.0
    throttled: float = 1.0
    told: bool = True
    beside: float = 0.0

    @property
    def capacity_rps(self) -> float:
        """What all of them together serve in time at their knees, clocks as they are in the end."""
        each_rps = MIXED_RPS if self.long_ratio else CAPACITY_RPS
        lost = 1.0 - 1.0 / self.throttled
        return each_rps * (sum(1.0 / factor for factor in self.slower) - lost / self.slower[0])


CASES = {
    "2 alike": Case((1.0, 1.0), 0.97),
    "2 alike, mixed sizes": Case((1.0, 1.0), 0.97, long_ratio=0.1),
    "2, one of half the speed": Case((2.0, 1.0), 1.03),
    "2, one of half the speed, 70 % load": Case((2.0, 1.0), 1.0, load=0.7),
    "2, one throttled": Case((1.0, 1.0), 1.0, throttled=1.8),
    "2, one throttled, untold": Case((1.0, 1.0), 1.0, throttled=1.8, told=False),
    "2, a neighbour on one device": Case((1.8, 1.0), 1.0, beside=16.0),
    "4, two of half the speed": Case((2.0, 2.0, 1.0, 1.0), 1.02),
    "4, one of half the speed, mixed sizes": Case((2.0, 1.0, 1.0, 1.0), 1.03, long_ratio=0.1),
    "16, four of half the speed": Case((2.0,) * 4 + (1.0,) * 12, 1.0),
}


def goodput_rps(case: Case, seed: int) -> float:
    """Of one run."""
    each_rps = MIXED_RPS if case.long_ratio else CAPACITY_RPS
    rate_rps = case.load * each_rps * sum(1.0 / factor for factor in case.slower)
    client = Client("a", rate_rps, long_ratio=case.long_ratio)
    loop = ClosedLoop(Plan((client,), profile(), endpoints=len(case.slower)), seed)
    for number, (server, factor) in enumerate(zip(loop.servers.values(), case.slower, strict=True)):
        server.backend = backend(profile(slower=factor), 1000 * seed + number)
    if case.throttled > 1.0:
        first = next(iter(loop.servers))
        loop.at(10.0, lambda: loop.slow(case.throttled, shown=case.told, only=first))
    if case.beside:
        share_device(loop, case.beside)
    loop.run(UNTIL_S)
    return loop.records.goodput_rps(FROM_S, UNTIL_S)


def share_device(loop: ClosedLoop, load: float) -> None:
    """A server of another pool is on the device of the first."""
    config = loop.controller.settings
    device = config.pools[POOL].endpoints[0].device
    other = Endpoint("q-0:80", "http://q-0:80", 64, device)
    pools = {**config.pools, "q": replace(pool("q"), endpoints=(other,))}
    loop.controller.reconfigure(replace(config, pools=pools), 0.0)

    def tell() -> None:
        loop.controller.observe(EndpointSample(other.address, loop.now, running=load))
        loop.at(loop.now + 0.1, tell)

    loop.at(0.0, tell)


@pytest.mark.parametrize("name", CASES)
def test_least_risk_serves_at_least_as_much(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost where endpoints are alike, and much is won where they are not."""
    case = CASES[name]
    seeds = SEEDS if len(case.slower) < 16 else SEEDS[:1]
    risk = fmean(goodput_rps(case, seed) for seed in seeds)
    # The least pressed, whatever is found of it.
    monkeypatch.setattr(routing, "best", lambda found, *_: found)
    pressure = fmean(goodput_rps(case, seed) for seed in seeds)
    print(f"{name}: least pressed {pressure:.1f}, least risk {risk:.1f}")
    assert risk >= case.gain * pressure
    if not case.beside:
        assert risk >= 0.9 * min(1.0, case.load) * case.capacity_rps
