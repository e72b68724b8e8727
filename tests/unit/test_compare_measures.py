"""From small hand-made records of clients and servers to the figures of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from loadtest.compare.measures import measured, series
from loadtest.compare.scenario import (
    Killed,
    Kind,
    Phase,
    Retries,
    Scenario,
    Server,
    Shape,
    Tenant,
    steady,
)
from loadtest.compare.tries import Try, read
from loadtest.compare.truth import Inside, Life, Lives, Served, premature, waits

# Counted: from 5 to 15 s.
SCENARIO = Scenario(
    "made-up", "", servers=(Server(),), capacity_rps=10.0, slo_s=1.0, measured_s=10,
    tenants=(Tenant("a", steady(1.0), weight=3.0), Tenant("b", steady(1.0))),
)  # fmt: skip


def try_(at_s: float, took_s: float = 0.5, code: int = 200, tenant: str = "a", **more: Any) -> Try:
    return replace(Try(tenant, 1, 1, at_s, took_s, code), **more)


def served(arrived_s: float, ended_s: float, tenant: str = "a", **more: Any) -> Served:
    one = Served("primary", tenant, f"{tenant}/1/1", arrived_s, ended_s, 200, 1.0, 100)
    return replace(one, **more)


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
    """Of all tenants, warm-up included, as a storm may begin in it."""
    tries = [try_(6.0), try_(6.0, code=429, tenant="b")]
    tries += [try_(7.0, code=429, tenant="b", tries=2), try_(8.0, tenant="b", tries=3)]
    assert measured(STORM, tries, []).amplification == 2.0


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


# -- what was inside -----------------------------------------------------------------------


def test_inside_is_a_step_function() -> None:
    """Against counting one by one, at, between and around all changes."""
    records = [served(1.0, 4.0), served(2.0, 3.0), served(3.0, 6.0), served(8.0, 8.0)]
    inside = Inside(records)

    def counted(at_s: float) -> int:
        return sum(r.arrived_s <= at_s < r.ended_s for r in records)

    grid = [n / 4 for n in range(40)]
    assert [inside.at(t) for t in grid] == [counted(t) for t in grid]
    for a in grid:
        for b in (t for t in grid if t >= a):
            assert inside.most(a, b) == max(counted(t) for t in grid if a <= t <= b)
    assert inside.below_from(2.5, 2) == 4.0
    assert inside.below_from(5.0, 2) == 5.0
    assert inside.below_from(2.0, 1) == 6.0
    assert Inside(records[:1]).below_from(1.0, 0.0) is None


def test_a_life_is_that_of_the_nearest_prompts() -> None:
    """Long ones run longer and take more; what was left tells nothing."""
    records = [served(0.0, 1.0, prompt_tokens=100, work_s=0.5)] * 20
    records += [served(0.0, 5.0, prompt_tokens=2000, work_s=4.0)] * 20
    records += [served(0.0, 99.0, status=499)]
    lives = Lives(records)
    assert [lives.of(tokens).life_s for tokens in (50, 110, 1900, 9000)] == [1.0, 1.0, 5.0, 5.0]
    assert [lives.of(tokens).work_s for tokens in (110, 1900)] == [0.5, 4.0]
    assert Lives([]).of(10) == Life()


def judged(tries: list[Try], records: list[Served], limit: float) -> float | None:
    return premature(SCENARIO, tries, records, limit)


def test_a_refusal_is_premature_if_there_was_room_for_all_its_life() -> None:
    """Two inside until 8 s, and lives of 2 s: with a limit of 3 it would have found room, with one
    of 2 not; nor if a third one comes while it would have run."""
    records = [served(6.0, 8.0, "b"), served(6.0, 8.0, "b")]
    refused = [try_(6.5, 0.0, code=429), try_(6.5, 0.0, code=200, tenant="b")]
    assert judged(refused, records, 3.0) == 1.0
    assert judged(refused, records, 2.0) == 0.0
    assert judged(refused, [*records, served(8.0, 9.0, "b")], 3.0) == 1.0
    assert judged(refused, [*records, served(7.9, 9.9, "b")], 3.0) == 0.0
    assert judged([try_(6.5)], records, 3.0) is None


def test_room_is_work_and_not_a_number_of_requests() -> None:
    """Requests of 1 s and 9 s of the device are asked for as often, so that a limit of 3 is 15 s of
    it: two long ones inside leave no room, three short ones do; whoever was let in."""
    short, long = {"work_s": 1.0, "prompt_tokens": 10}, {"work_s": 9.0, "prompt_tokens": 900}
    known = [served(0.0, 1.0, **short), served(0.0, 1.0, **long)] * 20
    asked = [try_(0.0, prompt_tokens=10), try_(0.0, prompt_tokens=900)] * 20
    refused = try_(6.5, 0.0, code=429, prompt_tokens=10, tries=2)
    both = [served(6.0, 9.0, "b", **long)] * 2
    assert judged([*asked, refused], [*known, *both], 3.0) == 0.0
    assert judged([*asked, refused], [*known, *both[:1]], 3.0) == 1.0
    assert judged([*asked, refused], [*known, *[served(6.0, 9.0, "b", **short)] * 3], 3.0) == 1.0


def test_a_refusal_beyond_a_share_is_not_premature() -> None:
    """Weights 3 : 1 of a limit of 4: with three inside `a` has its share; alone all of it is its
    own, and what others sent long ago is no matter."""
    records = [served(6.0, 9.0)] * 3
    refused = try_(6.5, 0.0, code=429)
    assert judged([refused, try_(6.0, tenant="b")], records, 4.0) == 0.0
    assert judged([try_(5.0, tenant="b"), refused], records, 4.0) == 1.0
    b_refused = try_(6.5, 0.0, code=429, tenant="b")
    assert judged([try_(6.0), b_refused], records, 4.0) == 1.0


def test_refusals_are_judged_within_the_window_and_not_where_servers_died() -> None:
    """Half of the two that count; nothing is said of a run whose room went away."""
    records = [served(6.0, 8.0)] * 3
    tries = [try_(at_s, 0.0, code=429) for at_s in (4.0, 6.5, 9.0, 15.5)]
    assert measured(SCENARIO, tries, records, limit=3.0).premature == 0.5
    killed = replace(SCENARIO, events=(Killed(7.0, 0),))
    assert measured(killed, tries, records, limit=3.0).premature is None
    assert measured(SCENARIO, tries, records).premature is None


def test_hints_against_what_came_true() -> None:
    """What was told, and when there really was room; None where there never was."""
    records = [served(6.0, 8.0), served(6.0, math.inf)]
    tries = [
        try_(6.5, 0.5, code=429, told_s=2.0),
        try_(9.0, 0.5, code=429, told_s=3.0),
        try_(6.5, code=429),
        try_(6.5, told_s=1.0),
    ]
    assert waits(SCENARIO, tries, records, 2.0) == [(2.0, 1.0), (3.0, 0.0)]
    assert waits(SCENARIO, tries[:1], records, 1.0)[0][0] == 2.0


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
