"""Each guard off in turn: what it is worth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ext_authz.simulation.clients import Retrying
from loadtest.scenarios.scenario import Config, Scenario


@dataclass(frozen=True, slots=True)
class Without:
    """A guard that is off: the top keys of the configuration that say so. Where clients are
    `untold`, those that would obey a hint come back after a second, as if there were none."""

    config: Config = field(default_factory=lambda: MappingProxyType({}))
    untold: bool = False

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario without it."""
        clients = scenario.clients
        if self.untold:
            clients = tuple(
                replace(client, retries=Retrying.UNTOLD)
                if client.retries is Retrying.OBEY
                else client
                for client in clients
            )
        return replace(scenario, clients=clients, config={**scenario.config, **self.config})


# Where guards are turned off, of the first seed only: minutes instead of half an hour.
GUARDED = (
    "noisy neighbour", "heavy tail", "overload", "burst", "loose promise", "telemetry lost",
    "retry storm: obey", "retry storm: never",
)  # fmt: skip
GUARDS: dict[str, Without] = {
    "latency": Without({"policies": {"latency": "off"}}),
    "capacity": Without({"policies": {"capacity": "off"}}),
    "memory": Without({"policies": {"memory": "off"}}),
    "shares": Without({"policies": {"share": "off", "reserve": "off"}}),
    "hold": Without({"hold": {"limit": "0s"}}),
    "retry slots": Without(untold=True),
}
