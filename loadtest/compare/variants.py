"""What is compared: the product, and what a user would pick instead inside the same Envoy.

A rival gets the same hardware as the product, and a careful operator who knows it: traffic is split
over all pools by their true capacity, within a pool it goes to the least loaded endpoint (with
limits, to each by what it can do where that serves more), dead ones are noticed within half a
second, and what is late is cut off, so that nobody works for a client who has no use for it.
Refusals carry the `Retry-After: 1` that the rendered configuration gives to all of Envoy's own.
Limits and rates are swept; adaptive_concurrency has the best of the settings that
`loadtest.compare.settings` tries, admission_control its defaults. Only `nothing` is left as it
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from loadtest import edge
from loadtest.compare import filters
from loadtest.compare.site import Site
from loadtest.edge import Config

NOTHING, STATIC, RATE = "nothing", "static_limit", "static_rate"
ADAPTIVE, ADMISSION, PRODUCT = "adaptive_concurrency", "admission_control", "product"
TITLES = {
    NOTHING: "nothing",
    STATIC: "best static limit",
    RATE: "best static rate",
    ADAPTIVE: "adaptive_concurrency",
    ADMISSION: "admission_control",
    PRODUCT: "ext-authz",
}
NAMES = tuple(TITLES)
# Before real servers only, see `real_variants`.
SHADOWED, TOLERANT = "static_limit_shadowed", "product_tolerant"
TITLES_BEFORE_REAL = {
    SHADOWED: "that limit, and a gate in shadow",
    TOLERANT: "ext-authz, told that so many promises may be broken",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a scenario. `title` tells it from another with other settings. `change` makes
    its Envoy configuration of the rendered one, which it may change in place. `limit` is what a
    sweep found: requests in flight, or requests a second, of all together."""

    name: str
    title: str
    change: Callable[[Config], Config]
    gate: bool = False
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What was best for a scenario: requests in flight by pool, or by server (`Scenario.apart`),
    and requests a second of all keys together. `enough` are the lowest limits that serve as much:
    nobody is to be refused below."""

    limits: Mapping[str, int]
    rate_rps: float
    enough: Mapping[str, int]

    def enough_of(self, pool: str) -> int:
        """Of all servers of a pool."""
        return sum(
            limit
            for name, limit in self.enough.items()
            if name == pool or name.rpartition("-")[0] == pool
        )


def variants(site: Site, swept: Swept, limited: Site | None = None) -> dict[str, Variant]:
    """All of them by name, the product last. The site is `limited` for limits, if that is another
    one: with servers apart, which does the other rivals no good."""
    found = (
        nothing(site),
        static_limit(limited or site, swept.limits),
        static_rate(site, swept.rate_rps),
        adaptive_concurrency(site),
        admission_control(site),
        product(),
    )
    return {variant.name: variant for variant in found}


def nothing(site: Site) -> Variant:
    """Envoy lets everything pass, for as long as it takes."""
    return Variant(NOTHING, TITLES[NOTHING], partial(_shared, site))


def static_limit(site: Site, limits: Mapping[str, int]) -> Variant:
    """A circuit breaker for each pool."""
    words = ", ".join(f"{pool} {limit}" for pool, limit in limits.items())
    return Variant(
        STATIC,
        f"static limit ({words})",
        lambda config: edge.with_limits(_careful(site, config), limits),
        limit=sum(limits.values()),
    )


def static_rate(site: Site, rate_rps: float) -> Variant:
    """A bucket for each key, all of them `rate_rps` together, in proportion to their weights."""
    return Variant(
        RATE,
        f"static rate of each key ({rate_rps:g}/s together)",
        partial(_filtered, site, filters.key_rates(site.keys, rate_rps)),
        limit=rate_rps,
    )


def adaptive_concurrency(site: Site, settings: filters.Gradient = filters.GRADIENT) -> Variant:
    """Envoy's gradient controller, one for all pools: the filter does not exist for a cluster."""
    change = partial(_filtered, site, filters.gradient(settings, site.idle_s))
    return Variant(ADAPTIVE, TITLES[ADAPTIVE], change)


def admission_control(site: Site, settings: filters.Rejecting = filters.REJECTING) -> Variant:
    """Envoy's refusals by success rate. It sees only statuses: without the 504s of what is cut off
    it would do nothing here."""
    change = partial(_filtered, site, filters.rejecting(settings))
    return Variant(ADMISSION, TITLES[ADMISSION], change)


def product() -> Variant:
    """The rendered configuration as it is."""
    return Variant(PRODUCT, TITLES[PRODUCT], lambda config: config, gate=True)


def _shared(site: Site, config: Config) -> Config:
    config = edge.without_gate(config)
    if not set(site.pools) <= edge.pools(config):
        config = edge.with_endpoints_apart(config)
    config = edge.with_split(config, site.pools)
    return edge.with_watched_endpoints(config)


def _careful(site: Site, config: Config) -> Config:
    return edge.with_timeouts(_shared(site, config), site.promises_s)


def _filtered(site: Site, http_filter: Config, config: Config) -> Config:
    return edge.with_filter(_careful(site, config), http_filter)
