"""What the measures say: against the same questions asked of a record of everything."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.measures import (
    ALARM_AFTER,
    KINDS,
    MOST_PREDICTIONS,
    MOST_REFUSALS,
    QUANTILES,
    SLICE_S,
    SLICES,
    Count,
    Measures,
    is_tried,
)

EVENTS = st.lists(st.tuples(st.floats(0.0, 90.0), st.sampled_from(Count)), max_size=60)


def filled(measures: Measures, now: float, **times: int) -> Measures:
    """So many of each, all at once."""
    for name, number in times.items():
        measures.count(Count[name.upper()], now, number)
    return measures


# -- windows ------------------------------------------------------------------------------


@given(EVENTS, st.floats(0.0, 30.0), st.sampled_from([60.0, 300.0, 600.0]))
def test_a_window_holds_what_came_within_it(
    events: list[tuple[float, Count]], after_s: float, window_s: float
) -> None:
    """Everything of the last `window_s`, nothing older than that and one slice."""
    measures, now, record = Measures(), 1000.0, []
    for gap_s, what in events:
        now += gap_s
        measures.count(what, now)
        record.append((now, what))
    now += after_s
    standing = measures.standing(now, window_s)
    # Of whole slices, as the window is.
    oldest_s = (now // SLICE_S) * SLICE_S - window_s
    seen = [what for at_s, what in record if at_s >= oldest_s]
    kept, broken, failed = (seen.count(x) for x in (Count.KEPT, Count.BROKEN, Count.FAILED))
    let_in = seen.count(Count.ADMITTED) + seen.count(Count.DEMOTED)
    asked = let_in + seen.count(Count.REFUSED)
    assert standing.compliance_ratio == (kept / (kept + broken) if kept + broken else None)
    over = kept + broken + failed
    assert standing.efficiency_ratio == (kept / over if over else None)
    assert standing.admission_ratio == (let_in / asked if asked else None)
    if standing.goodput_per_s is not None:
        began_s = max(oldest_s, record[0][0])
        assert standing.goodput_per_s == pytest.approx(kept / (now - began_s))
    assert sum(measures.counts) == len(record)
    assert all(measures.counts[what] == [w for _, w in record].count(what) for what in Count)


@pytest.mark.parametrize("window_s", [60.0, 600.0])
def test_goodput_is_right_from_the_start(window_s: float) -> None:
    """Seven a second, while the window is not full yet, when it is, and after the end."""
    measures = Measures()
    for number in range(7 * 900):
        now = 100.0 + number / 7.0
        measures.count(Count.KEPT, now)
        goodput = measures.standing(now, window_s).goodput_per_s if number % 500 == 0 else None
        if number % 500 == 0:
            assert goodput is None if now < 105.0 else goodput == pytest.approx(7.0, rel=4e-3)
    assert measures.standing(now + window_s / 2, window_s).goodput_per_s == pytest.approx(
        3.5, rel=0.12
    )
    assert measures.standing(now + window_s + 2 * SLICE_S, window_s).goodput_per_s == 0.0


def test_nothing_is_unknown() -> None:
    """A pool that nobody asked for has no compliance, rather than none."""
    standing = Measures().standing(5.0, 60.0)
    assert (standing.compliance_ratio, standing.efficiency_ratio) == (None, None)
    assert (standing.admission_ratio, standing.goodput_per_s) == (None, None)
    assert not standing.alarm


@pytest.mark.parametrize(
    ("kept", "broken", "failed", "alarm"),
    [
        (97, 3, 0, False),
        (96, 4, 0, True),
        (96, 0, 4, True),
        (0, ALARM_AFTER - 1, 0, False),
        (0, ALARM_AFTER, 0, True),
    ],
)
def test_the_alarm(kept: int, broken: int, failed: int, alarm: bool) -> None:
    """Under 0.97 of those let in that are over, failures of servers too; not of a handful."""
    measures = filled(Measures(), 1.0, kept=kept, broken=broken, failed=failed)
    assert measures.standing(2.0, 60.0).alarm is alarm


def test_memory_is_flat() -> None:
    """Years of traffic fill no more than ten minutes of slices."""
    measures = Measures()
    for number in range(2000):
        measures.count(Count.KEPT, number * 3600.0 + number % 7)
        measures.predicted(1.0, (1.0, 2.0, 3.0), 1.0)
    assert len(measures._slices) <= SLICES + 1
    assert len(measures._predictions) == MOST_PREDICTIONS


def test_tenants_have_their_own_and_leave() -> None:
    """Their promises are counted beside the pool's, until they are configured no more."""
    measures = Measures()
    for tenant, what in (("a", Count.KEPT), ("b", Count.BROKEN), ("a", Count.KEPT)):
        measures.ended(what, tenant, 1.0)
    assert (measures.by_tenant["a"][Count.KEPT], measures.by_tenant["b"][Count.BROKEN]) == (2, 1)
    assert measures.counts[Count.KEPT] == 2
    measures.keep_tenants({"b"})
    assert list(measures.by_tenant) == ["b"]
    assert measures.counts[Count.KEPT] == 2


