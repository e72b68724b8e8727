"""What an endpoint did between two readings of its counters.

PURE. A counter that fell means that an engine restarted in between. What it did before that is
lost, so that the mean or rate is unknown for once: never negative, and never too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from ext_authz.snapshot import EndpointSample, ModelSample
from ext_authz.telemetry.pages.mappings import Signal
from ext_authz.telemetry.pages.reading import Pair, Reading, SeriesKey


@dataclass(frozen=True, slots=True)
class Dated:
    """A reading and when its page was asked for (monotonic seconds)."""

    reading: Reading
    at_s: float


def sample(endpoint: str, now: Dated, before: Dated | None, source: str) -> EndpointSample:
    """`now` as the dated sample of `endpoint`, with what happened since `before`."""
    reading = now.reading
    then = before.reading if before else None
    elapsed_s = now.at_s - before.at_s if before else 0.0

    def per_s(signal: Signal) -> float | None:
        return rate(then, reading, signal, elapsed_s) if then else None

    def mean_of(signal: Signal) -> float | None:
        return mean(then, reading, signal) if then else None

    running = reading.totals.get(Signal.RUNNING)
    by_model = reading.by_model
    if reading.running_by_little and then:
        running, by_model = _little(then, reading, elapsed_s)
    return EndpointSample(
        endpoint=endpoint,
        at_s=now.at_s,
        source=source,
        running=running,
        waiting=reading.totals.get(Signal.WAITING),
        kv_usage_ratio=reading.totals.get(Signal.KV_USAGE),
        kv_capacity_tokens=reading.totals.get(Signal.KV_CAPACITY),
        slots=reading.totals.get(Signal.SLOTS),
        by_model=by_model,
        mean_execution_s=mean_execution_s(then, reading) if then else None,
        mean_wait_s=mean_of(Signal.QUEUEING),
        mean_batch=mean_of(Signal.BATCH),
        mean_ttft_s=mean_of(Signal.FIRST_TOKEN),
        prompt_tokens_per_s=per_s(Signal.PROMPT_TOKENS),
        generation_tokens_per_s=per_s(Signal.GENERATION_TOKENS),
        requests_per_s=per_s(Signal.REQUESTS),
        rejections_per_s=per_s(Signal.REJECTIONS),
    )


def mean(before: Reading, after: Reading, signal: Signal) -> float | None:
    """The mean of `signal` over what finished between two readings; None if nothing did.

    Series that only one reading has are left out: what came before they were seen is not known.
    """
    grown = _growth(before.means.get(signal, {}), after.means.get(signal, {}))
    if grown is None:
        return None
    count = sum(pair.count for pair in grown.values())
    if not count > 0:
        return None
    value = sum(pair.total for pair in grown.values()) / count
    return value if isfinite(value) else None


def mean_execution_s(before: Reading, after: Reading) -> float | None:
    """Mean seconds in execution, the engine's queue left out. Where the engine does not tell
    them, they are the mean of the whole less the mean in the queue."""
    if Signal.EXECUTION in after.means or Signal.WHOLE not in after.means:
        return mean(before, after, Signal.EXECUTION)
    whole_s = mean(before, after, Signal.WHOLE)
    queueing_s = mean(before, after, Signal.QUEUEING)
    # Of requests that started and of requests that ended: under changing load they differ.
    if whole_s is None or queueing_s is None or whole_s < queueing_s:
        return None
    return whole_s - queueing_s


def rate(before: Reading, after: Reading, signal: Signal, elapsed_s: float) -> float | None:
    """How fast counter `signal` grew, per second, over the series that both readings have."""
    old, new = before.counters.get(signal, {}), after.counters.get(signal, {})
    both = old.keys() & new.keys()
    if not both or not elapsed_s > 0 or any(new[key] < old[key] for key in both):
        return None
    value = sum(sorted(new[key] - old[key] for key in both)) / elapsed_s
    return value if isfinite(value) else None


def _little(
    before: Reading, after: Reading, elapsed_s: float
) -> tuple[float | None, Mapping[str, ModelSample]]:
    """Requests running on average, in all and by model: seconds of execution per second of time
    (Little's law). Only what finished is known, so that it lags by one execution, and where
    nothing finished it is not known whether something runs."""
    grown = _growth(before.means.get(Signal.EXECUTION, {}), after.means.get(Signal.EXECUTION, {}))
    if not grown or not elapsed_s > 0:
        return None, after.by_model
    models: dict[str, float] = {}
    for (_, labels), pair in sorted(grown.items(), key=lambda item: sorted(item[0][1])):
        model = dict(labels).get(after.model_label, "")
        if pair.count > 0:
            models[model] = models.get(model, 0.0) + pair.total / elapsed_s
    total = sum(models.values())
    if not models or not isfinite(total):
        return None, after.by_model
    by_model = dict(after.by_model)
    for model, running in models.items():
        if model:
            seen = by_model.get(model, ModelSample())
            by_model[model] = ModelSample(running, seen.waiting, seen.kv_usage_ratio)
    return total, MappingProxyType(by_model)


def _growth(
    before: Mapping[SeriesKey, Pair], after: Mapping[SeriesKey, Pair]
) -> dict[SeriesKey, Pair] | None:
    """By how much each pair grew; None if one fell."""
    grown = {}
    for key in before.keys() & after.keys():
        then, now = before[key], after[key]
        if now.count < then.count or now.total < then.total:
            return None
        grown[key] = Pair(now.total - then.total, now.count - then.count)
    return grown
