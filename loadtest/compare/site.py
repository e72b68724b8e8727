"""What an operator without a gate knows of the site of a scenario, read off the engine models: the
rivals are set up with the truth, which the product has to find out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.backend.profiles import LlmProfile, PrefillWork, Profile
from loadtest.compare.scenario import Kind, Scenario, Server

PATHS = {
    Kind.CHAT: "/v1/chat/completions",
    Kind.STREAM: "/v1/chat/completions",
    Kind.COMPLETION: "/v1/completions",
    Kind.INFER: "/v2/models/",
}


@dataclass(frozen=True, slots=True)
class Site:
    """Of each pool what its servers run at their knees (`knees`) and what they serve then, relative
    to each other (`speeds`), in order; of each key its tenant's weight; of each path the promise,
    and for all how long a request takes that is alone."""

    knees: Mapping[str, tuple[float, ...]]
    speeds: Mapping[str, tuple[float, ...]]
    keys: Mapping[str, float]
    promises_s: Mapping[str, float]
    idle_s: float

    @property
    def pools(self) -> Mapping[str, float]:
        """What each pool serves, relative to the others."""
        return {pool: sum(speeds) for pool, speeds in self.speeds.items()}


def site_of(scenario: Scenario) -> Site:
    """The site of a scenario."""
    promises_s: dict[str, float] = {"/": scenario.slo_s}
    for tenant in scenario.tenants:
        promises_s[PATHS[tenant.shape.kind]] = scenario.slo_of(tenant.name)
    prompt_tokens = scenario.tenants[0].shape.prompt_tokens
    idle_s = [_idle_s(server.resolved, prompt_tokens) for server in scenario.servers]
    return Site(
        {pool: tuple(map(_knee, servers)) for pool, servers in scenario.pools.items()},
        {pool: tuple(map(_speed, servers)) for pool, servers in scenario.pools.items()},
        {tenant.key: tenant.weight for tenant in scenario.tenants},
        promises_s,
        sum(idle_s) / len(idle_s),
    )


def _knee(server: Server) -> float:
    """In flight; of a fixed shape the batch that runs and the one that fills meanwhile."""
    profile = server.resolved
    if not isinstance(profile, LlmProfile):
        return 2.0 * profile.max_batch * profile.instances
    return float(profile.knee.sequences if profile.knee else profile.max_sequences)


def _speed(server: Server) -> float:
    """Requests a second at the knee, prompts aside."""
    profile = server.resolved
    if not isinstance(profile, LlmProfile):
        return profile.max_batch * profile.instances / profile.batch_s(profile.max_batch)
    knee = int(_knee(server))
    return knee / (profile.lengths.mean_tokens * profile.step_s(knee, knee, 0, PrefillWork()))


def _idle_s(profile: Profile, prompt_tokens: float) -> float:
    """How long a mean request takes that is alone; of a fixed shape in a full batch, or nothing
    that uses the server well would look idle."""
    if not isinstance(profile, LlmProfile):
        return profile.batch_s(profile.max_batch) + profile.max_delay_ms / 1000.0
    tokens = int(prompt_tokens)
    prefill_s = profile.step_s(1, 0, 0, PrefillWork(tokens, tokens**2))
    return prefill_s + profile.lengths.mean_tokens * profile.step_s(1, 1, tokens, PrefillWork())
