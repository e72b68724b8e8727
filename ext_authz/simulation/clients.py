"""Who asks, how often, for what, and what they do when refused: numbers and draws.

PURE. Chance is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from random import Random

# A long prompt is so many times as long, within what the smallest servers take.
LONG_TIMES, LONGEST_TOKENS = 8, 3500
# Bytes of a prompt and of an answer for each token; a gate does not know them beforehand.
PROMPT_BYTES, ANSWER_BYTES = (3.5, 5.0), (4.0, 5.0)
# How long those wait who are told nothing, or do not listen.
UNTOLD_S = 1.0


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How a rate changes with time: nothing outside [`from_s`, `until_s`); for `for_s` of every
    `every_s` (beginning at `from_s`) `times` the rate, else `rest_times` of it."""

    from_s: float = 0.0
    until_s: float = math.inf
    every_s: float = math.inf
    for_s: float = math.inf
    times: float = 1.0
    rest_times: float = 1.0

    @property
    def steady(self) -> bool:
        """Whether it never changes."""
        return self == STEADY

    @property
    def most_times(self) -> float:
        """The largest factor there is."""
        return max(self.times, self.rest_times) if self.every_s < math.inf else self.times

    def factor(self, now: float) -> float:
        """The factor in force at `now`."""
        if not self.from_s <= now < self.until_s:
            return 0.0
        if self.every_s == math.inf:
            return self.times
        return self.times if (now - self.from_s) % self.every_s < self.for_s else self.rest_times


STEADY = Rhythm()


class Retrying(Enum):
    """What a client does when it is refused."""

    # Takes the refusal for an answer.
    NEVER = "never"
    # Comes back when it was told to, to the millisecond.
    OBEY = "obey"
    # Comes back at once, whatever it was told.
    HAMMER = "hammer"
    # Comes back after a second, as one that is told nothing.
    UNTOLD = "untold"
    # Comes back when it was told to, but on the whole second, as all others do.
    TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Client:
    """Poisson arrivals of one tenant (`tenant`; the client's own name if empty).

    Prompts are log-normal; `long_ratio` of them are `LONG_TIMES` as long. After `patience_s` it
    leaves a request that is not answered. A refused request is tried again as `retries` says: by
    those who ignore hints every `hammer_s`, by all until `gives_up_s` after the first try; one
    that `tells` says so of each further try, as SDKs do. `type` is what its header asks for, `path`
    where it sends to.
    """

    name: str
    rate_rps: float
    prompt_tokens: float = 200.0
    sigma: float = 0.5
    long_ratio: float = 0.0
    cap_tokens: int | None = None
    patience_s: float = math.inf
    tenant: str = ""
    type: str = ""
    model: str = "m"
    path: str = "/v1/chat/completions"
    rhythm: Rhythm = STEADY
    retries: Retrying = Retrying.NEVER
    hammer_s: float = 0.1
    gives_up_s: float = 30.0
    tells: bool = False

    @property
    def who(self) -> str:
        """The tenant it belongs to."""
        return self.tenant or self.name

    def prompt(self, chance: Random) -> int:
        """The tokens of one prompt; always draws as often, so that runs stay comparable."""
        middle = math.log(self.prompt_tokens) - self.sigma**2 / 2.0
        tokens = max(4, int(chance.lognormvariate(middle, self.sigma)))
        if chance.random() < self.long_ratio:
            tokens *= LONG_TIMES
        return min(tokens, LONGEST_TOKENS)

    def next_try_s(self, now: float, after_s: float) -> float | None:
        """When it tries again what was refused at `now` with a hint of `after_s`; None if it does
        not."""
        if self.retries is Retrying.HAMMER:
            return now + self.hammer_s
        if self.retries is Retrying.OBEY:
            return now + after_s
        if self.retries is Retrying.UNTOLD:
            return now + UNTOLD_S
        if self.retries is Retrying.TOGETHER:
            return math.floor(now) + max(1.0, math.ceil(after_s))
        return None
