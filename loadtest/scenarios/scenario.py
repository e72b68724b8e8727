"""What a scenario is made of: a configuration, clients, servers, what happens when, and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ext_authz.simulation.clients import Client
from ext_authz.simulation.ways import OFTEN, SOON, LogWay, Scrapes
from ext_authz.simulation.world import Simulation
from loadtest.backend.profiles import Profile
from loadtest.simulated import llm

# The keys below `admission_control` of a configuration file.
Config = Mapping[str, object]
PRIMARY = llm()
# By so long after the last window all that came in it is over.
END_S = 3


@dataclass(frozen=True, slots=True)
class World:
    """A simulation under way, and what its scenario needs to change it: `configure` compiles a
    configuration with some top keys replaced and swaps it in; `renew` puts another process in the
    place of a server."""

    simulation: Simulation
    configure: Callable[[Config], None]
    renew: Callable[[str, Profile, bool], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens at a time; `what` says so in words that tell it from all others."""

    at_s: float
    what: str
    act: Callable[[World], None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fair:
    """Who shares in a window: tenants with their weights, all of which want more than they get, or
    what they send."""

    window_s: tuple[int, int]
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What must hold; None is not asked for. Ratios are 0..1.

    `of_best`: goodput of that of the best static limit in the same world. `kept`: of what is let
    in, what is served in time. `share_error` and `jain` as in `Fairness`, the worst window.
    `innocent_p99_s` and `innocent_served` (of what it sends while it holds less than its share of
    the best static limit, served in time) are of the innocent tenant. `premature`: of refusals for
    want of capacity. `amplification`: tries for each first one. `recovered`: goodput of what is
    offered in the window after the trouble, of the innocent tenant if there is one.
    """

    of_best: float | None = 0.9
    kept: float | None = 0.95
    share_error: float | None = None
    jain: float | None = None
    innocent_p99_s: float | None = None
    innocent_served: float | None = None
    premature: float | None = None
    amplification: float | None = None
    recovered: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table. `pools` maps the pools of `config` to what their servers run;
    `window_s` is what is measured, `after_s` the window after the trouble; `limits` are the static
    limits to be tried for each server, by pool. Unless `judged`, room comes and goes with servers,
    and nothing is said of premature refusals."""

    name: str
    about: str
    clients: tuple[Client, ...]
    config: Config
    pools: Mapping[str, Profile] = field(default_factory=lambda: MappingProxyType({"p": PRIMARY}))
    log: LogWay = SOON
    scrapes: Scrapes = OFTEN
    turns: tuple[Turn, ...] = ()
    window_s: tuple[int, int] = (10, 40)
    after_s: tuple[int, int] | None = None
    fair: tuple[Fair, ...] = ()
    innocent: str = ""
    limits: Mapping[str, tuple[int, ...]] = field(
        default_factory=lambda: MappingProxyType({"p": (12, 14, 16, 18, 20)})
    )
    bounds: Bounds = field(default_factory=Bounds)
    judged: bool = True

    @property
    def until_s(self) -> int:
        """When all of it has been played, and what came last is over."""
        ends = [self.window_s[1], *(fair.window_s[1] for fair in self.fair)]
        return END_S + max([*ends, self.after_s[1]] if self.after_s else ends)
