"""Simpler ways to predict, to compare with; and what lengths a prediction is told.

PURE. Each is what somebody would write first, fitted to nothing but the trace's own past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, exp, inf, log

from ext_authz.estimation.output_length import OutputLengths
from ext_authz.simulation.replay import QUANTILE, Seen
from ext_authz.simulation.trace import Row

# Requests by which a static profile is measured, as an operator measures a server once.
PROFILED = 50
FORGETS = 0.05
KEPT = 300


class _High:
    """The 95 % of recent truth over prediction: every way gets the same chance to know how wrong
    it is."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=KEPT)

    def learn(self, truth_s: float, expected_s: float) -> None:
        if expected_s > 0.0:
            self._recent.append(log(truth_s / expected_s))

    def of(self, expected_s: float) -> float:
        if not self._recent:
            return inf
        ordered = sorted(self._recent)
        at = min(ceil(QUANTILE * (len(ordered) + 1)) - 1, len(ordered) - 1)
        return expected_s * exp(ordered[at])


class Ewma:
    """The forgetting mean of what requests took, whatever their size and the load."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._high = _High()

    def predict(self, seen: Seen) -> tuple[float, float]:
        """See `Way`."""
        del seen  # that it looks at nothing is the point
        mean_s = self._mean_s or 1.0
        return mean_s, self._high.of(mean_s)

    def ended(self, seen: Seen) -> None:
        """See `Way`."""
        truth_s = seen.row.e2e_s
        if self._mean_s is None:
            self._mean_s = truth_s
        self._high.learn(truth_s, self._mean_s)
        self._mean_s += FORGETS * (truth_s - self._mean_s)


class StaticProfile:
    """Seconds for a token, measured once over the first requests and never again."""

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0
        self._count = 0
        self._high = _High()

    def predict(self, seen: Seen) -> tuple[float, float]:
        """See `Way`."""
        expected_s = self._expected_s(seen)
        return expected_s, self._high.of(expected_s)

    def ended(self, seen: Seen) -> None:
        """See `Way`."""
        self._high.learn(seen.row.e2e_s, self._expected_s(seen))
        if self._count < PROFILED:
            self._count += 1
            self._seconds += seen.row.e2e_s
            self._tokens += max(1.0, seen.row.output_tokens)

    def _expected_s(self, seen: Seen) -> float:
        each_s = self._seconds / self._tokens if self._tokens else 0.01
        return max(1e-4, each_s * max(1.0, seen.output_tokens))


class QueueTimesMean:
    """What queues before a request times the mean time of one, over the slots, and that time: the
    rule of thumb for a server that runs so many at once."""

    def __init__(self) -> None:
        self._mean = Ewma()
        self._high = _High()

    def predict(self, seen: Seen) -> tuple[float, float]:
        """See `Way`."""
        expected_s = self._expected_s(seen)
        return expected_s, self._high.of(expected_s)

    def ended(self, seen: Seen) -> None:
        """See `Way`."""
        self._high.learn(seen.row.e2e_s, self._expected_s(seen))
        self._mean.ended(seen)

    def _expected_s(self, seen: Seen) -> float:
        mean_s = self._mean.predict(seen)[0]
        queued = max(0, seen.in_flight - seen.slots + 1)
        return mean_s * (1.0 + queued / seen.slots)


class RealLengths:
    """The length that the request turned out to have."""

    def told(self, row: Row) -> tuple[float, float]:
        """See `Lengths`."""
        return row.output_tokens, row.output_tokens

    def ended(self, row: Row) -> None:
        """See `Lengths`."""


class LearnedLengths:
    """What the gate expects: the mean of what was learned, under the request's cap."""

    def __init__(self, default_tokens: int) -> None:
        self._lengths = OutputLengths()
        self._default_tokens = default_tokens

    def told(self, row: Row) -> tuple[float, float]:
        """See `Lengths`."""
        cap, default = row.cap_tokens, self._default_tokens
        expected = self._lengths.expected(row.tenant, "", cap, default)
        most = self._lengths.longest(row.tenant, "", default) if cap is None else cap
        return expected, max(expected, most)

    def ended(self, row: Row) -> None:
        """See `Lengths`."""
        self._lengths.learn(row.tenant, "", row.output_tokens, row.cap_tokens)


class KnownDistribution:
    """The median of the distribution that all the trace's lengths were drawn from, under the
    request's own cap.

    Time grows with the length, so the time of the median length is the median of the time, and of
    all guesses that do not know the request's own length that one has the least mean error.
    Answers that ran into their caps tell that lengths go on beyond (Kaplan and Meier 1958).
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._most = max(row.output_tokens for row in rows)
        self._median = _median_length(rows)

    def told(self, row: Row) -> tuple[float, float]:
        """See `Lengths`."""
        cap = self._most if row.cap_tokens is None else row.cap_tokens
        return min(self._median, cap), cap

    def ended(self, row: Row) -> None:
        """See `Lengths`."""


def _median_length(rows: Sequence[Row]) -> float:
    """Tokens that half of all answers would exceed without caps; infinite if more would exceed
    all that was seen."""
    ends = sorted((row.output_tokens, row.capped) for row in rows)
    going = 1.0
    for number, (tokens, capped) in enumerate(ends):
        if not capped:
            going *= 1.0 - 1.0 / (len(ends) - number)
        if going <= 0.5:
            return tokens
    return inf
