"""What may happen in the middle of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ext_authz.snapshot import EndpointSample
from loadtest.backend.profiles import Profile
from loadtest.scenarios.scenario import Config, Turn, World


def throttled(at_s: float, factor: float, shown: bool = True) -> Turn:
    """Clocks drop on all servers; telemetry tells of it if `shown`."""
    return Turn(
        at_s, f"throttled {factor} {shown}", lambda world: world.simulation.slow(factor, shown)
    )


def dies(at_s: float, address: str, profile: Profile) -> Turn:
    """A server is gone, and what it ran."""
    return Turn(at_s, f"dies {address}", lambda world: world.renew(address, profile, False))


def returns(at_s: float, address: str, profile: Profile) -> Turn:
    """It is back, empty."""
    return Turn(at_s, f"returns {address}", lambda world: world.renew(address, profile, True))


def blind(at_s: float, until_s: float) -> tuple[Turn, Turn]:
    """No metrics page comes for a while."""

    def turn(value: bool) -> Callable[[World], None]:
        def turned(world: World) -> None:
            simulation = world.simulation
            simulation.silent = frozenset(simulation.servers) if value else frozenset()

        return turned

    return Turn(at_s, "blind", turn(True)), Turn(until_s, "sees", turn(False))


def log_cut(at_s: float, until_s: float) -> tuple[Turn, Turn]:
    """No access-log entry comes for a while; what ends meanwhile is never told."""

    def turn(value: bool) -> Callable[[World], None]:
        def turned(world: World) -> None:
            world.simulation.log_cut = value

        return turned

    return Turn(at_s, "log cut", turn(True)), Turn(until_s, "log back", turn(False))


def configured(at_s: float, config: Config) -> Turn:
    """Some top keys of the configuration are other ones from now on."""
    return Turn(at_s, f"configured {dict(config)}", lambda world: world.configure(config))


def skewed(at_s: float, skew_s: float) -> Turn:
    """The gate's clock is so much ahead of true time from now on."""

    def turned(world: World) -> None:
        world.simulation.skew_s = skew_s

    return Turn(at_s, f"skewed {skew_s}", turned)


def stalled(at_s: float, for_s: float) -> Turn:
    """The gate does nothing for a while; what goes on goes on without it."""

    def turned(world: World) -> None:
        world.simulation.stalled_s = world.simulation.now + for_s

    return Turn(at_s, f"stalled {for_s}", turned)


def shown_kv(at_s: float, ratio: float) -> Turn:
    """Pages tell of so much of the KV cache in use, whatever is true."""

    def change(sample: EndpointSample) -> EndpointSample:
        return replace(sample, kv_usage_ratio=ratio)

    def turned(world: World) -> None:
        world.simulation.reshape = change

    return Turn(at_s, f"kv {ratio}", turned)
