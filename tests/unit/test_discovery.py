from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.endpoints import (
    MAX_ENDPOINTS,
    Found,
    LastKnown,
    Pace,
    PolledDiscovery,
    url_of,
)
from tests.support.scrape_rig import until

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
PACE = Pace(interval_s=10, min_interval_s=2, max_interval_s=60, keep_s=100)


class Time:
    """A clock that moves only while somebody sleeps, and stands still after so many sleeps."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if len(self.slept_s) >= self.rounds:
            await asyncio.Event().wait()
        self.now_s += seconds


class Script:
    """A lookup that answers as written, and then for ever with its last line."""

    name = "script"

    def __init__(self, *answers: Found | Exception) -> None:
        self.answers = deque(answers)
        self.closed = False

    async def look(self) -> Found:
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True


async def heard(
    *answers: Found | Exception, rounds: int
) -> tuple[list[tuple[float, tuple[str, ...]]], Time]:
    """What a discovery told and when, over so many questions."""
    time = Time(rounds)
    told: list[tuple[float, tuple[str, ...]]] = []
    made = PolledDiscovery(Script(*answers), PACE, time, time.sleep)
    task = asyncio.create_task(made.run(lambda urls: told.append((time.now_s, urls))))
    await until(lambda: len(time.slept_s) >= rounds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await made.close()
    return told, time


async def test_only_changes_are_told() -> None:
    """Endpoints are told sorted and once each, and again only when they are others."""
    answers = [Found((B, A, B)), Found((A, B)), Found((A,)), Found(())]
    told, time = await heard(*answers, rounds=4)
    assert told == [(0, (A, B)), (20, (A,)), (30, ())]
    assert time.slept_s == [10] * 4


async def test_a_failure_keeps_the_last_known_for_a_bound() -> None:
    """Endpoints outlive failures for as long as configured and then are none; an answer brings
    them back at once."""
    error = TelemetryError("no")
    told, _ = await heard(Found((A,)), *[error] * 14, Found((A,)), rounds=16)
    assert told == [(0, (A,)), (110, ()), (150, (A,))]


async def test_never_known_is_never_told() -> None:
    """A discovery that always fails tells nothing: no endpoints would be a statement."""
    told, time = await heard(TelemetryError("no"), rounds=30)
    assert told == []
    assert time.now_s == 290


async def test_too_many_endpoints_are_a_failure() -> None:
    """An answer beyond the bound changes nothing."""
    many = Found(tuple(f"http://h{n}:1" for n in range(MAX_ENDPOINTS + 1)))
    told, _ = await heard(Found((A,)), many, rounds=3)
    assert told == [(0, (A,))]


@pytest.mark.parametrize(("ttl_s", "wait_s"), [(None, 10), (0, 2), (1, 2), (30, 30), (86_400, 60)])
async def test_time_to_live_is_bounded(ttl_s: float | None, wait_s: float) -> None:
    """An answer is asked for again after its time to live, within the configured bounds."""
    _, time = await heard(Found((A,), ttl_s), rounds=2)
    assert time.slept_s[0] == wait_s


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.none() | st.frozensets(st.sampled_from([A, B]), max_size=2)),
        max_size=30,
    )
)
def test_last_known_against_a_plain_history(
    history: list[tuple[float, frozenset[str] | None]],
) -> None:
    """At every moment what was told last is the last answer while it is young enough."""
    told: list[tuple[str, ...]] = []
    known = LastKnown(100, told.append)
    now, found_s, last = 0.0, 0.0, None
    for pause_s, answer in history:
        now += pause_s
        if answer is None:
            known.failed(now)
            if last and now - found_s > 100:
                last = ()
        else:
            known.found(answer, now)
            found_s, last = now, tuple(sorted(answer))
        assert (told[-1] if told else None) == last
    assert all(before != after for before, after in pairwise(told))


@pytest.mark.parametrize(
    ("scheme", "host", "port", "url"),
    [
        ("http", "10.0.0.1", 8000, "http://10.0.0.1:8000"),
        ("https", "pod-1.models.svc.", 443, "https://pod-1.models.svc:443"),
        ("http", "fd00::1", 1, "http://[fd00::1]:1"),
        ("http", "[fd00::1]", 1, "http://[fd00::1]:1"),
        ("ftp", "h", 1, None),
        ("http", "", 1, None),
        ("http", "h/x", 1, None),
        ("http", "u@h", 1, None),
        ("http", "h\n", 1, None),
        ("http", "-h", 1, None),
        ("http", "h" * 300, 1, None),
        ("http", "h", 0, None),
        ("http", "h", 65_536, None),
    ],
)
def test_urls(scheme: str, host: str, port: int, url: str | None) -> None:
    """What comes from outside becomes a plain URL, or is refused."""
    made: Callable[[], str] = lambda: url_of(scheme, host, port)  # noqa: E731
    if url is None:
        with pytest.raises(ValueError, match="endpoint"):
            made()
    else:
        assert made() == url
