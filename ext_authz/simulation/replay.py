"""A trace played through the predictor that the gate runs, beside simpler ways to predict.

PURE. Before each request its time is predicted from what had ended by then, and nothing else; its
own end teaches when it comes. What is asked and taught goes through the same bookkeeping as in the
gate (`Traffic`), so that a figure here is about code that runs there.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ext_authz.admission.traffic import Stay, Traffic
from ext_authz.estimation.latency.features import Work
from ext_authz.estimation.latency.predictor import Predictor
from ext_authz.simulation.trace import Row

BYTES_PER_TOKEN = 4.0
QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Guess:
    """What was predicted of one request, and the truth; seconds, None where unknown."""

    e2e_s: float
    e2e_high_s: float
    true_e2e_s: float
    ttft_s: float | None = None
    ttft_high_s: float | None = None
    true_ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as a way to predict sees it when it comes: `output_tokens` is the length that it
    is told, `in_flight` the requests before it."""

    row: Row
    output_tokens: float
    in_flight: int
    slots: int


class Way(Protocol):
    """A way to predict."""

    def predict(self, seen: Seen) -> tuple[float, float]:
        """Expected seconds end to end, and those that 95 % stay within."""

    def ended(self, seen: Seen) -> None:
        """The request is over; `seen.row` tells how long it took."""


class Lengths(Protocol):
    """What output length a way to predict is told."""

    def told(self, row: Row) -> tuple[float, float]:
        """Tokens expected of `row` before it runs, and the most it may put out."""

    def ended(self, row: Row) -> None:
        """Its length is known."""


class _What(IntEnum):
    FIRST = 0
    END = 1


def replay_way(rows: Sequence[Row], slots: int, way: Way, lengths: Lengths) -> list[Guess]:
    """Play `rows` (in order of arrival) through a plain way to predict."""
    open_: list[tuple[float, int, Seen]] = []
    in_flight: Counter[str] = Counter()
    guesses = []
    for number, row in enumerate(rows):
        while open_ and open_[0][0] <= row.arrived_s:
            seen = heapq.heappop(open_)[2]
            in_flight[seen.row.endpoint] -= 1
            way.ended(seen)
            lengths.ended(seen.row)
        seen = Seen(row, lengths.told(row)[0], in_flight[row.endpoint], slots)
        expected_s, high_s = way.predict(seen)
        guesses.append(Guess(expected_s, high_s, row.e2e_s))
        in_flight[row.endpoint] += 1
        heapq.heappush(open_, (row.arrived_s + row.e2e_s, number, seen))
    return guesses


class _Endpoint:
    """The gate's books of one endpoint, and how many requests are on it."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.in_flight = 0


class Replay:
    """Plays the trace of a pool through one predictor; each endpoint has books of its own. With
    `ends_only` it is not told of first tokens, as a gate without a tap on responses."""

    def __init__(self, slots: int, lengths: Lengths, ends_only: bool) -> None:
        self.predictor = Predictor()
        self._slots = slots
        self._lengths = lengths
        self._ends_only = ends_only
        self._endpoints: defaultdict[str, _Endpoint] = defaultdict(_Endpoint)
        self._events: list[tuple[float, int, _What, Row, Stay]] = []

    def run(self, rows: Sequence[Row]) -> list[Guess]:
        """Predictions of all `rows`, in order of arrival."""
        return [self._arrive(number, row) for number, row in enumerate(rows)]

    def _arrive(self, number: int, row: Row) -> Guess:
        self._until(row.arrived_s)
        now, endpoint = row.arrived_s, self._endpoints[row.endpoint]
        traffic, predictor = endpoint.traffic, self.predictor
        expected_tokens, most_tokens = self._lengths.told(row)
        work = Work(row.prompt_bytes / BYTES_PER_TOKEN, expected_tokens)
        met = traffic.meets(endpoint.in_flight, endpoint.in_flight, now)
        forecast = predictor.ask(work, met, self._slots, traffic.pace)
        stay = Stay(work, most_tokens, met, self._slots)
        stay.forecast = forecast
        traffic.enter(stay, predictor.prefill_s(work), endpoint.in_flight, now)
        traffic.watch(stay, now + predictor.due_s(forecast))
        endpoint.in_flight += 1
        heapq.heappush(self._events, (now + row.e2e_s, number, _What.END, row, stay))
        ttft_s = None if self._ends_only else row.ttft_s
        if ttft_s is None:
            return Guess(forecast.e2e_s, predictor.within_s(forecast, QUANTILE), row.e2e_s)
        heapq.heappush(self._events, (now + ttft_s, number, _What.FIRST, row, stay))
        return Guess(
            forecast.e2e_s,
            predictor.within_s(forecast, QUANTILE),
            row.e2e_s,
            forecast.ttft_s,
            forecast.ttft_s * predictor.ttft[forecast.queued].factor(QUANTILE),
            ttft_s,
        )

    def _until(self, now: float) -> None:
        """Everything that has happened by `now`."""
        while self._events and self._events[0][0] <= now:
            at_s, _, what, row, stay = heapq.heappop(self._events)
            self._notice(at_s)
            if what is _What.END:
                self._end(row, stay, at_s)
            else:
                lesson = stay.lesson(stay.work, row.e2e_s, row.ttft_s)
                self.predictor.learn_first(lesson, self._endpoints[row.endpoint].traffic.pace)
        self._notice(now)

    def _end(self, row: Row, stay: Stay, at_s: float) -> None:
        endpoint = self._endpoints[row.endpoint]
        endpoint.traffic.leave(stay, endpoint.in_flight, at_s)
        endpoint.in_flight -= 1
        self._lengths.ended(row)
        ttft_s = None if self._ends_only else row.ttft_s
        work = Work(stay.work.prompt_tokens, row.output_tokens)
        self.predictor.learn(stay.lesson(work, row.e2e_s, ttft_s), endpoint.traffic.pace)

    def _notice(self, now: float) -> None:
        for endpoint in self._endpoints.values():
            for stay in endpoint.traffic.overdue(now):
                first_time, stay.late = not stay.late, True
                lesson = stay.longest(now - stay.entered_s)
                self.predictor.overdue(lesson, endpoint.traffic.pace, first_time)
