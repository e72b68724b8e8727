"""What a closed loop in virtual time is made of: numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from loadtest.backend.profiles import PROFILES, LlmProfile

# A long prompt is so many times as long, within what the smallest profile takes.
LONG_TIMES, LONGEST_TOKENS = 8, 3500
# Bytes of a prompt and of an answer for each token; a gate does not know them beforehand.
PROMPT_BYTES, ANSWER_BYTES = (3.5, 5.0), (4.0, 5.0)


class Teach(Enum):
    """With what output length requests are learned from."""

    # As the gate does: read from the size of the answer, calibrated on the engine's counters.
    BOOK = "book"
    # The true one, as a tap on responses tells.
    EXACT = "exact"
    # The one that was expected.
    EXPECTED = "expected"


@dataclass(frozen=True, slots=True)
class Client:
    """Poisson arrivals of one tenant. Prompts are log-normal; `long_ratio` of them are
    `LONG_TIMES` as long. After `patience_s` it leaves."""

    name: str
    rate_rps: float
    prompt_tokens: float = 200.0
    sigma: float = 0.5
    long_ratio: float = 0.0
    cap_tokens: int | None = None
    patience_s: float = math.inf

    def prompt(self, chance: Random) -> int:
        """The tokens of one prompt; always draws as often, so that loops stay comparable."""
        middle = math.log(self.prompt_tokens) - self.sigma**2 / 2.0
        tokens = max(4, int(chance.lognormvariate(middle, self.sigma)))
        if chance.random() < self.long_ratio:
            tokens *= LONG_TIMES
        return min(tokens, LONGEST_TOKENS)


@dataclass(frozen=True, slots=True)
class LogWay:
    """How access-log entries travel: `lag_s` at least, and up to `flush_s` more (each value as
    likely); so many are lost, told twice, or tell of a client that read for `STALL` times as long
    as the engine took."""

    lag_s: float = 0.02
    flush_s: float = 0.0
    lost_ratio: float = 0.0
    doubled_ratio: float = 0.0
    stalled_ratio: float = 0.0


STALL = 50.0


@dataclass(frozen=True, slots=True)
class Scrapes:
    """How engines are read: every `every_s`, the page is `lag_s` old when it comes, if it does.
    `first_tokens`: the mean time to the first token is on it."""

    every_s: float = 0.1
    lag_s: float = 0.01
    lost_ratio: float = 0.0
    first_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """One loop: `endpoints` servers of `profile` that run `slots` at once, and their clients.

    With a `limit` there is no controller: each server is kept at that many requests, which are
    counted without any lag.
    """

    clients: tuple[Client, ...]
    profile: LlmProfile
    endpoints: int = 1
    slots: int = 64
    slo_s: float = 1.5
    lease_s: float = 15.0
    log: LogWay = LogWay()
    scrapes: Scrapes = Scrapes()
    teach: Teach = Teach.BOOK
    limit: int | None = None


def profile(name: str = "demo-primary", slower: float = 1.0) -> LlmProfile:
    """A server of the backend model, on silicon that is `slower` times as slow in everything."""
    known = PROFILES[name]
    assert isinstance(known, LlmProfile)
    costs = known.costs
    slow = replace(
        costs,
        prefill_fixed_ms=slower * costs.prefill_fixed_ms,
        prefill_token_ms=slower * costs.prefill_token_ms,
        prefill_square_ms=slower * costs.prefill_square_ms,
        decode_fixed_ms=slower * costs.decode_fixed_ms,
        decode_kv_ms=slower * costs.decode_kv_ms,
        decode_sequence_ms=slower * costs.decode_sequence_ms,
    )
    return replace(known, costs=slow)
