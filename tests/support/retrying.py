"""Clients that come back when they are refused, in virtual time: as told, at once, or together.

They live in a `World` and go the way of a real request: what is refused unread is not decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ext_authz.admission.view import Caller
from ext_authz.model import Decision
from ext_authz.serving.retry_headers import retry_after_header
from tests.support.world import World

# When a client comes back: from its refusal and the time, in how many seconds.
Return = Callable[[Decision, float], float]


def obey(decision: Decision, now: float) -> float:
    """Exactly when it is told to, as an SDK that reads `retry-after-ms`."""
    assert decision.retry is not None
    return decision.retry.after_s


def obey_seconds(decision: Decision, now: float) -> float:
    """After the whole seconds of `retry-after`."""
    assert decision.retry is not None
    return float(retry_after_header(decision.retry.after_s, 60.0))


def ignore(decision: Decision, now: float) -> float:
    """A tenth of a second later, whatever it is told."""
    return 0.1


def together(decision: Decision, now: float) -> float:
    """At the next full five seconds of the clock, like all its kind."""
    return 5.0 * math.floor(now / 5.0 + 1.0) - now


@dataclass
class Story:
    """What became of the work of one group of clients; `attempts` counts every one of them."""

    pieces: int = 0
    refused: int = 0
    attempts: int = 0
    served: int = 0
    given_up: int = 0
    served_by_s: Counter[int] = field(default_factory=Counter)
    returns_by_s: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def served_rps(self, from_s: int, to_s: int) -> float:
        """Pieces of work let in a second."""
        return sum(self.served_by_s[second] for second in range(from_s, to_s)) / (to_s - from_s)

    def returns_per_refused(self) -> float:
        """How often a piece of work that was refused came back."""
        return (self.attempts - self.pieces) / max(1, self.refused)


class Clients:
    """One tenant's clients, each piece of work another client of one of its `keys`."""

    def __init__(
        self, world: World, tenant: str, come_back: Return, keys: int = 1, patience_s: float = 60.0
    ) -> None:
        self.story = Story()
        self._world = world
        self._tenant = tenant
        self._come_back = come_back
        self._keys = keys
        self._patience_s = patience_s

    def offer(self, rate: float, until_s: float = math.inf) -> None:
        """New pieces of work from now on: Poisson arrivals."""
        world = self._world

        def arrive() -> None:
            if world.now < until_s:
                self.begin()
                world.after(world.rng.expovariate(rate), arrive)

        world.after(world.rng.expovariate(rate), arrive)

    def begin(self) -> None:
        """One new piece of work now."""
        story, world = self.story, self._world
        key = b"%d" % (story.pieces % self._keys)
        story.pieces += 1
        began_s = world.now

        def attempt(first: bool) -> None:
            story.attempts += 1
            if not first:
                story.returns_by_s[int(world.now)] += 1
            decision = world.ask(self._tenant, caller=Caller(self._tenant, key))
            if decision.endpoint is not None:
                story.served += 1
                story.served_by_s[int(world.now)] += 1
                return
            story.reasons[decision.reason] += 1
            story.refused += first
            wait_s = self._come_back(decision, world.now)
            if world.now + wait_s - began_s > self._patience_s:
                story.given_up += 1
                return
            world.after(wait_s, lambda: attempt(False))

        attempt(True)
