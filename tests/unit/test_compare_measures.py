"""From small hand-made records of clients and servers to the figures of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.compare.measures import measured, series
from loadtest.compare.scenario import (
    Kind,
    Phase,
    Retries,
    Shape,
    Tenant,
    steady,
)
from loadtest.compare.tries import Try, read
from tests.support.compared import SCENARIO, served, try_


def test_goodput_counts_what_was_sent_in_the_window_and_served_in_time() -> None:
    """Late answers, failures and clients that left are let in and not good; refusals are neither;
    warm-up and what comes after are not counted."""
    tries = [
        try_(4.9),
        try_(5.0, 0.2),
        try_(6.0, 1.1),
        try_(7.0, 4.0, code=0),
        try_(8.0, 0.01, code=429),
        try_(9.0, 0.01, code=503),
        try_(10.0, 0.3, code=500),
        try_(11.0, 0.4, admission="demote"),
        try_(15.0),
    ]
    row = measured(SCENARIO, tries, [])
    assert (row.offered_rps, row.goodput_rps) == (0.7, 0.2)
    assert row.efficiency == pytest.approx(2 / 5)
    assert (row.admitted, row.demoted, row.refused, row.failed) == (4, 1, 2, 2)
    assert (row.p50_s, row.p99_s) == (0.4, 4.0)
    assert row.premature is row.share_error is row.innocent_ok is row.amplification is None


def test_a_tenant_may_have_a_promise_of_its_own() -> None:
    """What is late for one is in time for another."""
    patient = replace(SCENARIO.tenants[1], slo_s=2.0)
    scenario = replace(SCENARIO, tenants=(SCENARIO.tenants[0], patient))
    tries = [try_(6.0, 1.5), try_(6.0, 1.5, tenant="b")]
    assert measured(scenario, tries, []).goodput_rps == 0.1


def test_a_stream_may_be_promised_its_first_token() -> None:
    """In time and early; one that does not tell was not early; what is no stream has no such
    promise."""
    stream = replace(SCENARIO.tenants[0], shape=Shape(Kind.STREAM))
    scenario = replace(SCENARIO, tenants=(stream, SCENARIO.tenants[1]), ttft_s=0.3)
    tries = [try_(6.0, ttft_s=0.2), try_(6.0, ttft_s=0.4), try_(6.0), try_(6.0, 1.2, ttft_s=0.2)]
    assert measured(scenario, tries, []).goodput_rps == 0.1
    assert measured(scenario, [try_(6.0, tenant="b")], []).goodput_rps == 0.1


def test_nothing_sent_is_no_ratio() -> None:
    """Without requests there is no efficiency and no quantile, and goodput is 0."""
    row = measured(SCENARIO, [], [], limit=3.0)
    assert (row.goodput_rps, row.efficiency, row.p99_s, row.premature) == (0.0, None, None, None)


def test_first_tokens() -> None:
    """Of streams that were let in."""
    tries = [try_(6.0 + n, ttft_s=0.1 * n) for n in range(3)]
    tries.append(try_(7.0, code=429, ttft_s=9.0))
    assert measured(SCENARIO, tries, []).ttft_p99_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("work", "error"),
    [({"a": 3.0, "b": 1.0}, 0.0), ({"a": 1, "b": 1}, 1.0), ({"a": 3.3, "b": 0.7}, 0.3)],
)
def test_share_error_is_on_the_work_of_the_backlogged(work: dict[str, float], error: float) -> None:
    """Weights 3 : 1; not backlogged, not ended in the window, or left: that does not count."""
    tenants = tuple(replace(t, backlogged=True) for t in SCENARIO.tenants)
    scenario = replace(SCENARIO, tenants=(*tenants, Tenant("c", steady(0.1))))
    records = [served(5.5, 6.0, name, work_s=seconds) for name, seconds in work.items()]
    records += [
        served(1.0, 4.9, "a", work_s=50.0),
        served(6.0, 7.0, "b", work_s=50.0, status=499),
        served(6.0, 7.0, "c", work_s=50.0),
    ]
    assert measured(scenario, [], records).share_error == pytest.approx(error)


def test_an_innocent_is_served_in_time_or_not() -> None:
    """Its own arrivals count once each, refused or late alike; others do not."""
    scenario = replace(SCENARIO, innocent="a")
    tries = [
        try_(6.0),
        try_(7.0, 1.5),
        try_(8.0, code=429),
        try_(8.2, tries=2),
        try_(9.0),
        try_(9.0, code=429, tenant="b"),
    ]
    assert measured(scenario, tries, []).innocent_ok == 0.5


STORM = replace(
    SCENARIO,
    storm_ends_s=10.0,
    tenants=(
        SCENARIO.tenants[0],
        Tenant("b", (Phase(5.0, 10.0, 2.0),), retries=Retries.OBEY),
    ),
)


def test_amplification_is_tries_for_each_first_one() -> None:
    """Of those who come back, warm-up included, as a storm may begin in it."""
    tries = [try_(6.0), try_(6.0, code=429, tenant="b"), try_(6.5, tenant="b")]
    tries += [try_(7.0, code=429, tenant="b", tries=2), try_(8.0, tenant="b", tries=3)]
    assert measured(STORM, tries, []).amplification == 2.0
    assert measured(STORM, tries[:1], []).amplification is None


@pytest.mark.parametrize(("bad_until_s", "recovery_s"), [(9.0, 0.0), (12.2, 2.5), (15.0, 5.0)])
def test_recovery_is_when_all_that_comes_from_then_on_is_served(
    bad_until_s: float, recovery_s: float
) -> None:
    """One arrival each tenth of a second, refused until some time: in steps of half a second; to
    the end if it never recovers. Second tries are no arrivals."""
    times = [n / 10 for n in range(50, 150)]
    tries = [try_(at_s, code=429 if at_s < bad_until_s else 200) for at_s in times]
    tries += [try_(14.9, code=429, tenant="b", tries=3)] * 50
    assert measured(STORM, tries, []).recovery_s == recovery_s


# -- series and lines ----------------------------------------------------------------------


def test_series_are_by_second_of_arrival() -> None:
    """Warm-up is in the plots; refusals of the window by reason, Envoy's own under a name."""
    tries = [
        try_(0.5),
        try_(6.0),
        try_(6.9, 1.2, tenant="b"),
        try_(7.0, code=429, reason="share", told_s=1.0),
        try_(7.0, code=503),
    ]
    plotted = series(SCENARIO, tries, [served(6.0, 7.0, work_s=2.0)], limit=1.0)
    assert (plotted.offered_rps[0], plotted.offered_rps[6], plotted.offered_rps[7]) == (1, 2, 2)
    assert plotted.good_rps[6] == plotted.good_by_tenant["a"][6] == 1
    assert plotted.good_by_tenant["b"] == [0] * 15
    assert plotted.refusals == {"share": 1, "edge": 1}
    assert plotted.work_s == {"a": 2.0, "b": 0.0}
    assert (len(plotted.latencies_s), plotted.latencies_s[0], plotted.latencies_s[-1]) == (
        101,
        0.5,
        1.2,
    )
    assert plotted.hints == [(1.0, 0.0)]