def test_every_kind_has_a_place_and_a_name() -> None:
    """Kinds are places in a list, their labels what metrics show."""
    assert sorted(Count) == list(range(KINDS))
    assert Count.REFUSAL_PREMATURE.label == "refusal_premature"


# -- premature refusals -------------------------------------------------------------------

# (gap, what): the pool fills up, has room again, or refuses one with a life, within its share.
STEPS = st.lists(
    st.tuples(
        st.floats(0.01, 5.0),
        st.one_of(
            st.sampled_from(["full", "room"]),
            st.tuples(st.floats(0.01, 20.0), st.booleans()),
        ),
    ),
    max_size=60,
)


@given(STEPS, st.floats(0.0, 30.0), st.booleans())
def test_premature_refusals(
    steps: list[tuple[float, str | tuple[float, bool]]], after_s: float, often: bool
) -> None:
    """Those of a tenant within its share after which a recorded load stays below the limit for
    the whole predicted life, found by looking at every moment of it."""
    measures, now, is_full = Measures(), 0.0, False
    fillings: list[float] = []
    refused: list[tuple[float, float, bool, bool]] = []
    for gap_s, step in steps:
        now += gap_s
        if step == "full":
            # Full already: one more comes in place of one that leaves.
            is_full = True
            fillings.append(now)
            measures.refusals.at_limit(now)
        elif step == "room":
            is_full = False
        elif isinstance(step, tuple):
            life_s, within = step
            refused.append((now, life_s, within, is_full))
            measures.refusals.refused(now, life_s, within, is_full)
            if is_full:
                fillings.append(now)
        if often:
            measures.refusals.judge(now)
    now += after_s
    measures.refusals.judge(now)
    premature = judged = 0
    for at_s, life_s, within, full_then in refused:
        filled_s = min((s for s in fillings if s > at_s), default=None)
        stopped = full_then or not within
        met_limit = filled_s is not None and filled_s < at_s + life_s
        if stopped or met_limit or at_s + life_s <= now:
            judged += 1
            premature += not stopped and not met_limit
    assert measures.counts[Count.REFUSAL_PREMATURE] == premature
    assert measures.counts[Count.REFUSAL_JUDGED] == judged
    assert len(measures.refusals) == len(refused) - judged


@pytest.mark.parametrize(("filled_s", "premature"), [(5.999, 0), (6.0, 1)])
def test_a_life_ends_at_its_end(filled_s: float, premature: int) -> None:
    """A pool that is full from that moment on had room for the whole of it."""
    measures = Measures()
    measures.refusals.refused(1.0, 5.0, True, False)
    measures.refusals.at_limit(filled_s)
    assert measures.counts[Count.REFUSAL_PREMATURE] == premature
    assert measures.counts[Count.REFUSAL_JUDGED] == 1


