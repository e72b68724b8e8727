"""Traces of the backend model in virtual time, as `ext-authz evaluate` reads them.

`python -m loadtest.backend.traces NAME [--seed N]` prints one. Deterministic under its seed: the
same name and seed give the same bytes on any machine.

Arrivals come at random and are turned away while `most_in_flight` run, as by a gate that holds a
limit. A reload loses what is in flight; those requests are not in the trace.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import Engine, Finished, Work
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.profiles import PROFILES, LlmProfile, Profile

REQUESTS = 1200
HEADER = "arrived_s,prompt_bytes,prompt_tokens,output_cap_tokens,output_tokens,ttft_s,e2e_s"
# Most of English text lies between these; a gate does not know where.
BYTES_A_TOKEN = (3.5, 5.0)
# A long prompt is so many times as long, up to a bound that fits in the smallest profile.
LONG_TIMES, LONGEST_TOKENS = 8, 3500
# A row of a tabular model as a KServe v2 document.
ROW_BYTES = 600


@dataclass(frozen=True, slots=True)
class Burst:
    """For `for_s` of every `every_s` seconds arrivals come `times` as often."""

    every_s: float
    for_s: float
    times: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a trace is made of: arrivals at `rate_rps` on a server of `profile`.

    Prompts have `prompt_tokens` on average, log-normal with `sigma`; `long_ratio` of them are
    long. At `turn_s` the server gets slower by `throttle`, or is replaced by one of `reload`.
    """

    profile: Profile
    rate_rps: float
    most_in_flight: int
    slots: int
    burst: Burst | None = None
    long_ratio: float = 0.0
    turn_s: float = math.inf
    throttle: float = 1.0
    reload: Profile | None = None
    prompt_tokens: float = 200.0
    sigma: float = 0.5


def recipes() -> dict[str, Recipe]:
    """Every trace there is, by name."""
    chat, fraud = PROFILES["demo-primary"], PROFILES["fraud"]
    steady = Recipe(chat, rate_rps=24.0, most_in_flight=64, slots=64)
    guarded = replace(steady, rate_rps=20.0, most_in_flight=32)
    return {
        "steady": steady,
        "burst": replace(steady, rate_rps=18.0, most_in_flight=40, burst=Burst(8.0, 2.0, 4.0)),
        "heavy-tail": replace(guarded, long_ratio=0.1),
        "throttle": replace(guarded, rate_rps=22.0, turn_s=25.0, throttle=1.4),
        "reload": replace(guarded, turn_s=25.0, reload=_slower(chat, 1.8)),
        "fraud": Recipe(fraud, rate_rps=120.0, most_in_flight=64, slots=8),
    }


def trace_lines(name: str, seed: int = 1, requests: int = REQUESTS) -> Iterator[str]:
    """The lines of the trace called `name`, without line ends. Raises KeyError for no name."""
    recipe = recipes()[name]
    yield f"# slots={recipe.slots}"
    yield HEADER
    for ask, end in sorted(_Run(recipe, seed).play(requests), key=lambda pair: pair[0].arrived_s):
        first_s = "" if end.first_token_s is None else f"{end.first_token_s - ask.arrived_s:.6f}"
        cells = (f"{ask.arrived_s:.6f}", ask.prompt_bytes, ask.prompt_tokens, "",
                 end.output_tokens, first_s, f"{end.ended_s - ask.arrived_s:.6f}")  # fmt: skip
        yield ",".join(str(cell) for cell in cells)


@dataclass(frozen=True, slots=True)
class _Ask:
    arrived_s: float
    prompt_bytes: int
    prompt_tokens: int


class _Run:
    """One server and its clients. Arrivals, sizes and the server draw chance apart, so that a
    change to one leaves the others as they were."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self._recipe = recipe
        self._seed = seed
        self._chance = Random(seed)
        self._engine = _engine(recipe.profile, seed + 1)
        self._live: dict[int, _Ask] = {}
        self._turned = False

    def play(self, requests: int) -> Iterator[tuple[_Ask, Finished]]:
        """So many requests are let in; those that end, in order of their ends."""
        arrival_s, pending = self._after(0.0), requests
        while pending or self._live:
            event_s = self._engine.next_event()
            if not pending or (event_s is not None and event_s < arrival_s):
                assert event_s is not None, "something runs"
                yield from self._ended(event_s)
                continue
            now, arrival_s = arrival_s, self._after(arrival_s)
            yield from self._ended(now)
            self._turn(now)
            if len(self._live) < self._recipe.most_in_flight:
                self._send(now)
                pending -= 1

    def _ended(self, now: float) -> Iterator[tuple[_Ask, Finished]]:
        for event in self._engine.advance(now):
            if isinstance(event, Finished):
                yield self._live.pop(event.id), event

    def _after(self, now: float) -> float:
        rate_rps, burst = self._recipe.rate_rps, self._recipe.burst
        if burst is not None and now % burst.every_s < burst.for_s:
            rate_rps *= burst.times
        return now + self._chance.expovariate(rate_rps)

    def _turn(self, now: float) -> None:
        """The change in mid-run, once."""
        if self._turned or now < self._recipe.turn_s:
            return
        self._turned = True
        if self._recipe.throttle != 1.0:
            self._engine.throttle(now, self._recipe.throttle)
        if self._recipe.reload is not None:
            self._engine = _engine(self._recipe.reload, self._seed + 2)
            self._live.clear()

    def _send(self, now: float) -> None:
        if not isinstance(self._recipe.profile, LlmProfile):
            self._live[self._engine.submit(now, Work())] = _Ask(now, ROW_BYTES, 0)
            return
        sigma = self._recipe.sigma
        middle = math.log(self._recipe.prompt_tokens) - sigma**2 / 2.0
        tokens = max(4, int(self._chance.lognormvariate(middle, sigma)))
        if self._chance.random() < self._recipe.long_ratio:
            tokens *= LONG_TIMES
        tokens = min(tokens, LONGEST_TOKENS)
        size_bytes = int(tokens * self._chance.uniform(*BYTES_A_TOKEN))
        self._live[self._engine.submit(now, Work(tokens))] = _Ask(now, size_bytes, tokens)


def _engine(profile: Profile, seed: int) -> Engine:
    if isinstance(profile, LlmProfile):
        return ContinuousEngine(profile, seed)
    return FixedShapeEngine(profile)


def _slower(profile: Profile, times: float) -> Profile:
    """The same server on slower silicon: each step and each prompt token cost so much more."""
    assert isinstance(profile, LlmProfile)
    costs = profile.costs
    slow = replace(
        costs,
        decode_fixed_ms=times * costs.decode_fixed_ms,
        prefill_token_ms=times * costs.prefill_token_ms,
    )
    return replace(profile, name=f"{profile.name}-slow", costs=slow)


def main(arguments: list[str]) -> int:
    """Print a trace."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.backend.traces", description=__doc__)
    parser.add_argument("name", choices=list(recipes()))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parsed = parser.parse_args(arguments)
    if parsed.requests < 1:
        parser.error("--requests must be at least 1")
    for line in trace_lines(parsed.name, parsed.seed, parsed.requests):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
