"""Recorded traffic decided again: against a loss system that is obviously right, and by parts."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.endpoints import EndpointState
from ext_authz.model import Reason, Verdict
from ext_authz.overload import Enforcing, HoldRules, Rule
from ext_authz.recorded import Carried, Recording, Request
from ext_authz.settings import AdmissionSettings, Slo, TenantLimits
from ext_authz.simulation.comparison import as_dict, table
from ext_authz.simulation.rerun import Rerun
from ext_authz.simulation.tally import Left, Tally, peaks_then
from tests.support.recordings import recording, refused, request
from tests.support.world import SHADOW, pool, settings, tenant


def config(slots: int = 4, **changes: object) -> AdmissionSettings:
    """One pool, two tenants, no promise."""
    values: dict[str, object] = {"default_slo": Slo(), **changes}
    return settings((pool("p", slots),), (tenant("a"), tenant("b")), **values)


def played(new: AdmissionSettings, *requests: Request, seed: int = 1) -> Tally:
    return Rerun(new, recording(*requests), seed).play()


def lost_by_oracle(slots: int, requests: list[tuple[float, float]]) -> int:
    """How many of (arrival, seconds) find all slots taken."""
    ends: list[float] = []
    lost = 0
    for at_s, seconds in sorted(requests):
        ends = [end_s for end_s in ends if end_s > at_s]
        if len(ends) < slots:
            ends.append(at_s + seconds)
        else:
            lost += 1
    return lost


@given(
    slots=st.integers(1, 5),
    requests=st.lists(
        st.tuples(
            st.integers(0, 10_000).map(lambda n: n / 1000.0),
            st.integers(1, 3000).map(lambda n: n / 1000.0 + 0.00037),
        ),
        min_size=1,
        max_size=60,
        unique_by=lambda each: each[0],
    ),
)
def test_with_slots_alone_it_is_a_loss_system(
    slots: int, requests: list[tuple[float, float]]
) -> None:
    """One tenant, no promise: what is refused is what finds every slot taken, and no more than
    that runs at once."""
    asked = [request(at_s, seconds=s, slo_s=None) for at_s, s in requests]
    # A knee that is learned of so odd a server would be a limit as well.
    with patch.object(EndpointState, "bound", lambda *_: None):
        told = played(config(slots), *asked)
    assert told.now["a"].refused.total() == lost_by_oracle(slots, requests)
    assert told.peak["p"] <= slots
    assert told.now["a"].admitted + told.now["a"].refused.total() == len(requests)
    assert told.then["a"].admitted == len(requests)


def burst(count: int, every_s: float = 0.01, **changes: object) -> list[Request]:
    return [request(100.0 + every_s * number, **changes) for number in range(count)]


def test_enforcement_of_what_was_in_shadow() -> None:
    """What ran in spite of its verdict then is refused now; its verdict then was its own."""
    then = [
        replace(each, would_be=Verdict.REJECT, reason=Reason.AT_CAPACITY) if n >= 4 else each
        for n, each in enumerate(burst(8))
    ]
    told = played(config(4), *then)
    assert told.moved == {("admit", "admit"): 4, ("admit", "reject"): 4}
    assert played(config(4, enforcing=SHADOW), *then).moved == {("admit", "admit"): 8}


def test_who_was_refused_gets_in_with_more_slots_and_runs_for_a_guess() -> None:
    """As long as others of its tenant and model did, while nothing is learned."""
    then = [*burst(4, seconds=0.3), *(refused(100.1 + n / 100) for n in range(4))]
    told = played(config(8), *then)
    assert told.moved == {("admit", "admit"): 4, ("reject", "admit"): 4}
    assert (told.guessed, told.peak["p"]) == (4, 8)


def test_promises_are_those_of_the_new_configuration() -> None:
    """Or the client's own, where that was shorter."""
    path = {"/v1/chat/completions": Slo(e2e_s=0.5)}
    new = config(8, path_slos=path)
    told = played(new, *burst(3, seconds=0.45), *burst(2, 0.011, seconds=0.45, deadline_s=0.2))
    assert (told.now["a"].kept, told.now["a"].broken) == (3, 2)
    assert (told.then["a"].kept, told.then["a"].broken) == (5, 0)


