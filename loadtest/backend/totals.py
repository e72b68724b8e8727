"""Counters and histograms of everything a backend did since it began.

PURE. Buckets are the ones real vLLM publishes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from loadtest.backend.engine import EndReason, Finished, FirstToken

LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TPOT_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)


class Histogram:
    """Observations in buckets with inclusive upper `bounds`, and one bucket beyond the last."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(`le` label, observations up to it) for each bound and `+Inf`."""
        rows: list[tuple[str, int]] = []
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            rows.append((repr(bound), seen))
        return [*rows, ("+Inf", seen + self.counts[-1])]


@dataclass(slots=True)
class LlmTotals:
    """What a continuous-batching server counts. Cancelled requests only show as aborted."""

    ends: dict[EndReason, int] = field(default_factory=lambda: dict.fromkeys(EndReason, 0))
    refused: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    queue: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    prefill: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    decode: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    inference: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(TPOT_S))
    prompt: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    generation: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    _arrivals: dict[int, float] = field(default_factory=dict)

    def submitted(self, request_id: int, now: float) -> None:
        """Remember an arrival until its first token."""
        self._arrivals[request_id] = now

    def first_token(self, event: FirstToken) -> None:
        """Count a first token the moment it appears, as the engine does."""
        arrived = self._arrivals.pop(event.id, None)
        if arrived is not None:
            self.ttft.observe(event.at_s - arrived)

    def finished(self, event: Finished) -> None:
        """Count a request that ran to its end: every duration is known only now."""
        self.ends[event.reason] += 1
        started = event.ended_s if event.started_s is None else event.started_s
        first = event.ended_s if event.first_token_s is None else event.first_token_s
        self.e2e.observe(event.ended_s - event.arrived_s)
        self.queue.observe(started - event.arrived_s)
        self.prefill.observe(first - started)
        self.decode.observe(event.ended_s - first)
        self.inference.observe(event.ended_s - started)
        if event.output_tokens > 1:
            self.tpot.observe((event.ended_s - first) / (event.output_tokens - 1))
        self.prompt.observe(event.prompt_tokens)
        self.generation.observe(event.output_tokens)

    def cancelled(self, request_id: int) -> None:
        """Count a request whose client left."""
        self._arrivals.pop(request_id, None)
        self.ends[EndReason.ABORT] += 1


@dataclass(slots=True)
class FixedTotals:
    """What Triton counts for one model. Durations are whole microseconds, cumulative."""

    success: int = 0
    cancelled_requests: int = 0
    refused: int = 0
    rows: int = 0
    request_us: int = 0
    queue_us: int = 0
    infer_us: int = 0

    def submitted(self, request_id: int, now: float) -> None:
        """Nothing is counted before the end."""

    def first_token(self, event: FirstToken) -> None:
        """These models have no tokens."""

    def finished(self, event: Finished) -> None:
        """Charge the request its wait and the whole time of its batch."""
        started = event.ended_s if event.started_s is None else event.started_s
        self.success += 1
        self.rows += event.rows
        self.request_us += round((event.ended_s - event.arrived_s) * 1e6)
        self.queue_us += round((started - event.arrived_s) * 1e6)
        self.infer_us += round((event.ended_s - started) * 1e6)

    def cancelled(self, _request_id: int) -> None:
        """Count a request whose client left."""
        self.cancelled_requests += 1


Totals = LlmTotals | FixedTotals
