"""The measures of all pools as they are shown: series of metrics, and a page.

PURE. Labels are names of configured pools and tenants, and of kinds of counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from math import isfinite

from ext_authz.admission.measures import QUANTILES, Accuracy, Count
from ext_authz.admission.view import PoolState
from ext_authz.admission.would_have import Fate

# The windows of the page; metrics show the first, and the alarm and the efficiency of the last.
WINDOWS_S = (60.0, 600.0)

Pools = Mapping[str, PoolState]
Reading = Iterator[tuple[tuple[str, ...], float]]
Reader = Callable[[Pools, float], Reading]

ASKED = (Count.ADMITTED, Count.DEMOTED, Count.REFUSED)
PROMISES = (Count.KEPT, Count.BROKEN, Count.FAILED, Count.UNPROMISED)


def asked(pools: Pools, _: float) -> Reading:
    """Requests by the pool they were meant for."""
    for name, pool in pools.items():
        for what in ASKED:
            yield (name, what.label), pool.measures.counts[what]


def promises(pools: Pools, _: float) -> Reading:
    """What became of those let in, by tenant."""
    for name, pool in pools.items():
        for tenant, counts in pool.measures.by_tenant.items():
            for what in PROMISES:
                yield (name, tenant, what.label), counts[what]


def device_seconds(pools: Pools, _: float) -> Reading:
    """Device time by tenant."""
    for name, pool in pools.items():
        for tenant, seconds in pool.measures.device_s.items():
            yield (name, tenant), seconds


def refusals_judged(pools: Pools, _: float) -> Reading:
    """Refusals by whether they were needed."""
    for name, pool in pools.items():
        counts = pool.measures.counts
        premature = counts[Count.REFUSAL_PREMATURE]
        yield (name, "premature"), premature
        yield (name, "needed"), counts[Count.REFUSAL_JUDGED] - premature
        yield (name, "skipped"), counts[Count.REFUSAL_SKIPPED]


def refusals_tried(pools: Pools, _: float) -> Reading:
    """Refusals that were let in to see what becomes of them."""
    for name, pool in pools.items():
        counts = pool.measures.counts
        yield (name, "kept"), counts[Count.TRIED_KEPT]
        yield (name, "missed"), counts[Count.TRIED] - counts[Count.TRIED_KEPT]


def would_have(pools: Pools, _: float) -> Reading:
    """Requests that ran in spite of a verdict that is not enforced."""
    for name, pool in pools.items():
        for (tenant, verdict, reason), counts in pool.measures.would_have.rows():
            for fate in Fate:
                yield (name, tenant, verdict, reason, fate.label), counts[fate]


def margin_s(pools: Pools, _: float) -> Reading:
    """The margin that the tuner holds."""
    for name, pool in pools.items():
        yield (name,), pool.margin.value_s


def predicts(pools: Pools, _: float) -> Reading:
    """Whether predictions are acted on."""
    for name, pool in pools.items():
        yield (name, pool.trust.mode), float(pool.trust.predicts)


def mode_switches(pools: Pools, _: float) -> Reading:
    """How often that has changed."""
    for name, pool in pools.items():
        yield (name,), float(pool.trust.footing().switches)


def efficiency(pools: Pools, now: float) -> Reading:
    """The Admission Efficiency Score."""
    for name, pool in pools.items():
        ratio = pool.measures.standing(now, WINDOWS_S[-1]).efficiency_ratio
        if ratio is not None:
            yield (name,), ratio


def alarm(pools: Pools, now: float) -> Reading:
    """Whether that is too low."""
    for name, pool in pools.items():
        yield (name,), float(pool.measures.standing(now, WINDOWS_S[-1]).alarm)


def goodput(pools: Pools, now: float) -> Reading:
    """Promises kept a second."""
    for name, pool in pools.items():
        per_s = pool.measures.standing(now, WINDOWS_S[0]).goodput_per_s
        if per_s is not None:
            yield (name,), per_s


def prediction_error(pools: Pools, _: float) -> Reading:
    """Quantiles of the error relative to the truth."""
    for name, accuracy in _accuracies(pools):
        yield (name, "0.5"), accuracy.median_error_ratio
        yield (name, "0.9"), accuracy.p90_error_ratio


def prediction_bias(pools: Pools, _: float) -> Reading:
    """Above 0 predictions are too long."""
    for name, accuracy in _accuracies(pools):
        yield (name,), accuracy.bias_ratio


def prediction_coverage(pools: Pools, _: float) -> Reading:
    """The part that stayed within each predicted quantile."""
    for name, accuracy in _accuracies(pools):
        for quantile, covered in zip(QUANTILES, accuracy.covered, strict=True):
            yield (name, str(quantile)), covered


def _accuracies(pools: Pools) -> Iterator[tuple[str, Accuracy]]:
    for name, pool in pools.items():
        if (accuracy := pool.measures.accuracy()) is not None:
            yield name, accuracy


# By the name of the metric.
READERS: dict[str, Reader] = {
    "pool_requests": asked,
    "promises": promises,
    "device_seconds": device_seconds,
    "refusals_judged": refusals_judged,
    "refusals_tried": refusals_tried,
    "would_have": would_have,
    "margin_seconds": margin_s,
    "predicting": predicts,
    "mode_switches": mode_switches,
    "efficiency_ratio": efficiency,
    "efficiency_alarm": alarm,
    "goodput_per_second": goodput,
    "prediction_error_ratio": prediction_error,
    "prediction_bias_ratio": prediction_bias,
    "prediction_coverage_ratio": prediction_coverage,
}


def page(pool: PoolState, now: float) -> dict[str, object]:
    """How one pool does, as plain values: over each of the windows, and its predictions."""
    measures = pool.measures
    accuracy = measures.accuracy()
    footing = pool.trust.footing()
    return {
        "mode": {
            "configured": footing.mode,
            "predicting": footing.predicts,
            "for_s": now - footing.since_s if isfinite(footing.since_s) else None,
            "switches": footing.switches,
        },
        "margin_s": pool.margin.value_s,
        **{f"last_{s:.0f}_s": asdict(measures.standing(now, s)) for s in WINDOWS_S},
        "predictions": None if accuracy is None else asdict(accuracy),
        "would_have": [
            {"tenant": tenant, "would_be": verdict, "reason": reason}
            | {fate.label: counts[fate] for fate in Fate}
            for (tenant, verdict, reason), counts in measures.would_have.rows()
        ],
    }