def test_others_load_is_that_of_then() -> None:
    """Foreign requests take slots, from when they were seen."""
    carried = (Carried(0.0, "p-0:80", 0.0, None, 1.0), Carried(150.0, "p-0:80", 3.0, None, 1.0))
    requests = [*burst(4), *(replace(each, at_s=each.at_s + 100.0) for each in burst(4))]
    told = Rerun(config(4), Recording(tuple(requests), carried), 1).play()
    assert told.now["a"].admitted == 5


def test_limits_of_tenants_are_those_of_the_new_configuration() -> None:
    """And what is refused before its body is read is counted all the same."""
    limited = tenant("a", limits=TenantLimits(requests_per_second=1.0, request_burst=2.0))
    told = played(settings((pool("p", 16),), (limited,), default_slo=Slo()), *burst(10))
    assert told.now["a"].refused == {"request_rate": 8}


def test_what_was_never_read_costs_its_tenants_mean() -> None:
    """And is left out where none was ever read."""
    unread = {"cost": None, "reason": Reason.REQUEST_RATE}
    told = played(config(), *burst(2), refused(101.0, **unread), refused(101.5, "b", **unread))
    assert (told.unread, told.omitted) == (1, {Left.COST: 1})


def test_what_is_held_is_decided_as_the_gate_would() -> None:
    """One that waits for a slot runs when one is free, and is counted as held; nobody waits longer
    than the rules say."""
    new = config(1, hold=HoldRules(limit_s=0.5))
    before = burst(10, 0.1, seconds=0.05)
    told = played(new, *before, *(request(102.0 + n / 100, seconds=0.05) for n in range(3)))
    now = told.now["a"]
    assert (now.admitted, now.held, now.refused.total()) == (13, 2, 0)
    assert told.peak["p"] == 1


def test_tenants_that_are_gone_are_left_out() -> None:
    """Nobody can be said to be theirs."""
    told = played(config(), *burst(2), request(101.0, "gone"))
    assert told.omitted == {Left.TENANT: 1}
    assert "gone" not in told.now


def test_a_sample_stands_for_as_many() -> None:
    """Of one in four, each comes four times within a second or so."""
    requests = tuple(burst(200, 0.5, seconds=0.05, slo_s=None))
    told = Rerun(config(16), Recording(requests, (), 0.25), 7).play()
    assert sum(told.moved.values()) == 800
    odd = Rerun(config(16), Recording(requests, (), 0.4), 7).play()
    assert sum(odd.moved.values()) == pytest.approx(500, abs=40)


def test_a_long_pause_costs_nothing_and_telemetry_is_fresh_after_it() -> None:
    """A week later the next request is decided on a sample of its moment."""
    told = played(config(), request(100.0), request(700_000.0))
    assert told.now["a"].admitted == 2


def test_the_same_seed_replays_the_same() -> None:
    """Chance is the seed's alone."""
    rng = Random(5)
    requests = [request(rng.uniform(0, 30), seconds=rng.uniform(0.1, 2)) for _ in range(300)]
    new = config(3, default_slo=Slo(e2e_s=1.0), tried_ratio=0.1)
    first, again = (played(new, *requests, seed=9) for _ in range(2))
    assert (first.moved, first.peak) == (again.moved, again.peak)


def test_peaks_of_then_count_what_overlapped() -> None:
    """What ends makes room for what begins at the same time."""
    requests = [request(0.0, seconds=1.0), request(1.0, seconds=1.0), request(1.5, seconds=1.0)]
    assert peaks_then(requests) == {"p": 2}


def test_what_is_printed() -> None:
    """Then and now by tenant, reasons, pools, and what cannot be known."""
    then = [*burst(6), refused(100.02, "b"), request(100.5, "gone")]
    record = replace(recording(*then), sample_ratio=0.5, torn=1)
    new = config(4, enforcing=Enforcing(rules={Rule.LATENCY: SHADOW.everywhere}))
    tally = Rerun(new, record, 1).play()
    text = table(tally, record, new)
    for part in ("tenant", "(all)", "refused for", "at_capacity", "then admit, now reject",
                 "peak then", "whatever runs beside", "50 % were recorded", "cut off"):  # fmt: skip
        assert part in text
    told = as_dict(tally, record, new)
    assert told["all"]["now"]["refused_for"].keys() == {"at_capacity"}
    assert told["pools"]["p"]["slots"] == 4
    assert sum(move["requests"] for move in told["moved"]) == told["requests"]
    assert max(map(len, text.splitlines())) < 180
