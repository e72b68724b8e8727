"""From what clients saw and servers tell to the figures of a run. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ext_authz.simulation.fairness import max_min, share_error
from loadtest.compare.outcome import Measured, Series
from loadtest.compare.scenario import Killed, Kind, Retries, Scenario
from loadtest.compare.tries import Try
from loadtest.compare.truth import Served, premature, waits

# After a storm: this part of what arrives is served in time again.
RECOVERED = 0.95
RECOVERY_STEP_S = 0.5
HINTS_KEPT = 500
# A refusal that says no reason is Envoy's own.
UNTOLD = "edge"


def good(scenario: Scenario, one: Try) -> bool:
    """Whether a try was served within its promise. A stream that does not tell when its first token
    came did not keep a promise about it."""
    if not one.served or one.took_s > scenario.slo_of(one.tenant):
        return False
    streamed = any(t.name == one.tenant and t.shape.kind is Kind.STREAM for t in scenario.tenants)
    if scenario.ttft_s is None or not streamed:
        return True
    return one.ttft_s is not None and one.ttft_s <= scenario.ttft_s


def measured(
    scenario: Scenario,
    tries: Sequence[Try],
    served: Sequence[Served],
    limit: float | None = None,
) -> Measured:
    """The figures over the tries sent in the measured window. `limit` is the best static limit of
    the first pool's servers together, if it is known."""
    begin_s, end_s = scenario.window_s
    counted = [one for one in tries if begin_s <= one.at_s < end_s]
    let_in = [one for one in counted if not one.refused]
    within = sum(good(scenario, one) for one in let_in)
    took = sorted(one.took_s for one in let_in)
    first_tokens = sorted(one.ttft_s for one in let_in if one.ttft_s is not None)
    # A limit says nothing of servers that are no longer there.
    judged = limit is not None and not any(isinstance(e, Killed) for e in scenario.events)
    return Measured(
        goodput_rps=round(within / (end_s - begin_s), 3),
        offered_rps=round(len(counted) / (end_s - begin_s), 3),
        efficiency=_rounded(within / len(let_in)) if let_in else None,
        p50_s=_quantile(took, 0.50),
        p99_s=_quantile(took, 0.99),
        ttft_p99_s=_quantile(first_tokens, 0.99),
        share_error=_rounded(_share_error(scenario, served)),
        innocent_ok=_rounded(_innocent_ok(scenario, counted)),
        premature=_rounded(premature(scenario, tries, served, limit or 0.0)) if judged else None,
        amplification=_rounded(_amplification(scenario, tries)),
        recovery_s=_recovery_s(scenario, tries),
        admitted=sum(one.admission != "demote" for one in let_in),
        demoted=sum(one.admission == "demote" for one in let_in),
        refused=len(counted) - len(let_in),
        failed=sum(not one.served for one in let_in),
    )


def series(
    scenario: Scenario,
    tries: Sequence[Try],
    served: Sequence[Served],
    limit: float | None = None,
) -> Series:
    """What is plotted of a run; see `Series`."""
    begin_s, end_s = scenario.window_s
    counted = [one for one in tries if begin_s <= one.at_s < end_s]
    took = sorted(one.took_s for one in counted if not one.refused)
    pairs = [] if limit is None else waits(scenario, tries, served, limit)
    step = max(1, math.ceil(len(pairs) / HINTS_KEPT))
    within = [one for one in tries if good(scenario, one)]
    return Series(
        offered_rps=_by_second(tries, scenario.until_s),
        good_rps=_by_second(within, scenario.until_s),
        good_by_tenant={
            t.name: _by_second([o for o in within if o.tenant == t.name], scenario.until_s)
            for t in scenario.tenants
        },
        latencies_s=[took[round(q / 100 * (len(took) - 1))] for q in range(101)] if took else [],
        work_s={name: round(work, 3) for name, work in _work_s(scenario, served).items()},
        refusals=dict(Counter(one.reason or UNTOLD for one in counted if one.refused)),
        hints=pairs[::step],
    )


def _by_second(tries: Sequence[Try], until_s: int) -> list[int]:
    counts = Counter(int(one.at_s) for one in tries)
    return [counts[second] for second in range(until_s)]


def _work_s(scenario: Scenario, served: Sequence[Served]) -> Mapping[str, float]:
    """Device seconds by tenant, of what ended in the measured window."""
    begin_s, end_s = scenario.window_s
    work = dict.fromkeys((t.name for t in scenario.tenants), 0.0)
    for one in served:
        if one.done and begin_s <= one.ended_s < end_s and one.tenant in work:
            work[one.tenant] += one.work_s
    return work


def _share_error(scenario: Scenario, served: Sequence[Served]) -> float | None:
    weights = scenario.backlogged
    if len(weights) < 2:
        return None
    got = {name: work for name, work in _work_s(scenario, served).items() if name in weights}
    if not any(got.values()):
        return None
    fair = max_min(sum(got.values()), weights, dict.fromkeys(weights, math.inf))
    return share_error(got, fair)


def _innocent_ok(scenario: Scenario, counted: Sequence[Try]) -> float | None:
    mine = [one for one in counted if one.tenant == scenario.innocent and one.tries == 1]
    return sum(good(scenario, one) for one in mine) / len(mine) if mine else None


def _amplification(scenario: Scenario, tries: Sequence[Try]) -> float | None:
    """Tries for each first one, of those who come back; None where nobody does."""
    back = {t.name for t in scenario.tenants if t.retries is not Retries.NEVER}
    counts = [one.tries == 1 for one in tries if one.tenant in back]
    return len(counts) / sum(counts) if any(counts) else None


def _recovery_s(scenario: Scenario, tries: Sequence[Try]) -> float | None:
    """From the end of the storm to when, from then on, what newly arrives is served in time; to the
    end of the run if that never is."""
    ends_s = scenario.storm_ends_s
    if ends_s is None:
        return None
    steps = math.ceil((scenario.until_s - ends_s) / RECOVERY_STEP_S)
    for step in range(steps):
        from_s = ends_s + step * RECOVERY_STEP_S
        new = [one for one in tries if one.tries == 1 and one.at_s >= from_s]
        if new and sum(good(scenario, one) for one in new) >= RECOVERED * len(new):
            return step * RECOVERY_STEP_S
    return steps * RECOVERY_STEP_S


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 4)


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)
