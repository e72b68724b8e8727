"""Lines of the journal's file: there and back, and what is wrong with others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import Reason, Verdict, WorkEstimate
from ext_authz.recorded import (
    MOST_TEXT,
    RecordError,
    Request,
    carried_line,
    head_line,
    request_line,
)
from tests.support.recordings import refused, request, taken

HEAD = head_line(1000.0, 0.0, 1.0)
TIMES = st.floats(0.0, 1e6).map(lambda seconds: round(seconds, 6))
TEXTS = st.text(max_size=MOST_TEXT)
TOKENS = st.integers(0, 10_000_000)

REQUESTS = st.builds(
    Request,
    at_s=TIMES,
    tenant=TEXTS,
    type=TEXTS,
    path=TEXTS,
    model=st.none() | TEXTS,
    cost=st.none() | st.builds(WorkEstimate, TOKENS, TOKENS, TOKENS),
    slo_s=st.none() | TIMES,
    deadline_s=st.none() | TIMES,
    stream=st.booleans(),
    verdict=st.sampled_from(Verdict),
    would_be=st.sampled_from(Verdict),
    reason=st.sampled_from(Reason),
    pool=st.none() | TEXTS,
    seconds=st.none() | TIMES,
    status=st.integers(0, 599),
    made_tokens=st.none() | TOKENS,
    met=st.none() | st.tuples(TIMES, TIMES),
    lived=st.none() | st.tuples(TIMES, TIMES),
)


@given(said=REQUESTS)
def test_a_request_comes_back_as_it_was(said: Request) -> None:
    """On one line, whatever its names hold, and dated on the wall's clock."""
    line = request_line(said)
    assert line.count("\n") == 1
    assert line.isascii()
    (read,) = taken(HEAD, line).requests
    assert read == replace(said, at_s=said.at_s + 1000.0)


def test_long_names_are_cut() -> None:
    """Of what a client wrote no more is kept than that."""
    (read,) = taken(HEAD, request_line(request(1.0, model="x" * 999))).requests
    assert read.model == "x" * MOST_TEXT


def test_requests_come_in_the_order_of_their_arrival() -> None:
    """They are written when they end."""
    late, early = request(2.0, "late"), request(1.0, "early")
    assert [r.tenant for r in taken(HEAD, *map(request_line, (late, early))).requests] == [
        "early",
        "late",
    ]


def test_what_endpoints_carried_is_read() -> None:
    """Unknown stays unknown."""
    line = carried_line(5.0, {"e:80": (2.5, None, 1.2)})
    (carried,) = taken(HEAD, line).carried
    assert (carried.at_s, carried.endpoint, carried.foreign) == (1005.0, "e:80", 2.5)
    assert (carried.kv_capacity_tokens, carried.thermal_factor) == (None, 1.2)


def test_each_stretch_has_its_own_clock() -> None:
    """A restart begins a monotonic clock anew."""
    line = request_line(request(7.0))
    told = taken(HEAD, line, head_line(2000.0, 7.0, 0.5), line)
    assert [each.at_s for each in told.requests] == [1007.0, 2000.0]
    assert told.sample_ratio == 0.5


def test_a_line_that_was_cut_off_is_counted_and_left_out() -> None:
    """At the end of a file, or where the next process began."""
    half = request_line(request(1.0))[:40]
    told = taken(HEAD, half, HEAD, request_line(request(2.0)), half)
    assert (len(told.requests), told.torn) == (1, 2)


GOOD = json.loads(request_line(refused(1.0)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"t": None}, "t: is not a number from -1e+12 to 1e+12"),
        ({"t": "1"}, "t: is not a number"),
        ({"t": True}, "t: is not a number"),
        ({"who": 7}, "who: is not a text of at most 200 characters"),
        ({"who": "x" * 201}, "who: is not a text"),
        ({"did": "perhaps"}, "did: is not one of admit, demote,"),
        ({"why": "because"}, "why: is not a reason that this release knows"),
        ({"took": -1.0}, "took: is not a number from 0 to 1e+12"),
        ({"took": float("nan")}, "took: is not a number"),
        ({"cost": [1, 2]}, "cost: is not three counts of tokens"),
        ({"cost": [1, 2, "3"]}, "2: is not a number"),
        ({"met": [1]}, "met: is not a count of requests and one of tokens"),
        ({"lived": [1, -1]}, "tokens: is not a number from 0"),
        ({"would": 3}, "would: is not a text"),
        ({"carried": 3}, "carried: is not an object by endpoint"),
        ({"carried": {"e": [1, 2]}}, "carried: is not three numbers for each endpoint"),
        ({"carried": {"e": [-1, 2, 1]}}, "foreign: is not a number from 0"),
    ],
)
def test_a_wrong_field_is_told_with_its_line(changes: dict[str, object], told: str) -> None:
    """And what to do."""
    with pytest.raises(RecordError) as caught:
        taken(HEAD, json.dumps({**GOOD, **changes}) + "\n", HEAD)
    assert str(caught.value).startswith(f"j:2: {told}")
    assert str(caught.value).endswith("; mend or delete the line")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((HEAD, "nonsense\n", request_line(request(1.0))), "j:2: is no JSON object"),
        ((HEAD, "[1]\n", request_line(request(1.0))), "j:2: is no JSON object"),
        ((HEAD, "[" * 100_000 + "\n", request_line(request(1.0))), "j:2: is no JSON object"),
        ((request_line(request(1.0)), HEAD), "j:1: comes before the line"),
        (('{"journal": 2, "wall": 1, "now": 1, "sample": 1}\n', HEAD), "j:1: journal: version 2"),
        (('{"journal": 1, "wall": 1, "now": 1, "sample": 0}\n', HEAD), "j:1: sample: is not"),
    ],
)
def test_what_is_no_journal_is_told(lines: tuple[str, ...], told: str) -> None:
    """By its first line that is wrong."""
    with pytest.raises(RecordError) as caught:
        taken(*lines)
    assert str(caught.value).startswith(told)