def test_refusals_without_number_are_a_bounded_sample() -> None:
    """Beyond the bound they are counted as skipped and judged by nobody."""
    measures = Measures()
    for _ in range(MOST_REFUSALS + 10):
        measures.refusals.refused(1.0, 5.0, True, False)
    assert len(measures.refusals) == MOST_REFUSALS
    assert measures.counts[Count.REFUSAL_SKIPPED] == 10
    measures.refusals.at_limit(3.0)
    assert measures.counts[Count.REFUSAL_JUDGED] == MOST_REFUSALS
    assert measures.counts[Count.REFUSAL_PREMATURE] == len(measures.refusals) == 0


# -- predictions --------------------------------------------------------------------------


def test_nothing_predicted_is_no_accuracy() -> None:
    """Unknown is None."""
    assert Measures().accuracy() is None


@given(
    st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)), min_size=1, max_size=700)
)
def test_accuracy_is_that_of_the_last_predictions(pairs: list[tuple[float, float]]) -> None:
    """Errors relative to the truth; quantiles cover what they cover."""
    measures = Measures()
    for expected_s, true_s in pairs:
        measures.predicted(expected_s, (expected_s, 2 * expected_s, 4 * expected_s), true_s)
    last = pairs[-MOST_PREDICTIONS:]
    accuracy = measures.accuracy()
    assert accuracy is not None
    assert accuracy.predictions == len(last)
    errors = [abs(expected_s / true_s - 1.0) for expected_s, true_s in last]
    for part, told in ((0.5, accuracy.median_error_ratio), (0.9, accuracy.p90_error_ratio)):
        # As many are no larger, and no more than the rest are larger.
        assert sum(e <= told * (1 + 1e-9) + 1e-9 for e in errors) >= part * len(errors)
        assert sum(e > told * (1 + 1e-9) + 1e-9 for e in errors) <= (1 - part) * len(errors) + 1e-9
    for times, covered in zip((1, 2, 4), accuracy.covered, strict=True):
        assert covered == sum(t <= times * e for e, t in last) / len(last)
    whole = sum(expected_s for expected_s, _ in last) / sum(true_s for _, true_s in last)
    assert accuracy.bias_ratio == pytest.approx(whole - 1.0, abs=1e-9)


def test_a_right_prediction_covers_what_its_quantiles_say() -> None:
    """Exponential times, their mean and quantiles predicted: no bias, coverage as named."""
    rng, measures = Random(3), Measures()
    within_s = (0.693, 2.996, 4.605)
    for _ in range(MOST_PREDICTIONS):
        measures.predicted(1.0, within_s, rng.expovariate(1.0))
    accuracy = measures.accuracy()
    assert accuracy is not None
    assert accuracy.bias_ratio == pytest.approx(0.0, abs=0.12)
    for quantile, covered in zip(QUANTILES, accuracy.covered, strict=True):
        # Four standard deviations of a binomial.
        spread = (quantile * (1 - quantile) / MOST_PREDICTIONS) ** 0.5
        assert covered == pytest.approx(quantile, abs=4 * spread)


# -- tried refusals -----------------------------------------------------------------------


class NoChance(Random):
    """Must not be asked."""

    def random(self) -> float:
        raise AssertionError("drawn from")


def test_off_is_off() -> None:
    """Without a sliver nothing is let in, and no chance is drawn."""
    assert not is_tried(0.0, NoChance())


@pytest.mark.parametrize("ratio", [0.01, 0.2, 1.0])
def test_a_sliver_is_as_large_as_configured(ratio: float) -> None:
    """By chance, one by one."""
    rng = Random(4)
    tried = sum(is_tried(ratio, rng) for _ in range(20_000))
    assert tried / 20_000 == pytest.approx(ratio, abs=4 * (ratio * (1 - ratio) / 20_000) ** 0.5)
