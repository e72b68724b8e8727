"""How news of what happens travels to the gate, late and with losses: numbers only.

PURE. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# An answer that its client is slow to read takes so many times as long, by the log.
STALL = 50.0


class Teach(Enum):
    """With what output length requests are learned from."""

    # As the gate does: read from the size of the answer, calibrated on the engine's counters.
    BOOK = "book"
    # The true one, as a tap on responses tells.
    EXACT = "exact"
    # The one that was expected.
    EXPECTED = "expected"


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


@dataclass(frozen=True, slots=True)
class Scrapes:
    """How engines are read: every `every_s`, the page is `lag_s` old when it comes, if it does.
    `first_tokens`: the mean time to the first token is on it."""

    every_s: float = 0.1
    lag_s: float = 0.01
    lost_ratio: float = 0.0
    first_tokens: bool = True


# As where both are our own to set.
SOON, OFTEN = LogWay(), Scrapes()