def test_hints_are_thinned_out_and_bounded() -> None:
    """A storm must not make a file of a hundred megabytes."""
    tries = [try_(6.0 + n / 1000, code=429, told_s=1.0) for n in range(1201)]
    assert 400 <= len(series(SCENARIO, tries, [], limit=1.0).hints) <= 500


LINES = [
    '{"began_unix_ms":1700000000500,"seed":1,"name":"x"}',
    '{"tenant":"a","number":2,"tries":1,"at_ms":900,"late_ms":2.5,"took_ms":12.5,"code":429,'
    '"refused":true,"admission":"reject","reason":"share","told_ms":800,"prompt_tokens":9}',
    '{"tenant":"a","number":1,"tries":1,"at_ms":100,"late_ms":0.5,"took_ms":450,"code":200,'
    '"refused":false,"admission":"admit","reason":"","ttft_ms":50,"prompt_tokens":7}',
]


def test_lines_of_the_load_generator() -> None:
    """Ordered by when they were sent; milliseconds become seconds; what is missing is None."""
    sent = read(LINES)
    assert sent.began_unix_s == 1_700_000_000.5
    first, second = sent.tries
    assert first == Try("a", 1, 1, 0.1, 0.45, 200, 0.0005, "admit", "", None, 0.05, 7)
    assert second == Try("a", 2, 1, 0.9, 0.0125, 429, 0.0025, "reject", "share", 0.8, None, 9)
    assert (first.served, first.refused, second.refused) == (True, False, True)
    with pytest.raises(ValueError, match="never began"):
        read(LINES[1:])
