"""The best static limit and the best static rate of each scenario, found by trying.

They depend on the world alone (`world_of`), so that what was found is kept in a file beside this
one, by that digest, and the comparison need not look again. They are tried in virtual time
(`loadtest.compare.virtual`), or by playing the scenario for real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from loadtest.compare.outcome import Run
from loadtest.compare.scenario import Scenario, world_of
from loadtest.compare.site import Site, site_of
from loadtest.compare.variants import Swept, Variant, static_limit, static_rate

PATH = Path(__file__).with_name("best.json")
# From one number to the next one that is tried, and at last to both sides of the best.
STEP = 1.25
FINER = (STEP**0.5, STEP**0.25)
# What is so much worse than the best is on its other side, not just unlucky; so are two in a row
# that are no better.
WORSE = 0.97
MOST_STEPS = 6
# What serves this part of the best serves as much.
AS_GOOD = 0.99


class Play(Protocol):
    """Plays a scenario with a variant, once."""

    def __call__(self, scenario: Scenario, variant: Variant) -> Run: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What was found, goodput by what was tried, and how: `virtual` or `played`. The numbers of
    limits that were tried are in the order of `limits`."""

    world: str
    limits: Mapping[str, int]
    rate_rps: float
    tried_limits: Mapping[str, float]
    tried_rates: Mapping[str, float]
    how: str

    @property
    def swept(self) -> Swept:
        """What the variants need of it."""
        return Swept(self.limits, self.rate_rps, self.enough)

    @property
    def enough(self) -> Mapping[str, int]:
        """The lowest limits that serve as much as the best: the top is flat."""
        best_rps = max(self.tried_limits.values())
        as_good = [
            tuple(map(int, limits.split("/")))
            for limits, rps in self.tried_limits.items()
            # Those by pool say nothing of those by server.
            if rps >= AS_GOOD * best_rps and limits.count("/") + 1 == len(self.limits)
        ]
        return dict(zip(self.limits, min(as_good, key=sum), strict=True))


def read(path: Path = PATH) -> dict[str, Kept]:
    """All that is kept, by scenario."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {name: Kept(**fields) for name, fields in kept.items()}


def write(kept: Mapping[str, Kept], path: Path = PATH) -> None:
    """Keep it."""
    fields = {name: asdict(each) for name, each in sorted(kept.items())}
    path.write_text(json.dumps(fields, indent=1) + "\n")


def best_of(scenario: Scenario, kept: Mapping[str, Kept]) -> Swept | None:
    """What is kept of a scenario; None if its world is another one now."""
    found = kept.get(scenario.name)
    if found is None or found.world != world_of(scenario):
        return None
    return found.swept


def sweep(scenario: Scenario, play: Play) -> Kept:
    """By playing it for real, each number once."""

    def limited(layout: Scenario, limits: Mapping[str, int]) -> float:
        return play(scenario, static_limit(site_of(layout), limits)).measured.goodput_rps

    def rated(rate_rps: float) -> float:
        return play(scenario, static_rate(site_of(scenario), rate_rps)).measured.goodput_rps

    return search(scenario, limited, rated, "played")


def search(
    scenario: Scenario,
    limited: Callable[[Scenario, Mapping[str, int]], float],
    rated: Callable[[float], float],
    how: str,
) -> Kept:
    """Try limits from those at the servers' knees on, the same factor for all, by pool and, where
    servers of a pool differ, also by server (that layout of the scenario); then rates from what all
    servers together can do. Goodput is what the two functions tell of them."""
    tried_limits: dict[str, float] = {}
    tried_rates: dict[str, float] = {}

    def with_limit(layout: Scenario, times: float) -> float:
        limits = limits_at(site_of(layout), times)
        rps = limited(layout, limits)
        tried_limits[_words(limits)] = round(rps, 2)
        return rps

    found = []
    for layout in (scenario, scenario.apart) if scenario.is_uneven else (scenario,):
        limits = limits_at(site_of(layout), climbed(partial(with_limit, layout)))
        found.append((tried_limits[_words(limits)], limits))
    _, limits = max(found, key=itemgetter(0))

    def with_rate(times: float) -> float:
        rate_rps = rate_at(scenario, site_of(scenario), times)
        rps = rated(rate_rps)
        tried_rates[f"{rate_rps:g}"] = round(rps, 2)
        return rps

    rate_rps = rate_at(scenario, site_of(scenario), climbed(with_rate))
    return Kept(world_of(scenario), limits, rate_rps, tried_limits, tried_rates, how)


def layout_of(scenario: Scenario, found: Swept) -> Scenario:
    """The scenario with its servers in pools, or apart, whichever was best."""
    return scenario if set(found.limits) == set(scenario.pools) else scenario.apart


def _words(limits: Mapping[str, int]) -> str:
    return "/".join(map(str, limits.values()))


def limits_at(site: Site, times: float) -> dict[str, int]:
    """By pool what its servers run at their knees, so many times."""
    return {pool: max(1, round(times * sum(knees))) for pool, knees in site.knees.items()}


def rate_at(scenario: Scenario, site: Site, times: float) -> float:
    """What all servers together serve, so many times. The table tells it of the first pool."""
    first, *_ = site.pools.values()
    all_rps = scenario.capacity_rps * sum(site.pools.values()) / first
    return round(times * all_rps, 1)


def climbed(goodput_rps: Callable[[float], float]) -> float:
    """The best factor: from 1 up, and down, step by step for as long as it gets better, then by
    half and by a quarter of a step to both sides of the best. Each factor is tried once."""
    tried: dict[float, float] = {}

    def measure(factor: float) -> float:
        if factor not in tried:
            tried[factor] = goodput_rps(factor)
        return tried[factor]

    measure(1.0)
    for step in (STEP, 1.0 / STEP):
        factor, in_vain = 1.0, 0
        for _ in range(MOST_STEPS):
            factor *= step
            best = max(tried.values())
            in_vain = 0 if measure(factor) > best else in_vain + 1
            if in_vain == 2 or tried[factor] < WORSE * best:
                break
    for step in FINER:
        middle = max(tried, key=lambda factor: tried[factor])
        for factor in (middle * step, middle / step):
            measure(factor)
    return max(tried, key=lambda factor: tried[factor])
