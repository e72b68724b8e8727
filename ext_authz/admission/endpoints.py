"""Load of one endpoint: our own unsettled work plus what others brought.

PURE. load = own + foreign, where foreign is what the engine's gauges show beyond our own at the
time of the sample. Own work counts from the moment it is admitted, so a gauge that lags or is
stuck at zero never frees room; once the gauge catches up, nothing is counted twice.
"""

from __future__ import annotations

from math import exp

from ext_authz.estimation.latency import ExecutionMean
from ext_authz.settings import Endpoint
from ext_authz.snapshot import EndpointSample

# Gauges are noisy from scrape to scrape; half a second is short against a request and long
# against a scrape interval of 100 ms.
SMOOTHING_S = 0.5


class EndpointState:
    """One endpoint's live numbers. Only the controller changes them.

    `own` are our unsettled requests, `foreign` those in the engine that we did not admit (or have
    already settled), `load` both together.
    """

    # Attributes, not properties: each is read several times a decision and for every endpoint.
    __slots__ = (
        "_foreign",
        "_peak_before",
        "_peak_since",
        "execution",
        "foreign",
        "load",
        "own",
        "own_tokens",
        "sample",
        "spec",
    )

    def __init__(self, spec: Endpoint) -> None:
        self.spec = spec
        self.own = 0
        self.own_tokens = 0
        self.sample: EndpointSample | None = None
        self.execution = ExecutionMean()
        self.foreign = 0.0
        self.load = 0.0
        self._foreign: float | None = None
        self._peak_since = 0
        self._peak_before = 0

    def reserve(self, tokens: int) -> None:
        """Count one admitted request."""
        self.own += 1
        self.own_tokens += tokens
        self.load = self.own + self.foreign
        self._peak_since = max(self._peak_since, self.own)

    def release(self, tokens: int) -> None:
        """Uncount one."""
        self.own -= 1
        self.own_tokens -= tokens
        self.load = self.own + self.foreign

    def observe(self, sample: EndpointSample) -> None:
        """Take in a newer sample; an older one is ignored."""
        before = self.sample
        if before is not None and sample.at_s < before.at_s:
            return
        self.sample = sample
        if sample.mean_execution_s is not None:
            self.execution.measured(sample.mean_execution_s, sample.at_s)
        if sample.load is not None:
            # The peak over the last two intervals, not the count now: work that was settled
            # between the engine's bookkeeping and this line must not reappear as foreign.
            seen = sample.load - max(self._peak_since, self._peak_before)
            if self._foreign is None or before is None:
                self._foreign = seen
            else:
                keep = exp(-(sample.at_s - before.at_s) / SMOOTHING_S)
                self._foreign = keep * self._foreign + (1.0 - keep) * seen
            self.foreign = max(0.0, self._foreign)
            self.load = self.own + self.foreign
        self._peak_before, self._peak_since = self._peak_since, self.own

    def kv_ratio_with(self, tokens: int) -> float | None:
        """KV cache filled if `tokens` more came in, 0..1+; unknown if the engine tells nothing.

        What is admitted counts in full from the start, so the larger of the gauge and our own
        reservations is taken: a gauge lags, and our estimate misses foreign work.
        """
        sample = self.sample
        if sample is None:
            return None
        capacity = sample.kv_capacity_tokens
        if not capacity:
            return sample.kv_usage_ratio
        return max(sample.kv_usage_ratio or 0.0, self.own_tokens / capacity) + tokens / capacity

    def fits(self, tokens: int) -> bool:
        """Whether the request could run here at all, alone; True when nobody knows."""
        capacity = self.sample.kv_capacity_tokens if self.sample else None
        return not capacity or tokens <= capacity
