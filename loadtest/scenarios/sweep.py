"""The best static limit of each scenario, found by trying; kept in a file beside this one.

It depends on the world alone, not on what decides, so that it need not be found anew each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import fmean

from loadtest.scenarios.play import SEEDS, Best, limited, settings_of
from loadtest.scenarios.scenario import Scenario

PATH = Path(__file__).with_name("best_static.json")
# What serves so much of the best serves as much: sweeps are of two runs, and flat at the top.
AS_GOOD = 0.99
Kept = dict[str, object]


def world_of(scenario: Scenario) -> str:
    """What a sweep depends on, as a digest."""
    parts = (
        scenario.clients, dict(scenario.config), dict(scenario.pools), scenario.turns,
        scenario.window_s, dict(scenario.limits), SEEDS,
    )  # fmt: skip
    return sha256(repr(parts).encode()).hexdigest()[:16]


def sweep(scenario: Scenario) -> Kept:
    """Try all limits, each for all servers of a pool; the best by the mean of all seeds."""
    names = list(scenario.limits)
    tried: dict[str, list[float]] = {}
    found: tuple[float, dict[str, int]] = (-1.0, {})
    for numbers in product(*scenario.limits.values()):
        limits = dict(zip(names, numbers, strict=True))
        rps = [
            limited(scenario, seed, limits).records.goodput_rps(*scenario.window_s)
            for seed in SEEDS
        ]
        tried["/".join(map(str, numbers))] = [round(each, 3) for each in rps]
        if fmean(rps) > found[0]:
            found = fmean(rps), limits
    return {"world": world_of(scenario), "limits": found[1], "tried_rps": tried}


def read(path: Path = PATH) -> dict[str, Kept]:
    """All that is kept, by the name of the scenario."""
    kept: dict[str, Kept] = json.loads(path.read_text()) if path.exists() else {}
    return kept


def write(kept: Mapping[str, Kept], path: Path = PATH) -> None:
    """Keep it."""
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: goodput of the best by seed, and by pool the limit of all servers
    together, of the lowest that serves as much."""

    limits: Mapping[str, float]
    rps: tuple[float, ...]

    def of(self, seed: int) -> Best:
        """Of one seed; of one that was not swept the mean of all."""
        rps = self.rps[SEEDS.index(seed)] if seed in SEEDS else fmean(self.rps)
        return Best(rps, self.limits)


def best_of(scenario: Scenario, kept: Mapping[str, Kept]) -> Swept | None:
    """What is kept of a scenario; None if its world is another one now."""
    entry = kept.get(scenario.name)
    if entry is None or entry["world"] != world_of(scenario):
        return None
    limits, tried = entry["limits"], entry["tried_rps"]
    assert isinstance(limits, dict)
    assert isinstance(tried, dict)
    best = tried["/".join(map(str, limits.values()))]
    enough = AS_GOOD * fmean(best)
    good = [tuple(map(int, one.split("/"))) for one, rps in tried.items() if fmean(rps) >= enough]
    pools = settings_of(scenario.config).pools
    lowest = zip(limits, min(good, key=sum), strict=True)
    together = {name: limit * len(pools[name].endpoints) for name, limit in lowest}
    return Swept(together, tuple(best))
