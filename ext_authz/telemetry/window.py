"""Moving windows over signals: mean and slope of each.

PURE. Samples fall into buckets of a fixed width, so that memory is flat however often a source
speaks: a window of 60 s in buckets of 0.5 s keeps 120 pairs of numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from math import inf, isfinite

from ext_authz.snapshot import EndpointSample

SPAN_S = 60.0
BUCKET_S = 0.5
# A slope over less history than this is noise.
LEAST_HISTORY_S = 2.0


@dataclass(frozen=True, slots=True)
class Trend:
    """Mean over the window, change per second (least squares), and how much history there is."""

    mean: float
    slope_per_s: float | None
    history_s: float


class Window:
    """Values of one signal over the last `span_s` seconds."""

    __slots__ = ("_bucket_s", "_buckets", "_span_s")

    def __init__(self, span_s: float = SPAN_S, bucket_s: float = BUCKET_S) -> None:
        self._span_s = span_s
        self._bucket_s = bucket_s
        # (bucket number, samples in it, sum of their values)
        self._buckets: deque[tuple[int, int, float]] = deque()

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, at_s: float, value: float) -> None:
        """Take in one value. One that is older than the newest bucket is ignored."""
        number = int(at_s // self._bucket_s)
        if self._buckets and number < self._buckets[-1][0]:
            return
        if self._buckets and number == self._buckets[-1][0]:
            _, count, total = self._buckets.pop()
            self._buckets.append((number, count + 1, total + value))
        else:
            self._buckets.append((number, 1, value))
        self._forget(at_s)

    def trend(self, now: float) -> Trend | None:
        """What the window shows at `now`; None if it is empty."""
        self._forget(now)
        if not self._buckets:
            return None
        points = [(n * self._bucket_s, total / count) for n, count, total in self._buckets]
        mean_t = sum(t for t, _ in points) / len(points)
        mean = sum(v for _, v in points) / len(points)
        history_s = points[-1][0] - points[0][0]
        slope = None
        if history_s >= LEAST_HISTORY_S:
            spread = sum((t - mean_t) ** 2 for t, _ in points)
            slope = sum((t - mean_t) * (v - mean) for t, v in points) / spread
        return Trend(mean, slope, history_s)

    def _forget(self, now: float) -> None:
        oldest = int((now - self._span_s) // self._bucket_s)
        while self._buckets and self._buckets[0][0] <= oldest:
            self._buckets.popleft()


class Trends:
    """A window for each signal whose rate of change somebody may ask for, of each endpoint."""

    SIGNALS = ("load", "kv_usage_ratio", "mean_execution_s")

    def __init__(self) -> None:
        self._windows: dict[str, dict[str, Window]] = {}
        self._last_s: dict[str, dict[str, float]] = {}

    def take(self, sample: EndpointSample) -> None:
        """Add what a merged sample knows anew, each number at the date it was measured. One that
        is only repeated, because another changed, is not counted again."""
        windows = self._windows.setdefault(sample.endpoint, {})
        last_s = self._last_s.setdefault(sample.endpoint, {})
        for signal in self.SIGNALS:
            value = getattr(sample, signal)
            if value is None:
                continue
            origin = sample.origins.get(signal)
            # A load is dated by the sample; where nobody told one, that date is no date.
            at_s = sample.at_s if origin is None else origin.at_s
            if isfinite(at_s) and at_s > last_s.get(signal, -inf):
                last_s[signal] = at_s
                windows.setdefault(signal, Window()).add(at_s, value)

    def of(self, endpoint: str, now: float) -> dict[str, Trend]:
        """The trends of an endpoint, those signals left out that nobody told lately."""
        trends = {name: w.trend(now) for name, w in self._windows.get(endpoint, {}).items()}
        return {name: trend for name, trend in trends.items() if trend is not None}

    def keep(self, endpoints: Container[str]) -> None:
        """Forget all endpoints but these."""
        self._windows = {n: w for n, w in self._windows.items() if n in endpoints}
        self._last_s = {n: t for n, t in self._last_s.items() if n in endpoints}
